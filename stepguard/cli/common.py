"""Parts of several commands: usage errors, the folder of baselines, progress, documents, and kept
evidence with what today's baselines say of it.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepguard.core.case import Case
from stepguard.core.comparison import Answer, Comparison, Question
from stepguard.core.evidence import Evidence
from stepguard.core.permission import Permission
from stepguard.core.reason_sentences import no_folder
from stepguard.core.text import printable
from stepguard.core.verdict import Verdict
from stepguard.judge.judge_recordings import alike
from stepguard.judge.rule_book import judge
from stepguard.launch.nodes import Launcher
from stepguard.machine.gpu import visible_gpus
from stepguard.machine.interpreter import as_typed, interpreter
from stepguard.machine.packages import require_torch
from stepguard.measure.suite import Suite
from stepguard.report import document_json
from stepguard.report.next_steps import Commands
from stepguard.report.progress_line import Display, ProgressLine, columns, has_cursor
from stepguard.storage import baseline_files as baseline
from stepguard.storage import run_document_file
from stepguard.storage.kept_runs import Store, kept_files, read_comparison, read_evidence

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
    """Return the suite that measures for a command. Raises MachineError without a fit torch."""
    require_torch()
    typed = ["python", "-m", "stepguard", *sys.argv[1:]]
    return Suite(root, baseline.usual(root), tuple(visible_gpus()), typed, launcher=launcher)


def progress_line(root: Path, cases: Sequence[Case], verbose: bool = True) -> ProgressLine:
    """Return a progress line on standard error for these cases, in the project ``root``."""

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    display = Display(write, has_cursor(sys.stderr), lambda: columns(sys.stderr))
    devices = {case.id: case.device for case in cases}
    return ProgressLine(display, verbose, devices, Store(root).last_wall_s(cases))


def table_width() -> int:
    """Return the width of printed tables; 0, which is any width, if output goes to a file."""
    return columns(sys.stdout) if sys.stdout.isatty() else 0


def add_parser(
    commands: Any, root: Path, name: str, call: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add the parser of a command that works on the baselines of the project ``root``."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    usual = "folder of the baseline files (%(default)s)"
    folder = baseline.usual(root)
    # The default may not exist: a new repository has no baselines before its first recording.
    command.add_argument("--baselines", type=_there, default=folder, metavar="DIR", help=usual)
    command.set_defaults(root=root, call=call)
    return command


def _there(text: str) -> Path:
    """Return the folder of that name. One that is misspelt would otherwise be made."""
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
    kind: run_document_file.FileKind = run_document_file.DOCUMENT,
    inputs: Sequence[Path] = (),
) -> None:
    """Raise UsageError if the option's file cannot be written, or is one of the ``inputs``."""
    if not target or target == STDOUT:
        return
    path = Path(target)
    if path.exists() and any(source.exists() and source.samefile(path) for source in inputs):
        raise UsageError(f"{option} {target}: is a file that is read: name another one")
    if problem := run_document_file.unwritable(path, kind):
        raise UsageError(f"{option} {target}: {problem}")


def put_json(document: Any, target: str | None) -> None:
    """Write the document to a file, to STDOUT as the last line, or nowhere. Raises ValueError."""
    if not target:
        return
    text = document_json.as_json(document, indent=-1)
    if target == STDOUT:
        say(text)
    elif problem := run_document_file.put(Path(target), text + "\n"):
        raise ValueError(f"--json {target}: {problem}; the evidence is kept")


def put_text(text: str, target: Path, option: str) -> None:
    """Write the text of an option's file. Raises ValueError if that fails."""
    if problem := run_document_file.put(target, text):
        raise ValueError(f"{option} {target}: {problem}; name another file")


def add_evidence(command: argparse.ArgumentParser, cases: str) -> None:
    """Add the arguments for cases and evidence. ``cases`` says which are the default."""
    command.add_argument("case", nargs="*", metavar="CASE", help=f"default: {cases}")
    command.add_argument("--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run")


def verdict_of_run(
    evidence: Evidence | None,
    pairs: Comparison | None,
    folder: Path,
    waivers: Sequence[Permission],
) -> Verdict:
    """Return the verdict that a run would end with today, with the pairs of its confirmation."""
    permissions, day = tuple(waivers), baseline.today()
    if evidence is None:
        assert pairs is not None, "nothing was measured"
        return judge(Question(pairs=pairs, permissions=permissions, today=day))
    path = baseline.path_of(folder, evidence)
    content = baseline.load_for(path, baseline.machine_of(evidence))
    entry = content.cases.get(evidence.case_id) if content else None
    recordings = alike(entry.level, evidence) if entry and evidence.fingerprint else []
    # Pairs with another commit than the recording's, or with one from a later level, clear nothing.
    recorded_at = [recording.commit for recording in recordings[:1]]
    own = pairs is not None and [pairs.base.commit] == recorded_at
    answer = Answer(pairs.named, pairs, own) if pairs is not None else None
    return judge(Question(evidence, entry, answer=answer, permissions=permissions, today=day))


def wanted_evidence(
    options: argparse.Namespace, in_pairs: bool = False
) -> tuple[list[tuple[Path, Evidence]], list[Comparison]]:
    """Return each file with its evidence, for the cases that the options name, or for all if they
    name none. A case may have evidence of several machines. If ``in_pairs``, also return the pairs
    of cases that have no evidence beside them.

    Raises ValueError if there is nothing, or if a case is unknown; FileError if a file is no
    evidence.
    """
    store, alone = Store(options.root), list[Path]()
    if options.evidence:
        source, against, folder = Path(options.evidence), "", store.runs
        paths, alone = kept_files(source)
    else:
        source, (against, folder) = store.runs, store.last_against()
        # For a named case the newest evidence of any run: the last run may have measured others.
        paths = [*store.newest().values()] if options.case else store.last_run()
        if paths and not options.case and not store.is_newest(paths[0]):
            say(f"the last run left no evidence; that of {os.path.relpath(paths[0].parents[1])}:")
    read = map(read_comparison, alone if in_pairs else ())
    pairs = [one for one in read if not options.case or one.head.case_id in options.case]
    kept = [(path, read_evidence(path)) for path in paths]
    known = {one.head.case_id for one in pairs} | {evidence.case_id for _, evidence in kept}
    unknown = [case_id for case_id in options.case if case_id not in known]
    # Checked first: the other errors would make the reader look for evidence that never existed.
    if against and (unknown or not kept):
        raise ValueError(
            f"{source}: the last run judged against {against}; such a run cannot be accepted. "
            f"Measure: {as_typed('pytest perf_tests')}. To see its verdict: "
            + as_typed(f"stepguard judge --evidence {shlex.quote(os.path.relpath(folder))}")
        )
    if not known:
        here = f"nothing is kept; measure: {as_typed('pytest perf_tests')}"
        there = "no evidence.json is below it"
        raise ValueError(f"{source}: {there if options.evidence else here}")
    if unknown:
        listed = ", ".join(sorted(known))
        raise ValueError(f"no evidence of {unknown[0]!r} in {source}; it has: {listed}")
    return [item for item in kept if item[1].case_id in (options.case or known)], pairs
