"""The command run: measure one workload, without a baseline.

python -m stepguard run model.workloads:train_step size=nano batch=4 seq=64 device=cpu
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from stepguard.case import Case, Scalar
from stepguard.cli.common import UsageError, progress_line, put_json, refuse_target, say
from stepguard.device import CPU, DEVICES, GPU, is_gpu
from stepguard.gpu.nvml import visible_gpus
from stepguard.judge.soundness import measurement_problem
from stepguard.launch.scheduler import survey
from stepguard.measure.suite import Suite
from stepguard.report import words
from stepguard.report.commands import Commands
from stepguard.report.documents import result_document
from stepguard.report.recorded import figures
from stepguard.storage import baselines as baseline


def add_command(commands: Any, root: Path) -> None:
    """Add its parser."""
    run = commands.add_parser("run", help="measure one workload, without a baseline")
    run.add_argument("factory", metavar="FACTORY", help="package.module:function")
    run.add_argument("params", nargs="*", metavar="key=value", help="the factory's parameters")
    run.add_argument("--device", choices=DEVICES, help=f"default: {GPU} where there is one")
    run.add_argument("--gpus", type=int, default=1, metavar="N", help="ranks (%(default)s)")
    run.add_argument("--launcher", metavar="CMD", help="starts its argument once on each node")
    run.add_argument("--launches", type=int, metavar="N", help="timed launches (3; 1 on a CPU)")
    run.add_argument("--json", metavar="PATH", help="write the result as one JSON document")
    run.set_defaults(call=_run, root=root)


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
        return f"there is no module {module}, seen from {root}"
    if spec.origin and spec.origin.endswith(".py"):
        # Its name, wherever: a function may be imported there, or made by another one.
        if function not in Path(spec.origin).read_text(errors="replace"):
            return f"{spec.origin} has no {function}"
    return ""


def _spec(parts: Sequence[str], path: Sequence[str]) -> ModuleSpec | None:
    """Return the spec of a module by its packages' folders; importing a package would run it."""
    if parts[0] in sys.builtin_module_names:
        return None
    spec = PathFinder.find_spec(parts[0], list(path))
    if len(parts) == 1 or spec is None:
        return spec
    inner = spec.submodule_search_locations
    return _spec(parts[1:], list(inner)) if inner else None


def _case(options: argparse.Namespace, gpus: int) -> Case:
    params = parse_params(options.params)
    device = str(params.pop("device", None) or options.device or (GPU if gpus else CPU))
    if options.gpus < 1:
        raise UsageError(f"--gpus {options.gpus}: at least 1 is needed")
    # On a CPU times are not gated, so that one launch is enough for the counters.
    usual = 3 if is_gpu(device) else 1
    launches = usual if options.launches is None else options.launches
    try:
        return Case("run", options.factory, params, device, options.gpus, launches)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run(options: argparse.Namespace) -> int:
    gpus = tuple(visible_gpus())
    case = _case(options, len(gpus))
    refuse_target(options.json)
    if problem := missing(options.factory, options.root):
        raise UsageError(problem)
    launcher = None
    if options.launcher is not None:
        if case.world_size == 1:
            raise UsageError("--launcher is for several ranks: say how many with --gpus")
        launcher = survey(options.launcher, options.root)
        launcher.per_node(case)
    typed = ["python", "-m", "stepguard", *sys.argv[1:]]
    suite = Suite(options.root, baseline.usual(options.root), gpus, typed, launcher=launcher)
    line = progress_line(options.root, [case])
    line.begin(case.id)
    try:
        result = suite.run(case, line.stage)
    finally:
        line.end()
    say(*figures(result))
    # A sound measurement is enough: what a baseline says of it does not count here.
    measured = measurement_problem(result.evidence) is None
    if not measured:
        sys.stderr.write(words.block(result.verdict, str(result.evidence_path), Commands()) + "\n")
    document = result_document(result, Commands(options.root))
    put_json(document, options.json, result.evidence_path)
    return 0 if measured else 1
