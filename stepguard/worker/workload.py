"""The workload of a case: its factory is found, imported from the tree's sources, and called."""

import contextlib
import importlib
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any

from stepguard.core.text import meant

NO_DEVICE = "has no parameter 'device', with which every factory is called"
REQUIRED = ("step", "tokens_per_step")
_INSTALLED = {"site-packages", "dist-packages"}  # large, and nobody edits it
_ENGINE = Path(__file__).resolve().parents[1]  # never measured, not even in its own tree


class BadWorkload(Exception):
    """A factory that does not exist, does not take these parameters, or returned no workload."""


def build(factory: str, params: dict[str, Any], device: str) -> Any:
    """Call ``package.module:function``. Raises BadWorkload for a wrong name or result."""
    with _saying_where():
        function = find_function(factory)
    signature = inspect.signature(function)
    try:
        signature.bind(device=device, **params)
    except TypeError as error:
        if not _takes_device(signature):
            raise BadWorkload(f"{factory} {NO_DEVICE}") from None
        possible = [n for n in signature.parameters if n != "device"]
        unknown = {name: meant(name, possible) for name in params if name not in possible}
        # If a parameter is misspelt, Python's error names the one that is missing instead.
        misspelt = [f"no parameter {name!r}{hint}" for name, hint in unknown.items() if hint]
        why, its = ", ".join(misspelt) or error, ", ".join(possible) or "none but device"
        raise BadWorkload(f"{factory}: {why}; its parameters: {its}") from None
    with _saying_where():  # the factory may import modules, too
        workload = function(device=device, **params)
    missing = [name for name in REQUIRED if not hasattr(workload, name)]
    if missing or not callable(workload.step):
        kind = f"a {type(workload).__name__}" if workload is not None else "None"
        raise BadWorkload(f"{factory} returned {kind} without {' and '.join(missing) or 'step()'}")
    try:
        tokens = int(workload.tokens_per_step)
    except (TypeError, ValueError, OverflowError):
        tokens = 0
    if tokens < 1:
        shown = f"{workload.tokens_per_step!r:.80}"
        raise BadWorkload(f"{factory}: tokens_per_step is {shown}, not a positive number")
    return workload


def _takes_device(signature: inspect.Signature) -> bool:
    try:
        signature.bind_partial(device="")
    except TypeError:
        return False
    return True


def find_function(factory: str) -> Callable[..., Any]:
    """Return the function of that name. Raises BadWorkload if it does not exist."""
    module_name, _, function_name = factory.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # If the workload's own import fails, that is its failure, with a traceback.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            missing = f"no module {error.name!r} for {factory!r} in {os.getcwd()}"
            raise BadWorkload(missing + where_else(error.name)) from None
        raise
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        public = {name: value for name, value in vars(module).items() if name[0] != "_"}
        own = [n for n, v in public.items() if getattr(v, "__module__", "") == module_name]
        known = ", ".join(n for n in own if inspect.isfunction(public[n])) or "none"
        raise BadWorkload(f"{module_name} has no factory {function_name!r}; it has: {known}")
    return function


@contextlib.contextmanager
def _saying_where() -> Iterator[None]:
    """If a module is missing, add to the error in which folder it lies, if that is known."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.msg += where_else(error.name) if error.name else ""
        raise


def where_else(name: str, root: Path = Path()) -> str:
    """Return how to find a module that lies in a folder such as ``src``; else empty."""
    for inner in sorted(root.glob(f"*/{name}")) + sorted(root.glob(f"*/{name}.py")):
        if inner.suffix == ".py" or inner.is_dir():
            folder = shlex.quote(str(inner.parent.relative_to(root)))
            return f"; it is in {folder}: begin the command with: env PYTHONPATH={folder}"
    return ""


class _FromSource(SourceFileLoader):
    def path_stats(self, path: Any) -> Any:
        """Say that a source is unknown: then no bytecode is read or written."""
        raise OSError


def import_from_source(folder: Path) -> None:
    """Have this process import from source all modules in the folder's repository (or in the
    folder, if there is none) that are not installed there.

    Python trusts bytecode that names its source's size and the second in which it was written. An
    older source can have both if a tool restored them (``cp -p``, ``rsync -t``, a cache of CI). For
    some bytecode Python does not look at the source at all. Then the code that runs is not that of
    the commit.
    """
    folder = folder.resolve()
    top = next((above for above in (folder, *folder.parents) if (above / ".git").exists()), folder)
    finder = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_FromSource, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),  # for git the bytecode itself is the source
    )

    def of_the_tree(path: str) -> Any:
        where = Path(path).resolve()
        installed = where.is_relative_to(_ENGINE) or _INSTALLED & {*where.parts}
        if installed or not where.is_relative_to(top):
            raise ImportError(path)  # asks the next hook
        return finder(path)

    sys.path_hooks.insert(0, of_the_tree)
    sys.path_importer_cache.clear()
