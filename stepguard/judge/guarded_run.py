"""What a run is, or was: the facts that the guard looks at, whichever door asks. Pure.

pytest describes its own run (plugin/strict_run.py). The command ``gate`` describes a run by its
document (judge/gate_decision.py). What a door does not know stays empty, and is no problem.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import Enum

from stepguard.core.baseline import Entry
from stepguard.core.margins import Margins
from stepguard.core.permission import Permission
from stepguard.core.run_document import CaseState, End, Problem
from stepguard.core.status import Outcome, Status
from stepguard.core.verdict import Verdict


class Door(Enum):
    """Say who asks."""

    PYTEST = "pytest, of its own strict run"
    GATE = "the command gate, of a run's document"


@dataclass(frozen=True)
class Option:
    """An option of the run that makes it guard less, if the wrong place says it."""

    name: str
    value: str = ""
    typed: bool = True  # by the command itself, not by settings or PYTEST_ADDOPTS


@dataclass(frozen=True)
class Tree:
    """The measured tree beside its commit."""

    commit: str
    no_commit: str = ""  # why it has none
    dirty: Sequence[str] = ()  # paths that differ from the commit
    left_out: Sequence[str] = ()  # baselines of the commit that a sparse checkout leaves out


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What a case that was measured came to."""

    commit: str
    dirty: Sequence[str]
    tree_changed: bool
    outcome: Outcome
    status: Status
    recorded: bool
    judged_by: str | None  # a recording's digest; None: by pairs, or by another file's recording
    # The variables that steer which the other revision's launches had, where pairs were measured.
    steering: str | None = None
    verdict: Verdict | None = None  # where the door did not judge it itself ...
    headline: str = ""  # ... and its first line


@dataclass(frozen=True, kw_only=True)
class RunCase:
    """A case that the run measures, or measured."""

    id: str
    parameters: Mapping[str, object]  # as a recording has them
    device: str
    ranks: int
    gates: tuple[str, ...]
    covered: Sequence[str] = ()  # metrics that others of its gates judge for
    margins: Margins
    as_declared: bool = True  # its test measures what it declares
    result: CaseResult | None = None
    may_fail: bool = False  # a mark xfail of its test says so
    record: str = ""  # the command that records it as it is
    waive: str = ""  # the command that waives one of its metrics


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the run ended."""

    passes: bool  # with exit status 0
    strict: bool = True
    end: End = End.FINISHED
    knows_cases: bool = True  # they were collected in this process
    gpus: int = 0


@dataclass(frozen=True)
class Base:
    """What the gate knows without the document."""

    commit: str  # that should have been measured, in full
    gpus: int  # of the machine that should have measured it, at the least
    recorded: Mapping[str, Mapping[str, Entry]]  # by machine and case, as the base branch has them
    today: date
    against: str = ""  # the commit, in full, that a run may have been measured in pairs with
    # The base's waivers, and the trailers of the commits from ``against`` to ``commit``.
    permissions: Sequence[Permission] = ()


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run is, or was, as far as the door knows by now."""

    door: Door
    expected: Mapping[str, Entry]  # the base's recordings, by case
    # The files that cases are recorded in, as far as the door knows.
    files: Mapping[str, str] = field(default_factory=dict)
    branch: str = ""  # whose recordings ``expected`` are; empty: the tree's own, or not known
    must_measure: Sequence[str] = ()  # ids of cases
    machine: str = ""
    options: Sequence[Option] = ()
    tree: Tree | None = None
    changed: Sequence[str] = ()  # since it was started, of what launches inherit: "name old -> new"
    began: tuple[str, tuple[str, ...]] = ("", ())  # its commit, and the files that differed
    against: str = ""  # the revision that judges in pairs, as it was named
    against_commit: str | None = None  # None: not resolved yet
    no_tests: str = ""  # there is no performance test, and why
    states: Mapping[str, CaseState] = field(default_factory=dict)  # by case
    open: bool = False  # a test that declares no case may still measure any
    cases: Sequence[RunCase] = ()
    ending: Ending | None = None  # None: it goes on
    problems: Sequence[Problem] = ()  # that it is known to have
    base: Base | None = None  # the gate's

    def file_of(self, case_id: str) -> str:
        """Return the file that a case is recorded in, and of which branch it is."""
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
    """A reason why a run may not count. ``alone`` asks it, for the reason ``why``; without one
    both doors ask.
    """

    problems: Callable[[Run], Problems]
    alone: Door | None = None
    why: str = ""
