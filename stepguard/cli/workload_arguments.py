"""The workload that a command is about: a script with its arguments, a factory or a loop with its
parameters, or a recorded case's id.

-- train.py --batch_size=12
model.workloads:train_step size=nano batch=4 seq=64 device=cpu
my_training:fit layers=2 --step-at optimizer
'train_step[nano-cpu]'
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from pkgutil import iter_modules

from stepguard.cli.common import UsageError
from stepguard.core.case import BY_OPTIMIZER, Case, Loop, Scalar, from_dict
from stepguard.core.device import CPU, DEVICES, GPU, is_gpu
from stepguard.core.text import listed, meant
from stepguard.machine.gpu import visible_gpus
from stepguard.storage import baseline_files as baseline
from stepguard.worker.workload import where_else

LOOP_OPTIONS = ("step_at", "every", "tokens", "torchrun")
RUNS_AS_IT_IS = "{workload} runs unchanged: it writes its usual files, such as checkpoints, too"
RUNNERS = ("python", "python3", "torchrun", "accelerate")


def add_workload(command: argparse.ArgumentParser) -> None:
    """Add the arguments that choose a workload, and what it runs on."""
    text = "package.module:function, or the id of a case that has a baseline"
    command.add_argument("factory", nargs="?", metavar="CASE", help=text)
    command.set_defaults(needs_workload=True)  # see main.py
    add_parameters(command)


def add_parameters(command: argparse.ArgumentParser) -> None:
    """Add the workload's parameters, what it runs on, and what a step of a loop is."""
    text = "the function's parameters"
    command.add_argument("params", nargs="*", default=[], metavar="key=value", help=text)
    command.add_argument("--device", choices=DEVICES, help=f"default: {GPU} where there is one")
    command.add_argument("--gpus", type=int, metavar="N", help="ranks (1, or the case's)")
    loop = command.add_argument_group(
        "a training loop as it is",
        "-- SCRIPT [ARGUMENTS], or package.module:function --step-at ...",
    )
    text = f"where a step ends: after each call of this function ({BY_OPTIMIZER}: when all of the "
    text += "loop's optimizers have stepped, or at stepguard.step())"
    loop.add_argument("--step-at", metavar="MODULE:FUNCTION", help=text)
    text = "measure so many of the loop's steps as one: 10 if every tenth step logs (1)"
    loop.add_argument("--every", type=int, metavar="N", help=text)
    text = "of a step on one rank, for tokens a second"
    loop.add_argument("--tokens", type=int, metavar="N", help=text)
    text = "give one rank torchrun's variables (RANK and others), too; several have them anyway"
    loop.add_argument("--torchrun", action="store_true", default=None, help=text)
    command.set_defaults(script=())  # what follows --, see main.py


def loop_of(options: argparse.Namespace) -> Loop | None:
    """Return what a step of a loop is; None without an option of a loop. Raises UsageError."""
    given = [getattr(options, name, None) for name in LOOP_OPTIONS]
    if all(value is None for value in given):
        return None
    step_at, every, tokens, torchrun = given
    try:
        every = 1 if every is None else every
        return Loop(step_at or BY_OPTIMIZER, every, tokens or 0, bool(torchrun))
    except ValueError as error:
        raise UsageError(str(error)) from None


