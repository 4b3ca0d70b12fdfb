"""The command record-traces: record a trace of each rank of a workload.

python -m stepguard record-traces 'train_step[124m-bf16]' --out traces
python -m stepguard record-traces my_model:train_step width=64 --out traces
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, progress_line, say, suite_of
from stepguard.cli.workload_arguments import RUNS_AS_IT_IS, add_workload, chosen_case
from stepguard.core.case import Case
from stepguard.core.text import printable
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.machine.interpreter import as_typed
from stepguard.measure.combine_ranks import Answers
from stepguard.measure.suite import Suite

TRACES = (".json", ".json.gz", ".sqlite")  # suffixes of files with traces


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("record-traces", help="record a trace of each rank of a workload")
    add_workload(command)
    text = "a folder without traces; it is made if it is missing"
    command.add_argument("--out", type=Path, metavar="DIR", required=True, help=text)
    command.add_argument("--with-stack", action="store_true", help="with lines of Python")
    command.add_argument("--shapes", action="store_true", help="with the operators' shapes")
    text = "steps unprofiled, as the profiler's warm-up, and recorded (3,2,4)"
    command.add_argument(
        "--schedule", type=plan, default=(3, 2, 4), metavar="WAIT,WARMUP,ACTIVE", help=text
    )
    command.set_defaults(call=_record, root=root)


def plan(text: str) -> tuple[int, int, int]:
    """Return the numbers of steps to wait, to warm up and to record. Raises ArgumentTypeError."""
    try:
        wait, warmup, active = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write three numbers, 5,5,4 for one") from None
    if min(wait, warmup) < 1 or active < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: at least 1,1,2; the last step is left out")
    return wait, warmup, active


def _record(options: argparse.Namespace) -> int:
    """Write a trace of each rank, and print how to read them."""
    # Older traces may be the other side of a comparison. New ones would mix with them.
    if traces := traces_in(options.out):
        kept = f"it has a trace already, {traces[0].name}, which is kept"
        raise UsageError(f"--out {options.out}: {kept}. Name a new folder")
    case = chosen_case(options)
    if case.loop:
        say(RUNS_AS_IT_IS.format(workload=case.workload))
    answers = ask(
        suite_of(options.root),
        case,
        "stepguard_lab.profilers.record_trace:record_trace",
        folder=str(new_folder(options.out)),
        plan=options.schedule,
        with_stack=options.with_stack,
        shapes=options.shapes,
    )
    for rank in answers:
        say(f"{Path(rank['path']).name}: {rank['steps']} steps, {rank['bytes'] / 2**20:.2f} MiB")
    read = as_typed(f"stepguard trace {shlex.quote(str(options.out))}")
    say(f"read them: {read}")
    say("see them: open a file in https://ui.perfetto.dev; it stays on this machine")
    return 0


def new_folder(path: Path) -> Path:
    """Return the absolute path of a folder, which is made if it is missing. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return path.absolute()


def ask(suite: Suite, case: Case, function: str, **arguments: Any) -> Answers:
    """Return what "module:function" returns in each of the case's ranks, with progress. Raises
    ValueError if one fails.
    """
    line = progress_line(suite.root, [case])
    try:
        with line.case(case.id):
            return suite.ask(case, line.stage, function, **arguments)
    except LaunchFailed as failed:
        fault = failed.fault
        sys.stderr.writelines(f"  {printable(line)}\n" for line in fault.detail.splitlines())
        raise ValueError(f"{case.id}, {fault.during}: {fault.message}") from None


def traces_in(folder: Path) -> list[Path]:
    """Return the traces in a folder; empty if the folder does not exist."""
    return sorted(file for file in folder.glob("*") if file.name.endswith(TRACES))
