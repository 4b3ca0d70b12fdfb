"""The document of a run: what was asked for, what became of every case, what was measured. Reports
and the gate on another machine know only the document. So a run that failed, stopped or was refused
writes one, too. Paths are relative to the project's folder.
"""

import re
from enum import Enum, StrEnum
from typing import Annotated, Any

import msgspec

from stepguard.core import former
from stepguard.core.case import Scalar
from stepguard.core.recording import Text
from stepguard.core.site import Site
from stepguard.core.status import Outcome, Status
from stepguard.core.strict_json import DocumentPart
from stepguard.core.verdict import Verdict, outcome_of_run

SCHEMA = 3

PAGE_MARK = "<!-- stepguard report -->"  # in the first line of a run's page, or below its DOCTYPE
SUFFIXES = (".json", ".md", ".html", ".txt")  # of the files of runs
HEAD_BYTES = 256  # so many bytes of a file are enough for describes_a_run()
_HEADS = re.compile(
    rb'(?:<!DOCTYPE html>\n)?%b\n|\{\s*"schema":\s*\d+,\s*"date":\s*"' % PAGE_MARK.encode()
)

Line = Annotated[int, msgspec.Meta(ge=0)]  # counted from 1; 0 if unknown


class State(Enum):
    """What became of a case."""

    MEASURED = "measured"
    SKIPPED = "skipped"  # by a mark, by its own test, or because this machine does not fit
    DESELECTED = "deselected"  # collected, then removed: -k, -m, a conftest
    LEFT_OUT = "left out"  # the command names other files or tests
    UNMEASURED = "unmeasured"  # its test failed, or the run ended, before the case was measured
    ABSENT = "absent"  # recorded for this machine, but no collected test has it


class End(Enum):
    """How a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"  # a usage error: nothing was measured
    FAILED = "failed"  # an internal error


class ProblemCode(StrEnum):
    """Why a run does not pass, apart from its verdicts; see docs/reason-codes.md."""

    REFUSED = "REFUSED"
    NOT_FINISHED = "NOT_FINISHED"
    NOTHING_MEASURED = "NOTHING_MEASURED"
    NOT_RECORDED = "NOT_RECORDED"
    CASE_MISSING = "CASE_MISSING"
    NO_CASES = "NO_CASES"
    FEWER_GATES = "FEWER_GATES"
    OTHER_CASE = "OTHER_CASE"
    RECORDS = "RECORDS"
    DIRTY = "DIRTY"
    TREE_CHANGED = "TREE_CHANGED"
    OTHER_ENVIRONMENT = "OTHER_ENVIRONMENT"
    FOREIGN_COMMIT = "FOREIGN_COMMIT"
    FEWER_GPUS = "FEWER_GPUS"
    NOT_STRICT = "NOT_STRICT"
    NOT_PASSED = "NOT_PASSED"
    FAILED = "FAILED"
    OTHER_BASELINE = "OTHER_BASELINE"

    @classmethod
    def _missing_(cls, value: object) -> "ProblemCode | None":
        return cls.__members__.get(former.PROBLEMS.get(value, ""))


class Problem(DocumentPart, frozen=True):
    """Why the run does not pass, with what mends it."""

    code: ProblemCode
    text: Text
    case: str = ""
    file: str = ""
    line: Line = 0

    @property
    def sentence(self) -> str:
        """Return the text, with the case that it is about."""
        return f"{self.case}: {self.text}" if self.case else self.text


class CaseState(DocumentPart, frozen=True, kw_only=True):
    """What became of a case, or of a test that takes ``perf`` and declares no case."""

    state: State
    case: str  # empty for a test that declares no case and measured none
    why: str = ""  # why it was not measured
    test: str = ""  # pytest's node id; empty if no test has the case
    file: str = ""
    line: Line = 0
    device: str = ""
    world_size: int = 0
    extended: bool = False
    guarded: bool = False  # this run had to measure it


class Page(DocumentPart, frozen=True, kw_only=True):
    """A verdict for readers, which report/ makes once: a headline, a place, blocks of lines."""

    headline: Text  # one line, cause first
    message: str  # of a case that was judged as a whole
    detail: str  # a traceback, or a worker's last output
    lines: list[str]  # what the verdict is based on
    place: Site | None  # where the deciding metric moved, if known
    notes: dict[str, str]  # by metric: parts and ranks that moved, what pairs said
    causes: list[str]  # of a time that moved
    steps: list[str]  # what to do next, as typed


class JudgedDocument(DocumentPart, frozen=True, kw_only=True):
    """A verdict on kept evidence."""

    verdict: Verdict
    text: Page


class LaunchDocument(DocumentPart, frozen=True, kw_only=True):
    """A launch's times."""

    step_ms: float
    step_ms_median: float


