"""The workload that a command is about: a factory with its parameters, or a recorded case's id.

model.workloads:train_step size=nano batch=4 seq=64 device=cpu
'train_step[nano-cpu]'
"""

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from pkgutil import iter_modules

from stepguard.case import Case, Scalar, from_dict
from stepguard.cli.common import UsageError
from stepguard.device import CPU, DEVICES, GPU, is_gpu
from stepguard.gpu.nvml import visible_gpus
from stepguard.storage import baselines as baseline
from stepguard.text import meant
from stepguard.worker.interpreter import as_typed


def add_workload(command: argparse.ArgumentParser) -> None:
    """Add the options that choose a workload, and on what it runs."""
    text = "package.module:function, or the id of a case that has a baseline"
    command.add_argument("factory", metavar="CASE", help=text)
    add_parameters(command)
    command.add_argument("--gpus", type=int, metavar="N", help="ranks (1, or the case's)")


def add_parameters(command: argparse.ArgumentParser) -> None:
    """Add the factory's parameters, and the device, to the options."""
    text = "the factory's parameters"
    command.add_argument("params", nargs="*", default=[], metavar="key=value", help=text)
    command.add_argument("--device", choices=DEVICES, help=f"default: {GPU} where there is one")


def parameters(options: argparse.Namespace) -> tuple[dict[str, Scalar], str]:
    """Return the parameters, and the device that is among them, an option, or what there is."""
    params = parse_params(options.params)
    device = params.pop("device", None) or options.device
    return params, str(device or (GPU if visible_gpus() else CPU))


def chosen_case(options: argparse.Namespace, launches: int | None = None) -> Case:
    """Return the case that the options of add_workload() choose; on a GPU it has ``launches`` (3).

    Raises UsageError for one that cannot be.
    """
    params, device = parameters(options)
    if options.gpus is not None and options.gpus < 1:
        raise UsageError(f"--gpus {options.gpus}: at least 1 is needed")
    try:
        if ":" not in options.factory:
            case = _recorded(options.factory, device, options.root)
            ranks = options.gpus or case.world_size
            case = replace(case, params={**case.params, **params}, world_size=ranks, gates=())
        else:
            case = Case("run", options.factory, params, device, options.gpus or 1)
        # On a CPU times are not gated, so that one launch is enough for the counters.
        usual = 3 if is_gpu(case.device) else 1
        case = replace(case, launches=usual if launches is None else launches)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if problem := missing(case.workload, options.root):
        raise UsageError(problem)
    return case


def _recorded(case_id: str, device: str, root: Path) -> Case:
    """Return a case of the baseline files by its id; of several machines' the one for this."""
    found, known = {}, set()
    for path in baseline.files(baseline.usual(root)):
        content = baseline.load(path)
        known |= set(content.cases) if content else set()
        if content and case_id in content.cases:
            case = from_dict(content.cases[case_id].case)
            found[case.device] = replace(case, name=case_id.partition("[")[2].rstrip("]"))
    if not found:
        hint = meant(case_id, known)
        cases = as_typed("stepguard baselines list")
        factory = "a factory is package.module:function key=value"
        hint = hint or _with_colon(case_id, root)
        raise UsageError(f"{case_id!r} has no baseline{hint}; what has: {cases}; {factory}")
    return found.get(device) or next(iter(found.values()))


def _with_colon(name: str, root: Path) -> str:
    """Return " (did you mean a.b:c?)" for the a.b.c that is a factory; empty for anything else."""
    workload = ":".join(name.rsplit(".", 1))
    with contextlib.suppress(ValueError):
        if not missing(workload, root):
            return f" (did you mean {workload}?)"
    return ""


def parse_params(pairs: list[str]) -> dict[str, Scalar]:
    """Return {"batch": 64} for "batch=64". Values are JSON scalars, anything else is a string.

    Raises UsageError for an argument without "=" or a key given twice.
    """
    found: dict[str, Scalar] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r}: write key=value")
        if key in found:
            raise UsageError(f"{key} is given twice")
        try:
            value = json.loads(text.lower() if text in ("True", "False") else text)
        except ValueError:
            value = text
        found[key] = value if isinstance(value, Scalar) else text
    return found


def missing(workload: str, root: Path) -> str:
    """Return what a rank that starts in ``root`` would not find of "package.module:function"; empty
    where all is there, or where a compiled module does not tell. Nothing is imported, since torch
    alone takes seconds. Raises ValueError for what is no such name.
    """
    Case("x", workload, device=CPU)
    module, _, function = workload.partition(":")
    spec = _spec(module.split("."), [str(root), *sys.path])
    if spec is None:
        return f"there is no module {module}, seen from {root}{_beside(module, root)}"
    if spec.origin and spec.origin.endswith(".py"):
        # Its name, wherever: a function may be imported there, or made by another one.
        text = Path(spec.origin).read_text(errors="replace")
        if function not in text:
            defined = re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE)
            return f"{spec.origin} has no {function}{meant(function, defined)}"
    return ""


def _beside(module: str, root: Path) -> str:
    """Return " (did you mean a.b?)" of the modules that lie where ``module`` would."""
    package, dot, _ = module.rpartition(".")
    names = [one.name for one in iter_modules([str(root.joinpath(*package.split(".")))])]
    return meant(module, [package + dot + name for name in names])


def _spec(parts: Sequence[str], path: Sequence[str]) -> ModuleSpec | None:
    """Return the spec of a module by its packages' folders; importing a package would run it."""
    if parts[0] in sys.builtin_module_names:
        return None
    spec = PathFinder.find_spec(parts[0], list(path))
    if len(parts) == 1 or spec is None:
        return spec
    inner = spec.submodule_search_locations
    return _spec(parts[1:], list(inner)) if inner else None
