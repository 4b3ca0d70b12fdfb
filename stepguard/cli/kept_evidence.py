"""Kept evidence for a command: which files, and what today's baselines say of it."""

import argparse
import os
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from stepguard.cli.common import say
from stepguard.core.baseline import Entry
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.permission import Permission
from stepguard.core.question import Answer, Question
from stepguard.core.verdict import Verdict
from stepguard.judge.judge_recordings import alike
from stepguard.judge.rule_book import judge
from stepguard.machine.interpreter import as_typed
from stepguard.storage import baseline_files as baseline
from stepguard.storage.kept_runs import Store, kept_files, read_evidence
from stepguard.storage.waiver_file import today


def add_evidence(command: argparse.ArgumentParser, cases: str) -> None:
    """Add the arguments for cases and evidence. ``cases`` says which are the default."""
    command.add_argument("case", nargs="*", metavar="CASE", help=f"default: {cases}")
    command.add_argument("--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run")


def verdict_today(evidence: Evidence, folder: Path, waivers: Sequence[Permission] = ()) -> Verdict:
    """Return what today's baseline and waivers say of the evidence, without pairs."""
    entry = _entry_today(evidence, folder)
    return judge(Question(evidence, entry, permissions=tuple(waivers), today=today()))


def _entry_today(evidence: Evidence, folder: Path) -> Entry | None:
    path = baseline.path_of(folder, evidence)
    content = baseline.load_for(path, baseline.machine_of(evidence))
    return content.cases.get(evidence.case_id) if content else None


def verdict_of_run(
    evidence: Evidence | None,
    pairs: Comparison | None,
    folder: Path,
    waivers: Sequence[Permission],
) -> Verdict:
    """Return the verdict that a run would end with, by today's baselines and waivers. ``pairs`` are
    the kept pairs of its confirmation. Without evidence the pairs alone judge.
    """
    permissions, day = tuple(waivers), today()
    if evidence is None:
        assert pairs is not None, "nothing was measured"
        return judge(Question(pairs=pairs, permissions=permissions, today=day))
    entry = _entry_today(evidence, folder)
    recordings = alike(entry.level, evidence) if entry and evidence.fingerprint else []
    # Pairs with another commit than the recording's, or with one from a later level, clear nothing.
    recorded_at = [recording.commit for recording in recordings[:1]]
    own = pairs is not None and [pairs.base.commit] == recorded_at
    answer = Answer(pairs.named, pairs, own) if pairs is not None else None
    return judge(Question(evidence, entry, answer=answer, permissions=permissions, today=day))


def named_files(options: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Return the files of evidence that the options name, and the comparisons without evidence."""
    if options.evidence:
        return kept_files(Path(options.evidence))
    store = Store(options.root)
    # For a named case the newest evidence of any run: the last run may have measured other cases.
    return list(store.newest().values()) if options.case else store.last_run(), []


def wanted_evidence(
    options: argparse.Namespace, paths: Sequence[Path], judged: Collection[str] = ()
) -> list[tuple[Path, Evidence]]:
    """Return each file with its evidence, for the cases that the options name, or for all if they
    name none. ``paths`` are the files of named_files(). A case may have evidence of several
    machines. A case in ``judged`` is judged without evidence.

    Raises ValueError if there is no evidence, or if a case is unknown; FileError if a file is no
    evidence.
    """
    store = Store(options.root)
    source = str(Path(options.evidence) if options.evidence else store.runs)
    if not options.evidence and paths and not options.case and not store.is_newest(paths[0]):
        say(f"the last run left no evidence; that of {os.path.relpath(paths[0].parents[1])}:")
    kept = [(path, read_evidence(path)) for path in paths]
    known = {*judged, *(evidence.case_id for _, evidence in kept)}
    unknown = [case_id for case_id in options.case if case_id not in known]
    against, folder = ("", store.runs) if options.evidence else store.last_against()
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
    return [item for item in kept if item[1].case_id in (options.case or known)]
