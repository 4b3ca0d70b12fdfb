"""Traces of a user's own workload: run CASE --trace DIR."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, progress_line, say
from stepguard.core.case import Case
from stepguard.core.text import printable
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.machine.interpreter import as_typed
from stepguard.measure.combine_ranks import Answers
from stepguard.measure.suite import Suite

USUAL_PLAN = (3, 2, 4)
TRACES = (".json", ".json.gz", ".sqlite")  # suffixes of files with traces


def add_trace_options(run: argparse.ArgumentParser) -> None:
    """Add the options of a run that records traces instead of measuring."""
    text = "record a trace of each rank into this folder, instead of measuring"
    run.add_argument("--trace", type=Path, metavar="DIR", help=text)
    run.add_argument("--with-stack", action="store_true", help="traces with lines of Python")
    run.add_argument("--shapes", action="store_true", help="traces with the operators' shapes")
    text = "steps unprofiled, as the profiler's warm-up, and recorded (3,2,4)"
    run.add_argument("--schedule", type=plan, metavar="WAIT,WARMUP,ACTIVE", help=text)


def plan(text: str) -> tuple[int, int, int]:
    """Return the numbers of steps to wait, to warm up and to record. Raises ArgumentTypeError."""
    try:
        wait, warmup, active = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write three numbers, 5,5,4 for one") from None
    if min(wait, warmup) < 1 or active < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: at least 1,1,2; the last step is left out")
    return wait, warmup, active


def refuse_trace_options(options: argparse.Namespace) -> None:
    """Raise UsageError for options that need --trace, for options that contradict it, and for a
    folder that already has traces.
    """
    if options.trace is None and (options.with_stack or options.shapes or options.schedule):
        raise UsageError("--with-stack, --shapes and --schedule are for traces: add --trace DIR")
    if options.trace is not None and (options.json or options.launches):
        raise UsageError("--trace records and measures nothing: leave out --json and --launches")
    if options.trace is not None and (traces := traces_in(options.trace)):
        # The old traces may be the other side of a comparison. New ones would mix with them.
        kept = f"it has a trace already, {traces[0].name}, which is kept"
        raise UsageError(f"--trace {options.trace}: {kept}. Name a new folder")


def record(suite: Suite, case: Case, options: argparse.Namespace) -> int:
    """Write a trace of each rank, and print how to read them."""
    folder = new_folder(options.trace)
    answers = ask(
        suite,
        case,
        "trace",
        folder=str(folder),
        plan=options.schedule or USUAL_PLAN,
        with_stack=options.with_stack,
        shapes=options.shapes,
    )
    for rank in answers:
        say(f"{Path(rank['path']).name}: {rank['steps']} steps, {rank['bytes'] / 2**20:.2f} MiB")
    read = as_typed(f"stepguard trace {shlex.quote(str(options.trace))}")
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


def ask(suite: Suite, case: Case, command: str, **arguments: Any) -> Answers:
    """Return the answers of the case's ranks, with progress. Raises ValueError if one fails."""
    line = progress_line(suite.root, [case])
    try:
        with line.case(case.id):
            return suite.ask(case, line.stage, command, **arguments)
    except LaunchFailed as failed:
        fault = failed.fault
        sys.stderr.writelines(f"  {printable(line)}\n" for line in fault.detail.splitlines())
        raise ValueError(f"{case.id}, {fault.during}: {fault.message}") from None


def traces_in(folder: Path) -> list[Path]:
    """Return the traces in a folder; empty if the folder does not exist."""
    return sorted(file for file in folder.glob("*") if file.name.endswith(TRACES))
