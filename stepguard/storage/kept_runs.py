"""The evidence of past runs, kept under .stepguard/, so that a figure can be accepted later.

.stepguard/runs/20261121T101500Z-4711/<case>/evidence.json    one case of one run
.stepguard/runs/.../<case>/comparison.json                    with another revision's tree
.stepguard/runs/.../<case>/launch-1/                          its logs
.stepguard/cache/                                             compile caches (compile_cache.py)
.stepguard/trees/                                             other revisions (git/worktree.py)
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TypeVar

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison
from stepguard.core.comparison import from_json as comparison_from_json
from stepguard.core.evidence import Evidence, from_json, to_json
from stepguard.core.text import meant
from stepguard.judge.summarise_evidence import summarise
from stepguard.machine.git.worktree import FOLDER, keep_out_of_git
from stepguard.machine.interpreter import as_typed
from stepguard.storage.compile_cache import cache_of
from stepguard.storage.json_file import FileError, contents, replace_file

KEPT_RUNS = 20
STAMP = "%Y%m%dT%H%M%S.%fZ"
EVIDENCE = "evidence.json"
COMPARISON = "comparison.json"
Kept = TypeVar("Kept")


def root_of(folder: Path) -> Path:
    """Return the nearest folder, upwards, that has pytest.ini, pyproject.toml or .git."""
    for candidate in (folder, *folder.parents):
        if any((candidate / name).exists() for name in ("pytest.ini", "pyproject.toml", ".git")):
            return candidate
    return folder


class Store:
    """The runs of one checkout."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER
        self.cache = cache_of(self.folder)
        self.runs = self.folder / "runs"

    def new_run(self) -> Path:
        """Make a folder for a new run, and remove the oldest beyond KEPT_RUNS. Raises FileError."""
        # Names sort by time; the process id separates two runs that begin together.
        fresh = self.runs / f"{self._stamp()}-{os.getpid()}"
        try:
            fresh.mkdir(parents=True)
            keep_out_of_git(self.folder)
            for old in self._runs()[:-KEPT_RUNS]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise FileError(
                f"{fresh}: cannot be made: {error.strerror}; evidence is kept there, so make "
                f"{self.folder.parent} writable or free some space"
            ) from None
        return fresh

    def _stamp(self) -> str:
        """Return the time. If the clock was set back since the newest run, return a moment after
        that run: otherwise it would stay the newest, and be accepted in place of the new run.
        """
        now = datetime.now(UTC)
        for newest in self._runs()[-1:]:
            with contextlib.suppress(ValueError):  # a folder that somebody made
                then = datetime.strptime(newest.name.partition("-")[0], STAMP).replace(tzinfo=UTC)
                now = max(now, then + timedelta(microseconds=1))
        return now.strftime(STAMP)

    def keep(self, run: Path, slug: str, measured: Evidence | Comparison) -> Path:
        """Write what was measured of a case into its run. A comparison cannot be accepted, since
        its launches differ. Raises FileError, with the measured values.
        """
        evidence = measured if isinstance(measured, Evidence) else measured.head
        path = run / slug / (EVIDENCE if evidence is measured else COMPARISON)
        try:
            replace_file(path, to_json(measured))
        except OSError as error:
            values = summarise(evidence).values()
            raise FileError(
                f"{path}: cannot be written: {error.strerror}; what was measured: {values}"
            ) from None
        return path

    def _runs(self) -> list[Path]:
        return sorted(self.runs.iterdir()) if self.runs.is_dir() else []

    def newest(self) -> dict[str, Path]:
        """Return the newest readable evidence file of each case, by case id. A case's older
        evidence is not read: its folder has the same name in all runs. (Earlier versions gave it
        another name.)
        """
        newest: dict[str, Path] = {}
        read = set[str]()
        for path in (p for run in reversed(self._runs()) for p in evidence_files(run)):
            if path.parent.name not in read:
                # A damaged file, or one of an older schema, is skipped: the one before it counts.
                with contextlib.suppress(FileError):
                    newest.setdefault(read_evidence(path).case_id, path)
                    read.add(path.parent.name)
        return newest

    def last_run(self) -> list[Path]:
        """Return the evidence files of the newest run that left evidence or comparisons."""
        return evidence_files(self.last_folder())

    def is_newest(self, path: Path) -> bool:
        """Tell whether an evidence file is of the newest run of all."""
        return path.parent.parent in self._runs()[-1:]

    def last_folder(self) -> Path:
        """Return the folder of the newest run that left something, or that of all runs."""
        for run in reversed(self._runs()):
            if {EVIDENCE, COMPARISON} & {path.name for path in run.glob("*/*")}:
                return run
        return self.runs

    def measured_cases(self) -> set[str]:
        """Return the ids of all cases with kept evidence or comparisons that can be read."""
        return {*self.newest(), *(pairs.head.case_id for pairs in _pairs_alone(self.runs))}

    def last_against(self) -> tuple[str, Path]:
        """Return the other revision that the run of last_run() was compared with, and the run's
        folder. The revision is empty unless the run left only comparisons.
        """
        run = self.last_folder()
        if evidence_files(run):
            return "", run
        return next((pairs.against for pairs in _pairs_alone(run)), ""), run

    def last_wall_s(self, cases: Iterable[Case], pairs: bool = False) -> dict[str, float]:
        """Return how long each of these cases took last time, in seconds, alone or in ``pairs``."""
        runs, took_s = self._runs()[::-1], {}
        for case in cases:
            walls_s = (_wall_s(run / case.slug, case, pairs) for run in runs)
            if newest_s := next(filter(None, walls_s), None):
                took_s[case.id] = newest_s
        return took_s


