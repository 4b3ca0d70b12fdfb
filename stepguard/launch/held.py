"""Which modules of a rank its tree holds itself, though they were imported from elsewhere. Pure.

A file's name alone does not make it the module: trees hold namesakes of what others install, in
test data, in scripts/, in what they vendor. So the place counts, and what else was imported. What
lies at <root>/pkg/mod.py of the tree is the source of pkg.mod where <root>, itself no package, is

* any folder, for the package of the workload's factory: nobody measures another's;
* where projects keep what they import: the tree itself, src/, lib/, python/, what can be installed;
* any folder where the tree holds most of what was imported of the package, two modules at least.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from stepguard.launch.engine import ENGINE

INSTALLABLE = ("pyproject.toml", "setup.py", "setup.cfg")
SOURCE_FOLDERS = ("src", "lib", "python")
# Copies of what others wrote, or of what was built.
COPIES = {"build", "dist", "node_modules", "site-packages", "external", "extern"}
COPIES |= {"third_party", "third-party", "thirdparty", "3rdparty", "vendor", "vendored", "_vendor"}
# What lies here is only ever imported by a tree's own tests, pages or examples.
ASIDE = {"test", "tests", "testing", "testdata", "fixtures", "doc", "docs", "example", "examples"}
# The caller's engine runs whatever the tree holds, and the rest is the interpreter's own start.
NOBODYS = {ENGINE.name, "__main__", "__mp_main__", "sitecustomize", "usercustomize"}


@dataclass(frozen=True)
class Copy:
    """A module that came from elsewhere, and the tree's own source of it."""

    module: str
    file: str  # it came from here
    held: str  # the tree's own, from its top
    root: str  # the folder that this one would be imported from; empty: the top itself


class Held:
    """The files of a tree, by the modules that they may be. ``below``: the folder that launches run
    in. All are paths from the tree's top, the empty one the top itself.
    """

    def __init__(self, files: Iterable[str] = (), below: str = "") -> None:
        self.files, self.below = frozenset(files), below
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for file in sorted(self.files):
            path = PurePosixPath(file)
            if path.suffix == ".py":
                name = path.parent.name if path.stem == "__init__" else path.stem
                self._by_name[name].append(file)

    def places(self, module: str) -> Iterator[tuple[str, str]]:
        """Every (root, file) of the tree that the module would be if root were imported from."""
        for file in self._by_name.get(module.rpartition(".")[2], ()):
            root = root_of(module, file)
            if root is not None and f"{root}/__init__.py".lstrip("/") not in self.files:
                yield root, file

    def imported_from(self, root: str, packages: Iterable[str]) -> bool:
        """Whether projects keep what they import in such a folder. One of ``packages`` is known to
        be a part of modules' names: lib.utils is not utils.
        """
        if root in ("", self.below):
            return True
        installable = any(f"{root}/{name}" in self.files for name in INSTALLABLE)
        usual = root.rpartition("/")[2] in SOURCE_FOLDERS
        return root not in packages and (installable or usual)

    def passed_over(self, root: str, folders: Iterable[str]) -> bool:
        """Whether the folder is hidden or lies in one of these, seen from where launches run."""
        parts = PurePosixPath(root).parts
        start = PurePosixPath(self.below).parts
        parts = parts[len(start) :] if parts[: len(start)] == start else parts
        return any(part[0] == "." or part in folders for part in parts)


def root_of(module: str, file: str) -> str | None:
    """The folder that the file is this module of, if it is: a/src of pkg.mod, a/src/pkg/mod.py."""
    path = module.replace(".", "/")
    for ending in (f"/{path}.py", f"/{path}/__init__.py"):
        if f"/{file}".endswith(ending):
            return f"/{file}".removesuffix(ending).removeprefix("/")
    return None


def copies(
    elsewhere: Mapping[str, str], here: Mapping[str, str], held: Held, factory: str
) -> list[Copy]:
    """Of the modules that came from elsewhere (name to file), those that are the tree's own; for
    each one source. ``here``: modules that are files of the tree, from its top; ``factory``: the
    module of the workload's factory.
    """
    by_package: dict[str, dict[str, str]] = defaultdict(dict)
    for name, file in sorted(elsewhere.items()):
        by_package[name.partition(".")[0]][name] = file
    packages = {folder for name, file in here.items() for folder in _packages_of(name, file)}
    found: dict[str, Copy] = {}
    for package in sorted(by_package.keys() - NOBODYS):
        own = package == factory.partition(".")[0]
        for copied in _by_root(by_package[package], held, any_kind=own):
            if _is_own(copied, by_package[package], held, packages, own):
                found = {copy.module: copy for copy in copied} | found
    return [found[name] for name in sorted(found)]


def _by_root(modules: Mapping[str, str], held: Held, any_kind: bool) -> list[list[Copy]]:
    """The modules that the tree holds, for each root; a package is not a module of its name, unless
    ``any_kind`` will do.
    """
    found: dict[str, dict[str, Copy]] = defaultdict(dict)
    for name, file in modules.items():
        is_package = PurePosixPath(file).name.partition(".")[0] == "__init__"
        for root, source in held.places(name):
            if any_kind or is_package == source.endswith("__init__.py"):
                found[root].setdefault(name, Copy(name, file, source, root))
    return [list(found[root].values()) for root in sorted(found)]


def _is_own(
    copied: list[Copy], modules: Mapping[str, str], held: Held, packages: set[str], factory: bool
) -> bool:
    """Whether one root's sources of a package are what should have been imported."""
    root = copied[0].root
    if factory:
        return not held.passed_over(root, COPIES)
    if held.passed_over(root, COPIES | ASIDE):
        return False
    written = sum(file.endswith(".py") for file in modules.values())
    most = len(copied) >= 2 and 2 * len(copied) > written
    return most or held.imported_from(root, packages)


def _packages_of(module: str, file: str) -> Iterator[str]:
    """The folders that are part of the module's name."""
    root = root_of(module, file)
    for folder in PurePosixPath(file).parents:
        if root is None or str(folder) in (root, "."):
            return
        yield str(folder)
