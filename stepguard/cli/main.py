"""The command line: measure one workload, check the machine, accept what was measured.

    python -m stepguard run model.workloads:train_step size=nano batch=4 seq=64 device=cpu
    python -m stepguard doctor
    python -m stepguard accept 'train_step[124m-bf16]' --reason 'fused the loss'
    python -m stepguard baselines list
    python -m stepguard calibrate 'train_step[124m-bf16]'

Exit status: 0 when it worked, 1 when a measurement or a refusal says no, 2 for bad usage.
"""

import argparse
import json
import sys
from pathlib import Path

from stepguard.case import Case, Scalar
from stepguard.cli import baselines as cli_baselines
from stepguard.cli import calibrate as cli_calibrate
from stepguard.cli import waive as cli_waive
from stepguard.cli.doctor import examine
from stepguard.cli.usage import UsageError
from stepguard.device import CPU, DEVICES, GPU, is_gpu
from stepguard.git.resolve import TreeError
from stepguard.gpu.nvml import MachineError, visible_gpus
from stepguard.judge.soundness import measurement_problem
from stepguard.measure.suite import Result, Suite
from stepguard.report import documents
from stepguard.report import figures as shell
from stepguard.report import words as explain
from stepguard.report.live import ProgressLine
from stepguard.storage import baselines as baseline
from stepguard.storage.json_file import FileError
from stepguard.storage.runs import root_of


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit status."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    try:
        return int(options.call(options))
    except UsageError as error:
        print(f"stepguard: {error}", file=sys.stderr)
        return 2
    except (FileError, MachineError, TreeError, ValueError) as error:
        print(f"stepguard: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stepguard: interrupted", file=sys.stderr)
        return 130


def _parse(arguments: list[str]) -> argparse.Namespace:
    """The options of the command that the first argument names.

    The command's own parser is called, since argparse offers intermixing only where there are no
    commands below: options and words may then stand in any order.
    """
    parser = argparse.ArgumentParser(prog="python -m stepguard", description=__doc__.split("\n")[0])
    commands = _commands(parser)
    if arguments and arguments[0] in commands:
        return commands[arguments[0]].parse_intermixed_args(arguments[1:])
    return parser.parse_args(arguments)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    root = root_of(Path.cwd())
    baselines = baseline.usual(root)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="measure one workload, without a baseline")
    run.add_argument("factory", metavar="FACTORY", help="package.module:function")
    run.add_argument("params", nargs="*", metavar="key=value", help="the factory's parameters")
    run.add_argument("--device", choices=DEVICES, help=f"default: {GPU} where there is one")
    run.add_argument("--gpus", type=int, default=1, metavar="N", help="ranks (%(default)s)")
    run.add_argument("--launches", type=int, metavar="N", help="timed launches (3; 1 on a CPU)")
    run.add_argument("--json", metavar="PATH", help="write the result as one JSON document")
    run.set_defaults(call=_run)
    doctor = commands.add_parser("doctor", help="is this machine fit, and is there a baseline?")
    doctor.set_defaults(call=lambda options: examine(root, options.baselines))
    cli_baselines.add_commands(commands, root)
    cli_waive.add_command(commands, root)
    cli_calibrate.add_commands(commands, root)
    doctor.add_argument("--baselines", type=Path, default=baselines, metavar="DIR")
    return dict(commands.choices)


def parse_params(pairs: list[str]) -> dict[str, Scalar]:
    """ "batch=64" -> {"batch": 64}. Values are JSON scalars, anything else is a string.

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


def _run(options: argparse.Namespace) -> int:
    params = parse_params(options.params)
    gpus = tuple(visible_gpus())
    device = str(params.pop("device", None) or options.device or (GPU if gpus else CPU))
    default = 3 if is_gpu(device) else 1
    launches = default if options.launches is None else options.launches
    if options.gpus < 1:
        raise UsageError(f"--gpus {options.gpus}: at least 1 is needed")
    case = Case(
        "run", options.factory, params, device=device, world_size=options.gpus, launches=launches
    )
    shell.refuse_target(options.json)
    root = root_of(Path.cwd())
    typed = ["python", "-m", "stepguard", *sys.argv[1:]]
    suite = Suite(root, root / "baselines", gpus, typed)
    live = _live(suite)
    live.plan([(case.id, device)])
    live.begin(case.id)
    try:
        result = suite.run(case, live.stage)
    finally:
        live.end()
    for line in shell.figures(result):
        print(line)
    if not _measured(result):
        print(explain.block(result.verdict, str(result.evidence_path)), file=sys.stderr)
    shell.put_json(documents.result_document(result), options.json, result.evidence_path)
    return 0 if _measured(result) else 1


def _measured(result: Result) -> bool:
    """Whether there is a sound measurement; what a baseline says of it is not asked here."""
    return measurement_problem(result.evidence) is None


def _live(suite: Suite) -> ProgressLine:
    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    return ProgressLine(
        write,
        terminal=sys.stderr.isatty(),
        verbose=True,
        width=100,
        expected_s=suite.store.last_wall_s(),
    )