class ResultDocument(DocumentPart, frozen=True, kw_only=True):
    """A case that was measured and judged."""

    case: Text
    parameters: dict[str, Any]
    gates: tuple[str, ...]
    metrics: dict[str, float]
    launches: list[LaunchDocument]
    verdict: Verdict
    text: Page
    evidence: str
    baseline: str
    commit: str
    dirty: list[str]
    tree_changed: bool
    disturbed: list[str]  # for each block that was measured again: why
    # The case's own margins, never widened; empty for the device's.
    margins_pct: tuple[float, ...] = ()
    # The digest of the baseline that judged; empty if none did, for example in pairs.
    judged_by: str = ""
    # In pairs: the variables of both sides that change what torch does, as a recording has them.
    environment: str | None = None


class WaiverDocument(DocumentPart, frozen=True, kw_only=True):
    """A waiver and its effect: the name of an Effect; empty if its case was not judged."""

    case: Text
    metric: Text
    expires: Text
    effect: str
    text: Text


class GpuDocument(DocumentPart, frozen=True, kw_only=True):
    """A GPU that the run could use."""

    name: Text
    uuid: str
    driver: str


class Options(DocumentPart, frozen=True, kw_only=True):
    """The options of the run, by origin: the command line, PYTEST_ADDOPTS or settings."""

    arguments: list[str] = []
    environment: str = ""
    settings: list[str] = []
    keyword: str = ""  # -k, wherever it came from
    markers: str = ""  # -m
    perf: dict[str, Scalar] = {}  # every --perf-... that differs from its default


def describes_a_run(head: bytes) -> bool:
    """Tell whether a file that begins with ``head`` is the document of a run, or its page."""
    return _HEADS.match(head) is not None


class RunDocument(DocumentPart, frozen=True, kw_only=True):
    """A whole run."""

    schema: int
    date: Text  # the start, UTC, ISO 8601
    wall_s: float
    end: End
    passed: bool  # pytest's exit status is 0, and there is no problem
    strict: bool
    commit: str  # the measured commit; empty if there is none
    dirty: list[str]  # files that differed from it when the run began
    against: str  # the revision that judged, as given; empty: the baselines judged
    base_commit: str  # the commit of that revision
    machine: str  # as a baseline file names it: "CPU", "NVIDIA H200"; empty if unknown
    gpus: list[GpuDocument]
    baselines: str  # the folder of the baselines
    base: str = ""  # the branch whose baselines judged in place of the tree's, as given
    base_changes: list[str] = []  # how the tree's own baselines differ from that branch's
    baselines_dirty: list[str] = []  # files in that folder that are not the commit's
    uncollected: list[str] = []  # modules that gave no tests, and why
    # What launches inherit, and what changed of it since pytest was started: "name old -> new".
    changed: list[str] = []
    options: Options
    cases: list[CaseState]
    results: list[ResultDocument]
    problems: list[Problem]
    notices: list[str]
    waivers: list[WaiverDocument]

    @property
    def worst_first(self) -> list[ResultDocument]:
        """Return the results, the worst first, then by case id."""
        return sorted(self.results, key=lambda result: (result.verdict.status.rank, result.case))

    @property
    def failing(self) -> list[ResultDocument]:
        """Return the results of cases that do not pass, the worst first."""
        return [result for result in self.worst_first if result.verdict.outcome != "passed"]

    @property
    def undecided(self) -> bool:
        """Tell whether nothing is wrong but that cases have no verdict: no gated metric moved."""
        none = (Status.INCONCLUSIVE, Status.UNFIT, Status.BROKEN)
        verdicts = [result.verdict for result in self.failing]
        alone = all(one.status in none and not one.gated("failed") for one in verdicts)
        return bool(verdicts) and alone and self.end is End.FINISHED and not self.problems

    @property
    def outcome(self) -> Outcome:
        """Return whether the run passes. Every page, title and conclusion takes it from here."""
        cases = outcome_of_run(result.verdict for result in self.results)
        return cases if self.passed and not self.problems else "failed"
