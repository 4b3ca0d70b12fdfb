"""The evidence of past runs, kept under .stepguard/ so that a number can be accepted unmeasured.

.stepguard/runs/20261121T101500Z-4711/<case>/evidence.json    one case of one run
.stepguard/runs/.../<case>/comparison.json                    with another revision's tree
.stepguard/runs/.../<case>/launch-1/ranks/...                 its logs
.stepguard/cache/                                             compile caches of this checkout
.stepguard/trees/                                             other revisions (git/worktree.py)
"""

import contextlib
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stepguard.comparison import Comparison
from stepguard.comparison import from_json as comparison_from_json
from stepguard.comparison import to_json as comparison_json
from stepguard.evidence import Evidence, from_json, to_json

FOLDER = ".stepguard"
KEPT_RUNS = 20
EVIDENCE = "evidence.json"
COMPARISON = "comparison.json"


class StoreError(Exception):
    """Evidence cannot be kept; one sentence with the remedy."""


@dataclass(frozen=True)
class Measured:
    """What a run left of a case: its evidence, and, where that is all of it, what was measured
    beside another revision.
    """

    evidence: Evidence  # HEAD's side of a comparison
    comparison: Comparison | None = None


def measured_below(folder: Path) -> list[Path]:
    """What each case of each run left at any depth of a folder, oldest run first: its evidence, or
    else its comparison. A confirmation leaves both, and the evidence is what it is about.
    """
    names = (COMPARISON, EVIDENCE)
    left = {path.parent: path for name in names for path in folder.rglob(name)}
    return [left[case] for case in sorted(left)]


def read_measured(path: Path) -> Measured:
    """Raises OSError or ValueError for a file that is neither."""
    if path.name != COMPARISON:
        return Measured(from_json(path.read_bytes(), str(path)))
    comparison = comparison_from_json(path.read_bytes(), str(path))
    return Measured(comparison.head, comparison)


def keep_out_of_git(folder: Path) -> None:
    """Make git ignore a folder that is there: what we keep must not dirty the tree."""
    (folder / ".gitignore").write_text("*\n")


def root_of(folder: Path) -> Path:
    """The project's root: the nearest folder upwards with pytest.ini, pyproject.toml or .git."""
    for candidate in (folder, *folder.parents):
        if any((candidate / name).exists() for name in ("pytest.ini", "pyproject.toml", ".git")):
            return candidate
    return folder


class Store:
    """The runs of one checkout."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER
        self.cache = self.folder / "cache"
        self.runs = self.folder / "runs"

    def new_run(self) -> Path:
        """A folder for a run that begins; the oldest beyond KEPT_RUNS go.

        Raises StoreError when the folder cannot be made.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        fresh = self.runs / f"{stamp}-{os.getpid()}"
        try:
            fresh.mkdir(parents=True)
            self.tidy()
        except OSError as error:
            raise StoreError(
                f"{fresh}: cannot be made: {error.strerror}; evidence is kept there, so make "
                f"{self.folder.parent} writable or free some space"
            ) from None
        return fresh

    def tidy(self) -> None:
        """Remove the oldest runs beyond KEPT_RUNS, and keep git from seeing the others.

        Raises OSError when that cannot be done.
        """
        self.runs.mkdir(parents=True, exist_ok=True)
        (self.folder / ".gitignore").write_text("*\n")  # evidence must not dirty the tree
        for old in sorted(self.runs.iterdir())[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)

    def keep(self, run: Path, slug: str, evidence: Evidence) -> Path:
        """Write a case's evidence into its run, whole or not at all.

        Raises StoreError, with the values that would be lost, when it cannot be written.
        """
        return _kept(run / slug / EVIDENCE, to_json(evidence), evidence)

    def keep_comparison(self, run: Path, slug: str, found: Comparison) -> Path:
        """Write what was measured in two trees, beside the case's own evidence, as keep() does.

        It is no evidence to accept: parked groups are no launches of the protocol.
        """
        return _kept(run / slug / COMPARISON, comparison_json(found), found.head)

    @staticmethod
    def of_the_same_run(path: Path) -> list[Path]:
        """The evidence files of the run that this one is from, itself included."""
        return sorted({path, *path.parent.parent.glob(f"*/{EVIDENCE}")})

    def _runs(self) -> list[Path]:
        """The folders of all runs, oldest first."""
        return sorted(self.runs.iterdir()) if self.runs.is_dir() else []

    def newest(self) -> dict[str, Path]:
        """The newest evidence file of every case, by case id."""
        return {case_id: path for case_id, (path, _) in self._newest().items()}

    def _newest(self) -> dict[str, tuple[Path, Evidence]]:
        found: dict[str, tuple[Path, Evidence]] = {}
        for run in self._runs():
            for path in sorted(run.glob(f"*/{EVIDENCE}")):
                with contextlib.suppress(OSError, ValueError):
                    evidence = from_json(path.read_bytes(), str(path))
                    found[evidence.case_id] = (path, evidence)
        return found

    def last_run(self) -> list[Path]:
        """The evidence files of the newest run; none if it was interrupted before it had any.

        An older run's must not stand in for them: it may have measured another tree.
        """
        runs = self._runs()
        return sorted(runs[-1].glob(f"*/{EVIDENCE}")) if runs else []

    def measured(self) -> list[Measured]:
        """Everything that is kept and can be read, oldest run first."""
        found = []
        for path in measured_below(self.runs):
            with contextlib.suppress(OSError, ValueError):
                found.append(read_measured(path))
        return found

    def last_against(self) -> str:
        """The other revision of the newest run, where that left comparisons and no evidence."""
        runs = self._runs()
        for path in measured_below(runs[-1]) if runs else ():
            with contextlib.suppress(OSError, ValueError):
                comparison = read_measured(path).comparison
                return comparison.against if comparison else ""
        return ""

    def last_wall_s(self) -> dict[str, float]:
        """How long each case took the last time, for the live line."""
        newest = self._newest().items()
        return {case_id: found.wall_s for case_id, (_, found) in newest if not found.faults}


def _kept(path: Path, data: bytes, evidence: Evidence) -> Path:
    temporary = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(
            f"{path}: cannot be written: {error.strerror}; what was measured: {evidence.values()}"
        ) from None
    return path
