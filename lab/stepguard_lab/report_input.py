"""What a report shows: verdicts of a run's document, or of kept evidence, each with its evidence.

A document holds verdicts and figures. Single steps, profiles, places and the machine's state are in
the evidence that the run kept, which is read where it can be found.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from stepguard.cli.common import verdict_of_run
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.permission import Permission
from stepguard.core.profile import Profile
from stepguard.core.recording import Recording
from stepguard.core.run_document import Page, ResultDocument, RunDocument
from stepguard.core.verdict import Verdict
from stepguard.judge.compare_profiles import restored
from stepguard.judge.judge_recordings import alike
from stepguard.machine.git.worktree import FOLDER
from stepguard.machine.interpreter import as_typed
from stepguard.report.verdict_text import page_of
from stepguard.storage import baseline_files
from stepguard.storage.baseline_files import load_waivers, today
from stepguard.storage.json_file import FileError
from stepguard.storage.kept_runs import (
    COMPARISON,
    EVIDENCE,
    Store,
    kept_files,
    pairs_beside,
    read_comparison,
    read_evidence,
)
from stepguard.storage.run_document_file import load_document


@dataclass(frozen=True)
class MeasuredCase:
    """A case's verdict, and the evidence and recording that belong to it."""

    verdict: Verdict
    text: Page
    result: ResultDocument | None = None  # of a run's document
    evidence: Evidence | None = None  # of this revision
    pairs: Comparison | None = None
    recording: Recording | None = None  # the newest that it was judged by
    missing: str = ""  # why there is no evidence, or no recording

    @property
    def base(self) -> Evidence | None:
        """Return the other revision's evidence, where pairs were measured."""
        return self.pairs.base if self.pairs else None

    @property
    def counted(self) -> Evidence | None:
        """Return this revision's evidence with counts: that of the pairs, which is counted like the
        other side, or else that of the run.
        """
        own = self.pairs.head if self.pairs else None
        return own if own and own.counts else self.evidence

    @property
    def profiles(self) -> tuple[Profile | None, Profile | None]:
        """Return the profile of this revision, and of what it is compared with."""
        own = self.counted.counted.profile if self.counted else None
        if self.base is not None:
            return own, self.base.counted.profile
        if self.recording is None or self.recording.profile is msgspec.UNSET:
            return own, None
        return own, restored(self.recording.profile)


@dataclass(frozen=True)
class ReportedRun:
    """A run: where it was read, its document if there is one, and its cases."""

    source: str
    document: RunDocument | None
    cases: tuple[MeasuredCase, ...]


def read_runs(sources: Sequence[Path], root: Path, baselines: Path) -> Iterator[ReportedRun]:
    """Yield the runs that paths name, or the newest that the project ``root`` kept.

    A path is a run's document, a folder of kept evidence, or a file in one. Raises FileError,
    naming it, for anything else, and where nothing is kept.
    """
    last = Store(root).last_folder()
    if not sources and not last.is_dir():
        raise FileError(f"{last}: nothing is kept; measure: {as_typed('pytest perf_tests')}")
    for path in sources or [last]:
        if path.is_dir() or path.name in (EVIDENCE, COMPARISON):
            yield ReportedRun(str(path), None, tuple(_kept(path, baselines)))
        else:
            document, beside = load_document(path), path.absolute().parent
            folders = (root, beside, beside.parent)
            cases = [_of_result(result, folders, baselines) for result in document.results]
            yield ReportedRun(str(path), document, tuple(cases))


def _kept(source: Path, baselines: Path) -> Iterator[MeasuredCase]:
    """Yield the cases below a folder, judged by today's baselines and waivers."""
    files, alone = kept_files(source)
    if source.name == COMPARISON:
        files, alone = [], [source]
    if not files and not alone:
        raise FileError(f"{source}: no {EVIDENCE} or {COMPARISON} is below it; measure again")
    waivers = load_waivers(baselines, today())
    for path in files:
        yield _judged(read_evidence(path), pairs_beside(path), baselines, waivers)
    for path in alone:
        yield _judged(None, read_comparison(path), baselines, waivers)


def _judged(
    evidence: Evidence | None,
    pairs: Comparison | None,
    baselines: Path,
    waivers: Sequence[Permission],
) -> MeasuredCase:
    verdict = verdict_of_run(evidence, pairs, baselines, waivers)
    recording, why = (None, "") if evidence is None else _recording(evidence, baselines, "")
    head = pairs.head if evidence is None and pairs else evidence
    return MeasuredCase(verdict, page_of(verdict), None, head, pairs, recording, why)


def _of_result(result: ResultDocument, folders: Sequence[Path], baselines: Path) -> MeasuredCase:
    try:
        evidence, pairs = _evidence_of(result, folders)
        recording, why = _recording(evidence, baselines, result.judged_by)
    except FileError as error:
        return MeasuredCase(result.verdict, result.text, result, missing=str(error))
    return MeasuredCase(result.verdict, result.text, result, evidence, pairs, recording, why)


def _evidence_of(
    result: ResultDocument, folders: Sequence[Path]
) -> tuple[Evidence, Comparison | None]:
    """Return what was kept of a result. Raises FileError where it is not in any of the folders.

    Anybody may have written the document, so a path that leads out of these folders is refused.
    """
    path = PurePosixPath(result.evidence)
    inside = not path.is_absolute() and ".." not in path.parts
    # An artifact holds what is in .stepguard without that folder.
    names = (path, path.relative_to(FOLDER)) if path.parts[:1] == (FOLDER,) else (path,)
    places = [folder / name for folder in folders for name in names if inside]
    existing = [place for place in places if place.is_file()]
    if not existing or path.name not in (EVIDENCE, COMPARISON):
        raise FileError(
            f"{result.evidence or 'its evidence'} is not here. Single steps, profile, lines and "
            "telemetry are in it: put it where the document names it, from the project's folder"
        )
    pairs = read_comparison(existing[0]) if path.name == COMPARISON else pairs_beside(existing[0])
    evidence = pairs.head if path.name == COMPARISON and pairs else read_evidence(existing[0])
    if evidence.case_id != result.case:
        raise FileError(f"{result.evidence} is of {evidence.case_id}, not of {result.case}")
    return evidence, pairs


def _recording(evidence: Evidence, baselines: Path, judged_by: str) -> tuple[Recording | None, str]:
    """Return the newest recording under the evidence's software, or why there is none.

    ``judged_by`` is the digest of the entry that judged; empty for whatever is recorded today.
    """
    path = baseline_files.path_of(baselines, evidence)
    try:
        content = baseline_files.load(path)
        entry = content.cases.get(evidence.case_id) if content else None
        if entry is None or evidence.fingerprint is None:
            return None, ""
        if judged_by and entry.digest != judged_by:
            return None, f"{path} holds another baseline than the one that judged"
        recordings = alike(entry.level, evidence)
        newest = recordings[-1] if recordings else entry.newest
        if newest.profile is not msgspec.UNSET:
            restored(newest.profile)
    except (FileError, ValueError) as error:
        return None, str(error)
    return newest, ""