def _wall_s(folder: Path, case: Case, pairs: bool) -> float | None:
    try:
        if pairs:
            both = read_comparison(folder / COMPARISON)
            sides = [both.head, both.base]
        else:
            sides = [read_evidence(folder / EVIDENCE)]
    except FileError:
        return None
    # A run that failed ended early, or waited for a deadline. A run with other parameters under the
    # same id took another time.
    asked = case.as_dict().items()
    sound = all(not side.faults and asked <= side.case.items() for side in sides)
    return sides[0].wall_s if sound else None


def evidence_files(run: Path) -> list[Path]:
    """Return the evidence of all cases of a run."""
    return sorted(run.glob(f"*/{EVIDENCE}"))


def kept_files(source: Path) -> tuple[list[Path], list[Path]]:
    """Return the evidence below a folder, and the comparisons that have none beside them."""
    if not source.is_dir():
        return ([], [source]) if _is_comparison(source) else ([source], [])
    kept = sorted(file for file in source.rglob("*.json") if file.name in (EVIDENCE, COMPARISON))
    evidence = [path for path in kept if path.name == EVIDENCE]
    measured = {path.parent for path in evidence}
    return evidence, [path for path in kept if path.parent not in measured]


def _is_comparison(path: Path) -> bool:
    """Tell whether a file begins as a comparison does. Whoever reads it refuses all other files."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return re.match(rb'\{\s*"against"', file.read(99)) is not None


def _pairs_alone(folder: Path) -> Iterator[Comparison]:
    for path in kept_files(folder)[1]:
        with contextlib.suppress(FileError):
            yield read_comparison(path)


def read_evidence(path: Path) -> Evidence:
    """Return the evidence in a file. Raises FileError for anything else."""
    return _read(path, from_json)


def read_comparison(path: Path) -> Comparison:
    """Return the comparison in a file. Raises FileError for anything else."""
    return _read(path, comparison_from_json)


def pairs_beside(evidence: Path) -> Comparison | None:
    """Return the pairs that were kept beside a case's evidence, or None. Raises FileError."""
    beside = evidence.with_name(COMPARISON)
    return read_comparison(beside) if beside.is_file() else None


def last_measured(source: Path, case_id: str) -> tuple[Evidence | None, Comparison | None]:
    """Return a case's newest evidence below a folder, with its pairs if any, or FileError."""
    seen = set[str]()
    # Names of runs sort by time.
    for folder in sorted((path.parent for path in chain(*kept_files(source))), reverse=True):
        path = folder / EVIDENCE
        evidence, pairs = read_evidence(path) if path.is_file() else None, pairs_beside(path)
        head = evidence or (pairs.head if pairs else None)
        if head is not None and head.case_id == case_id:
            return evidence, pairs
        seen |= {head.case_id} if head is not None else set()
    raise FileError(
        f"{source}: nothing was measured of {case_id}{meant(case_id, sorted(seen))}; "
        f"measure: {as_typed('pytest perf_tests')}"
    )


def _read(path: Path, decode: Callable[[bytes, str], Kept]) -> Kept:
    data = contents(path, "measure again")
    if data is None:
        raise FileError(f"{path}: no such file; measure: {as_typed('pytest perf_tests')}")
    try:
        return decode(data, str(path))
    except ValueError as error:
        raise FileError(f"{error}; measure again") from None
