"""Parts of several commands: usage errors, the folder of baselines, kept evidence, documents."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from stepguard.baseline_file import Entry
from stepguard.case import Case
from stepguard.comparison import Comparison
from stepguard.evidence import Evidence
from stepguard.gpu.nvml import visible_gpus
from stepguard.judge.ab.confirm import confirmed, may_ask, to_confirm
from stepguard.judge.ab.decision import judge_ab
from stepguard.judge.screen import comparable, judge
from stepguard.judge.waivers import final, waive
from stepguard.launch.scheduler import Launcher
from stepguard.measure.suite import Suite
from stepguard.report import documents
from stepguard.report.commands import Commands
from stepguard.report.progress_line import Display, ProgressLine, columns, has_cursor
from stepguard.storage import baselines as baseline
from stepguard.storage.runs import Store, kept_files, read_evidence
from stepguard.storage.waivers import today
from stepguard.text import printable
from stepguard.verdict import Verdict
from stepguard.waiver import Waiver
from stepguard.worker.interpreter import as_typed, interpreter

STDOUT = "-"  # in place of a file's path: the last line that is printed


class UsageError(ValueError):
    """An error in the command line itself, whatever the state of the tree: exit status 2."""


def say(*lines: object) -> None:
    """Print lines, none of which can steer the terminal or the CI log that shows them."""
    for line in lines:
        print(printable(line), flush=True)


def complain(problem: object) -> None:
    """Print what is wrong to standard error."""
    print(printable(f"stepguard: {problem}"), file=sys.stderr)


def suite_of(root: Path, launcher: Launcher | None = None) -> Suite:
    """Return what measures for a command in the project ``root``, on this machine's GPUs."""
    typed = ["python", "-m", "stepguard", *sys.argv[1:]]
    return Suite(root, baseline.usual(root), tuple(visible_gpus()), typed, launcher=launcher)


def progress_line(root: Path, cases: Sequence[Case]) -> ProgressLine:
    """Return a line on standard error for these cases of a command in the project ``root``."""

    def write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()

    display = Display(write, has_cursor(sys.stderr), lambda: columns(sys.stderr))
    devices = {case.id: case.device for case in cases}
    return ProgressLine(display, True, devices, Store(root).last_wall_s(cases))


def table_width() -> int:
    """Return how wide a table may be that is printed; 0 for any width, in a file."""
    return columns(sys.stdout) if sys.stdout.isatty() else 0


