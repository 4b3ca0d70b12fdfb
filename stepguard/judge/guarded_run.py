"""The description of a run: the facts that the guard looks at, for both doors. Pure.

pytest describes its own run (plugin/strict_run.py). The command ``gate`` describes the run of a
document (judge/gate_decision.py). A fact that a door does not know is empty, which is no problem.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum

from stepguard.core.baseline import Entry
from stepguard.core.margins import Margins
from stepguard.core.permission import Permission
from stepguard.core.run_document import CaseState, End, Problem
from stepguard.core.verdict import Verdict
from stepguard.judge.comparable import Conditions


class Door(Enum):
    """Who asks the guard."""

    PYTEST = "pytest, of its own strict run"
    GATE = "the command gate, of a run's document"


@dataclass(frozen=True)
class Option:
    """An option of the run. Some options are refused unless the command itself gives them."""

    name: str
    value: str = ""
    typed: bool = True  # given by the command itself, not by settings or PYTEST_ADDOPTS


@dataclass(frozen=True)
class Tree:
    """The measured tree, compared with its commit."""

    commit: str
    no_commit: str = ""  # why the tree has no commit
    dirty: Sequence[str] = ()  # paths that differ from the commit
    left_out: Sequence[str] = ()  # baselines of the commit that a sparse checkout left out


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The result of a case that was measured."""

    commit: str
    dirty: Sequence[str]
    tree_changed: bool
    verdict: Verdict
    headline: str = ""  # the verdict's first line, if it is from a document
    judged_by: str | None  # a recording's digest; None: by pairs, or by another file's recording
    base: Conditions | None = None  # the other revision's conditions, if pairs were measured


@dataclass(frozen=True, kw_only=True)
class RunCase:
    """A case that the run measures or has measured."""

    id: str
    parameters: Mapping[str, object]  # as a recording has them
    device: str
    ranks: int
    gates: tuple[str, ...]
    covered: Sequence[str] = ()  # metrics that are not measured, since another gate contains them
    margins: Margins
    as_declared: bool = True  # its test measures the case that the test declares
    result: CaseResult | None = None
    may_fail: bool = False  # a mark xfail lets its test fail
    record: str = ""  # the command that records the case as it is
    waive: str = ""  # the command that waives one of its metrics


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the run ended."""

    passes: bool  # with exit status 0
    strict: bool = True
    end: End = End.FINISHED
    knows_cases: bool = True  # the cases were collected in this process
    gpus: int = 0


@dataclass(frozen=True)
class Base:
    """What the gate knows from the base branch and its own command, not from the document."""

    commit: str  # the full hash of the commit that should have been measured
    gpus: int  # the least number of GPUs of the machine that should have measured it
    recorded: Mapping[str, Mapping[str, Entry]]  # by machine and case, as the base branch has them
    today: date
    against: str = ""  # the full hash of the commit that a run in pairs may have used
    # The base's waivers, and those that the measured commit adds.
    permissions: Sequence[Permission] = ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, as far as the door knows it: one that goes on, or one that has ended."""

    door: Door
    expected: Mapping[str, Entry]  # the base's recordings, by case
    # The file in which each case is recorded, as far as the door knows.
    files: Mapping[str, str] = field(default_factory=dict)
    branch: str = ""  # whose recordings ``expected`` are; empty: the tree's own, or not known
    must_measure: Sequence[str] = ()  # ids of cases
    machine: str = ""
    options: Sequence[Option] = ()
    tree: Tree | None = None
    # Changes since pytest started of what launches inherit: "name old -> new".
    changed: Sequence[str] = ()
    # The commit at the start, and the files that differed from it.
    began: tuple[str, tuple[str, ...]] = ("", ())
    against: str = ""  # the revision that judges in pairs, as it was named
    against_commit: str | None = None  # None: not resolved yet
    no_tests: str = ""  # why there is no performance test, if there is none
    states: Mapping[str, CaseState] = field(default_factory=dict)  # by case
    open: bool = False  # there is a test that declares no case: it may measure any
    cases: Sequence[RunCase] = ()
    ending: Ending | None = None  # None: the run goes on
    problems: Sequence[Problem] = ()  # problems that are already known
    base: Base | None = None  # None for pytest

    def file_of(self, case_id: str) -> str:
        """Return the file in which a case is recorded, and its branch, in words."""
        of = f" of {self.branch}" if self.branch and case_id in self.expected else ""
        return self.files.get(case_id, "the baselines") + of

    def recording_of(self, case_id: str) -> str:
        """Return a case's recording in words."""
        if case_id not in self.files:
            return "the base's recording"
        of = f" of {self.branch}" if self.branch else ""
        return f"its recording in {self.files[case_id].rpartition('/')[2]}{of}"


Problems = Iterator[Problem]


@dataclass(frozen=True)
class Condition:
    """A condition that a run must meet to count. ``problems`` yields why the run does not meet it.
    Both doors ask it, or only the door ``alone``; ``why`` then says why.
    """

    problems: Callable[[Run], Problems]
    alone: Door | None = None
    why: str = ""
