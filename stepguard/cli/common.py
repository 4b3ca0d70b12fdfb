"""Parts of several commands: usage errors, the folder of baselines, progress, documents."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepguard.core.case import Case
from stepguard.core.shared_sentences import no_folder
from stepguard.core.text import printable
from stepguard.launch.nodes.scheduler import Launcher
from stepguard.machine.gpu.nvml import visible_gpus
from stepguard.machine.interpreter import interpreter
from stepguard.machine.requirements import require_torch
from stepguard.measure.suite import Suite
from stepguard.report import document_json
from stepguard.report.next_steps import Commands
from stepguard.report.progress_line import Display, ProgressLine, columns, has_cursor
from stepguard.storage import baseline_files as baseline
from stepguard.storage import output_files
from stepguard.storage.kept_runs import Store

STDOUT = "-"  # in place of a file's path: print the document as the last line


class UsageError(ValueError):
    """An error in the command line itself. The exit status is 2."""


def say(*lines: object) -> None:
    """Print lines. None of them can steer the terminal or the CI log that shows them."""
    for line in lines:
        print(printable(line), flush=True)


def complain(problem: object) -> None:
    """Print what is wrong to standard error."""
    print(printable(f"stepguard: {problem}"), file=sys.stderr)


def suite_of(root: Path, launcher: Launcher | None = None) -> Suite:
    """Return the suite that measures for a command in the project ``root``, on this machine's
    GPUs. Raises MachineError if torch is missing or too old.
    """
    require_torch()
    typed = ["python", "-m", "stepguard", *sys.argv[1:]]
    return Suite(root, baseline.usual(root), tuple(visible_gpus()), typed, launcher=launcher)


def progress_line(root: Path, cases: Sequence[Case]) -> ProgressLine:
    """Return a progress line on standard error for these cases, in the project ``root``."""

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    display = Display(write, has_cursor(sys.stderr), lambda: columns(sys.stderr))
    devices = {case.id: case.device for case in cases}
    return ProgressLine(display, True, devices, Store(root).last_wall_s(cases))


def table_width() -> int:
    """Return the width of printed tables; 0, which is any width, if output goes to a file."""
    return columns(sys.stdout) if sys.stdout.isatty() else 0


def add_parser(
    commands: Any, root: Path, name: str, call: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add and return the parser of a command that works on the baselines of the project ``root``.
    ``commands`` is the result of argparse's add_subparsers().
    """
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    usual = "folder of the baseline files (%(default)s)"
    folder = baseline.usual(root)
    # The default may not exist: a new repository has no baselines before its first recording.
    command.add_argument("--baselines", type=_there, default=folder, metavar="DIR", help=usual)
    command.set_defaults(root=root, call=call)
    return command


def _there(text: str) -> Path:
    """Return the folder of that name. Raises ArgumentTypeError if there is none: a folder with a
    misspelt name would otherwise be made.
    """
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(printable(f"{text}: {no_folder(text)}"))
    return Path(text)


def commands_of(options: argparse.Namespace) -> Commands:
    """Return commands as the user types them in the current folder, with the same --baselines."""
    usual = baseline.usual(options.root)
    named = "" if options.baselines == usual else str(options.baselines)
    return Commands(Path.cwd(), interpreter(Path.cwd()), named)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the option for a command's document."""
    text = "write the result as one JSON document; - prints it as the last line"
    command.add_argument("--json", metavar="PATH", help=text)


def refuse_target(
    target: str | Path | None,
    option: str = "--json",
    kind: output_files.FileKind = output_files.DOCUMENT,
    inputs: Sequence[Path] = (),
) -> None:
    """Raise UsageError if the option's file cannot be written, or if it is one of the ``inputs``,
    which would be lost. Called before hours of measuring.
    """
    if not target or target == STDOUT:
        return
    path = Path(target)
    if path.exists() and any(source.exists() and source.samefile(path) for source in inputs):
        raise UsageError(f"{option} {target}: is a file that is read: name another one")
    if problem := output_files.unwritable(path, kind):
        raise UsageError(f"{option} {target}: {problem}")


def put_json(document: Any, target: str | None) -> None:
    """Write the document to ``target``: a file, STDOUT for the last printed line, or nowhere.

    Raises ValueError if a file cannot be written.
    """
    if not target:
        return
    text = document_json.as_json(document, indent=-1)
    if target == STDOUT:
        say(text)
    elif problem := output_files.put(Path(target), text + "\n"):
        raise ValueError(f"--json {target}: {problem}; the evidence is kept")


def put_text(text: str, target: Path, option: str) -> None:
    """Write the text of an option's file. Raises ValueError if that fails."""
    if problem := output_files.put(target, text):
        raise ValueError(f"{option} {target}: {problem}; name another file")