def script_of(options: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """Return the script after ``--``, its path or ``-m module``, and its arguments."""
    path, arguments = options.script[0], options.script[1:]
    if options.factory is not None:
        raise UsageError(f"{options.factory}: name it, or a script behind --, not both")
    if path == "-m" and arguments:
        script, arguments = f"-m {arguments[0]}", arguments[1:]
    elif path.startswith("-") or path.rpartition("/")[2] in RUNNERS:
        raise UsageError(
            f"-- {path}: write the script and its arguments alone, -- train.py --steps=500; "
            "--gpus N before it starts N ranks, --torchrun one rank with torchrun's variables"
        )
    else:
        script = os.path.relpath(Path.cwd() / path, options.root)
    try:
        problem = missing(script, options.root)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if problem:
        raise UsageError(problem)
    return script, arguments


def parameters(options: argparse.Namespace) -> tuple[dict[str, Scalar], str]:
    """Return the parameters, and the device (by default a GPU if there is one); or UsageError."""
    if options.gpus is not None and options.gpus < 1:
        raise UsageError(f"--gpus {options.gpus}: at least 1 is needed")
    params = parse_params(options.params)
    device = params.pop("device", None) or options.device
    return params, str(device or (GPU if visible_gpus() else CPU))


def chosen_case(
    options: argparse.Namespace,
    launches: int | None = None,
    name: str = "run",
    data: tuple[str, ...] = (),
) -> Case:
    """Return the case that the options choose, by default with 3 launches, on a CPU with 1.
    ``name`` and ``data`` are of one that is not recorded.
    """
    params, device = parameters(options)
    script = getattr(options, "script", ())
    try:
        if script or ":" in options.factory:
            path, args = script_of(options) if script else (options.factory, ())
            ranks, loop = options.gpus or 1, loop_of(options)
            case = Case(name, path, params, device, ranks, args=args, loop=loop, data=data)
        else:
            case = _varied(_on_device(options, device), params, options.gpus)
        # On a CPU times are not gated, so one launch is enough for the counters.
        usual = 3 if is_gpu(case.device) else 1
        case = replace(case, launches=usual if launches is None else launches)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if problem := missing(case.workload, options.root):
        raise UsageError(problem)
    return case


def _on_device(options: argparse.Namespace, device: str) -> Case:
    """Return the recorded case that the options name, the one for ``device`` if there is one."""
    known = _recorded(options.factory, options.root)
    case = known.get(device) or next(iter(known.values()))
    asked = options.device or "device" in parse_params(options.params)
    if asked and case.device != device:
        workload = f"-- {case.workload}" if case.is_script else case.workload
        raise UsageError(
            f"{options.factory} is recorded for {' and '.join(known)}, not {device}; "
            f"name its workload instead, with all parameters: {workload}"
        )
    return case


def _varied(case: Case, params: Mapping[str, Scalar], gpus: int | None) -> Case:
    """Return the case with these parameters and ranks; if they differ, under another name."""
    params, ranks = {**case.params, **params}, gpus or case.world_size
    own = (params, ranks) == (case.params, case.world_size)
    name = case.name if own else "run"
    return replace(case, name=name, params=params, world_size=ranks, gates=())


def _recorded(case_id: str, root: Path) -> dict[str, Case]:
    """Return the recorded case by device. Raises UsageError if there is none."""
    cases, known = {}, set()
    for path in baseline.files(baseline.usual(root)):
        content = baseline.load(path)
        known |= set(content.cases) if content else set()
        if content and case_id in content.cases:
            name = case_id.partition("[")[2].rstrip("]")
            case = from_dict(content.cases[case_id].case, name=name)
            cases[case.device] = case
    if not cases:
        factory = "a factory is package.module:function key=value"
        there = f"; there is: {listed(sorted(known), 3)}" if known else ""
        raise UsageError(f"{case_id!r} has no baseline{meant(case_id, known)}{there}; {factory}")
    return cases


def parse_params(pairs: list[str]) -> dict[str, Scalar]:
    """Return {"batch": 64} for "batch=64": JSON scalars, or else strings. Raises UsageError."""
    params: dict[str, Scalar] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{pair!r}: write key=value")
        if key in params:
            raise UsageError(f"{key} is given twice")
        try:
            value = json.loads(text.lower() if text in ("True", "False") else text)
        except ValueError:
            value = text
        params[key] = value if isinstance(value, Scalar) else text
    return params


def missing(workload: str, root: Path) -> str:
    """Return what a rank that starts in ``root`` would not find: a script, a module or a function.
    Empty if nothing is missing, or if the source does not show it. The rank checks the parameters.

    Nothing is imported, since torch alone takes seconds. Raises ValueError if ``workload`` is
    neither "package.module:function" nor a script.
    """
    if workload.startswith("-m "):
        return _no_module(workload.removeprefix("-m "), root)
    if Case("x", workload, device=CPU).is_script:
        names = [path.name for path in (root / workload).parent.glob("*.py")]
        hint = meant(workload.rpartition("/")[2], names)
        return "" if (root / workload).is_file() else f"there is no {workload} in {root}{hint}"
    module, _, function = workload.partition(":")
    if problem := _no_module(module, root):
        return problem
    spec = _spec(module.split("."), [str(root), *sys.path])
    if spec and spec.origin and spec.origin.endswith(".py"):
        # Any mention of the name counts: a function may be imported, or made by another function.
        text = Path(spec.origin).read_text(errors="replace")
        if function not in text:
            defined = re.findall(r"^(?:def|class) (\w+)", text, re.MULTILINE)
            return f"{spec.origin} has no {function}{meant(function, defined)}"
    return ""


def _no_module(module: str, root: Path) -> str:
    path = [str(root), *sys.path]
    if _spec(module.split("."), path):
        return ""
    package = module.partition(".")[0]
    elsewhere = "" if _spec([package], path) else where_else(package, root)
    return f"there is no module {module}, seen from {root}{elsewhere or _beside(module, root)}"


def _beside(module: str, root: Path) -> str:
    """Return " (did you mean a.b?)" with the modules in the folder where ``module`` would be."""
    package, dot, _ = module.rpartition(".")
    folder = root.joinpath(*package.split("."))
    names = [module.name for module in iter_modules([str(folder)])]
    return meant(module, [package + dot + name for name in names])


def _spec(parts: Sequence[str], path: Sequence[str]) -> ModuleSpec | None:
    """Return the spec of a module, found without importing a package; None if there is none."""
    if parts[0] in sys.builtin_module_names:
        return None
    spec = PathFinder.find_spec(parts[0], list(path))
    if len(parts) == 1 or spec is None:
        return spec
    inner = spec.submodule_search_locations
    return _spec(parts[1:], list(inner)) if inner else None