def add_parser(
    commands: Any, root: Path, name: str, call: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add and return the parser of a command that works on the baselines of the project ``root``;
    ``commands`` is what argparse's add_subparsers() gave.
    """
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    usual = "folder of the baseline files (%(default)s)"
    folder = baseline.usual(root)
    command.add_argument("--baselines", type=Path, default=folder, metavar="DIR", help=usual)
    command.set_defaults(root=root, call=call)
    return command


def add_evidence(command: argparse.ArgumentParser, cases: str) -> None:
    """Add the cases and the evidence that a command is about; ``cases`` are the default."""
    command.add_argument("case", nargs="*", metavar="CASE", help=f"default: {cases}")
    command.add_argument("--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run")


def commands_of(options: argparse.Namespace) -> Commands:
    """Return commands as they are typed here, about this command's folder of baselines."""
    usual = baseline.usual(options.root)
    named = "" if options.baselines == usual else str(options.baselines)
    return Commands(Path.cwd(), interpreter(Path.cwd()), named)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add the option for a command's document."""
    text = "write the result as one JSON document; - prints it as the last line"
    command.add_argument("--json", metavar="PATH", help=text)


def verdict_today(evidence: Evidence, folder: Path) -> Verdict:
    """Return the screen's verdict by today's baseline on the evidence."""
    return judge(evidence, _entry_today(evidence, folder))


def _entry_today(evidence: Evidence, folder: Path) -> Entry | None:
    path = baseline.path_of(folder, evidence)
    content = baseline.load_for(path, baseline.machine_of(evidence))
    return content.cases.get(evidence.case_id) if content else None


def verdict_of_run(
    evidence: Evidence | None, pairs: Comparison | None, folder: Path, waivers: Sequence[Waiver]
) -> Verdict:
    """Return the verdict as a run ends with it, by today's baselines and waivers; ``pairs`` are
    those that were kept of its confirmation. Without evidence they alone judge.
    """
    if evidence is None:
        assert pairs is not None, "nothing was measured"
        return waive(judge_ab(pairs), pairs.head, waivers, today())
    entry = _entry_today(evidence, folder)
    found = waive(judge(evidence, entry), evidence, waivers, today())
    recordings = comparable(entry.level, evidence) if entry and evidence.fingerprint else []
    # Another commit in place of the recording's own, or of a level since, excuses nothing.
    own = pairs is not None and [pairs.base.commit] == [one.commit for one in recordings[:1]]
    if pairs is not None and (to_confirm(found) or own and may_ask(found, [pairs])):
        found = confirmed(found, pairs, pairs.named, own, steps=evidence.timed_steps)
    return final(found, evidence, waivers, today())


def named_files(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Return the files of evidence that the options name, and the comparisons beside none."""
    if options.evidence:
        return kept_files(Path(options.evidence))
    store = Store(options.root)
    # A named case's newest, of whatever run: the last run may have measured other cases only.
    return list(store.newest().values()) if options.case else store.last_run(), []


def wanted_evidence(
    options: argparse.Namespace, paths: Sequence[Path], judged: Collection[str] = ()
) -> list[tuple[Path, Evidence]]:
    """Return the evidence in these files of named_files() that is of the cases in the options, by
    file: a case may have some of several machines. Those that are ``judged`` by something else need
    not have any.

    Raises ValueError when there is none, or a case is unknown, FileError for a file that is none.
    """
    store = Store(options.root)
    source = str(Path(options.evidence) if options.evidence else store.runs)
    if not options.evidence and paths and not options.case and not store.is_newest(paths[0]):
        say(f"the last run left no evidence; that of {os.path.relpath(paths[0].parents[1])}:")
    found = [(path, read_evidence(path)) for path in paths]
    known = {*judged, *(evidence.case_id for _, evidence in found)}
    unknown = [case_id for case_id in options.case if case_id not in known]
    against, folder = ("", store.runs) if options.evidence else store.last_against()
    # Before the other errors: they would send the reader looking for evidence that never was.
    if against and (unknown or not found):
        raise ValueError(
            f"{source}: the last run judged against {against}, which leaves nothing to accept; "
            f"measure: {as_typed('pytest perf_tests')}; what it said: "
            + as_typed(f"stepguard judge --evidence {shlex.quote(os.path.relpath(folder))}")
        )
    if not known:
        here = f"nothing is kept; measure: {as_typed('pytest perf_tests')}"
        there = "no evidence.json is below it"
        raise ValueError(f"{source}: {there if options.evidence else here}")
    if unknown:
        listed = ", ".join(sorted(known))
        raise ValueError(f"no evidence of {unknown[0]!r} in {source}; it has: {listed}")
    return [item for item in found if item[1].case_id in (options.case or known)]


def refuse_target(target: str | Path | None, option: str = "--json") -> None:
    """Raise UsageError for a file that the option cannot write, before hours of measuring."""
    if target and target != STDOUT and (problem := documents.unwritable(Path(target))):
        raise UsageError(f"{option} {target}: {problem}")


def put_json(document: Any, target: str | None) -> None:
    """Write the document where it was asked for: into a file, or as the last line that is printed.

    Raises ValueError for a file that cannot be written.
    """
    if not target:
        return
    text = documents.as_json(document, indent=-1)
    if target == STDOUT:
        say(text)
    elif problem := documents.put(Path(target), text + "\n"):
        raise ValueError(f"--json {target}: {problem}; the evidence is kept")
