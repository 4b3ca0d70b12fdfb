"""The document of a run: what was asked of it, what became of every case, what was measured.

It is the file that --perf-json writes, and all that a report or a gate on another machine has of a
run, so a run that failed, was stopped or was refused leaves one, too. Paths are relative to the
project's folder. Whoever reads one from a file reads it with storage/read_documents.py.
"""

from enum import Enum
from typing import Annotated, Any, TypeVar

import msgspec

from stepguard.core.case import Scalar
from stepguard.core.explanation import Kind
from stepguard.core.recording import Text
from stepguard.core.site import Site
from stepguard.core.verdict import Outcome, Reason, Status, notable, word_of

SCHEMA = 2
MOST_CAUSES = 40  # of an explanation

Line = Annotated[int, msgspec.Meta(ge=0)]  # from 1; 0 where it is not known


class State(Enum):
    """Describe what became of a case."""

    MEASURED = "measured"
    SKIPPED = "skipped"  # by a mark, by its own test, or since this machine is not for it
    DESELECTED = "deselected"  # collected, and taken out again: -k, -m, a conftest
    LEFT_OUT = "left out"  # by a selection that says so: --perf-select, or a path
    UNMEASURED = "unmeasured"  # its test failed, or the run ended, before it was measured
    ABSENT = "absent"  # recorded for this machine, and no test that was collected has it


class End(Enum):
    """Describe how a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"  # a usage error: nothing was measured
    FAILED = "failed"  # an internal error


class ProblemCode(Enum):
    """Say why a run is no pass, apart from its verdicts."""

    REFUSED = "REFUSED"  # a usage error
    NOT_FINISHED = "NOT_FINISHED"  # interrupted, or an internal error
    NOTHING_MEASURED = "NOTHING_MEASURED"
    NOT_RECORDED = "NOT_RECORDED"  # --perf-update could not record
    CASE_MISSING = "CASE_MISSING"  # a case that is guarded was not measured
    NO_CASES = "NO_CASES"  # there is no performance test
    ONLY_COLLECTED = "ONLY_COLLECTED"  # --collect-only
    FEWER_GATES = "FEWER_GATES"  # than the case's recording has, or wider margins
    OTHER_CASE = "OTHER_CASE"  # than its test declares, or than is recorded
    EXPECTED_TO_FAIL = "EXPECTED_TO_FAIL"  # an xfail mark lets a case fail
    RECORDS = "RECORDS"  # the run records what it measures
    NO_COMMIT = "NO_COMMIT"  # what was measured is no commit
    DIRTY = "DIRTY"  # files differ from the commit
    TREE_CHANGED = "TREE_CHANGED"  # while it was measured
    # The gate's own, of a document:
    FOREIGN_COMMIT = "FOREIGN_COMMIT"  # another one should have been measured
    FEWER_GPUS = "FEWER_GPUS"  # than the machine should have
    NOT_STRICT = "NOT_STRICT"  # the run let cases pass unguarded
    NOT_PASSED = "NOT_PASSED"  # pytest failed, whatever the verdicts are
    FAILED = "FAILED"  # a case's verdict is no pass
    OTHER_BASELINE = "OTHER_BASELINE"  # judged by what the base has not recorded


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the document."""


Part = TypeVar("Part", bound=_Part)


def filled(kind: type[Part], source: object, **others: object) -> Part:
    """Return a part of the document: its fields are ``others`` and, else, those of ``source``."""
    names = [name for name in kind.__struct_fields__ if name not in others]
    return kind(**{n: getattr(source, n) for n in names if hasattr(source, n)}, **others)


class Problem(_Part, frozen=True):
    """Say why the run is no pass, with what mends it."""

    code: ProblemCode
    text: Text
    case: str = ""
    file: str = ""
    line: Line = 0

    @property
    def sentence(self) -> str:
        """Return the text with the case that it is about."""
        return f"{self.case}: {self.text}" if self.case else self.text


class CaseState(_Part, frozen=True, kw_only=True):
    """Describe what became of a case, or of a test that takes ``perf`` and declares none."""

    state: State
    case: str  # its id; empty for a test that declares none and was not measured
    why: str = ""  # it was not measured
    test: str = ""  # pytest's node id; empty if it is absent
    file: str = ""
    line: Line = 0
    device: str = ""
    world_size: int = 0
    extended: bool = False
    guarded: bool = False  # this run was to measure it


class MetricDocument(_Part, frozen=True, kw_only=True):
    """A metric's part of a verdict; stepguard/core/verdict.py says what each field is."""

    metric: Text
    status: Status
    reason: Text  # the name of a Reason
    old: float | None
    new: float | None
    change_pct: float | None
    limit_pct: float | None
    noise_pct: float | None
    gated: bool
    waived_until: str
    failing_ranks: tuple[tuple[float, float], ...]
    note: str
    sites: tuple[Site, ...]


class SideDocument(_Part, frozen=True, kw_only=True):
    """Describe what a cause is made of on one side."""

    names: tuple[str, ...]
    calls: float  # a step
    us: float  # a step


class CauseDocument(_Part, frozen=True, kw_only=True):
    """A cause of a moved time; stepguard/core/explanation.py says what each field is."""

    kind: Kind
    us: float
    what: str
    phase: str
    place: str
    before: SideDocument
    after: SideDocument
    text: str


class ExplanationDocument(_Part, frozen=True, kw_only=True):
    """Why a step takes longer than the other one, by the profiles of both: causes and what is
    within the scatter between steps add up to the difference.
    """

    refused: list[str]  # why they cannot be compared
    before_us: float
    after_us: float
    causes: Annotated[list[CauseDocument], msgspec.Meta(max_length=MOST_CAUSES)]
    smaller_us: float  # of all further causes together
    scatter_us: float


class VerdictDocument(_Part, frozen=True, kw_only=True):
    """A verdict, with the sentences of reports."""

    case_id: Text
    status: Status
    reason: Text  # the name of a Reason
    outcome: Outcome
    headline: Text  # one line: the cause first
    message: str  # of a case that was judged as a whole
    detail: str  # a traceback, or a worker's last output
    lines: list[str]  # what it rests on
    place: Site | None  # where the metric that decided moved, if that is known
    recordings: int
    recorded: bool
    against: str
    p_value: float | None
    waived_until: str
    waivers: list[str]  # each waiver of the case, and what it did
    metrics: list[MetricDocument]
    expectations: list[str] = []  # likewise the trailers of commits
    explanation: ExplanationDocument | None = None  # where both sides have a profile

    @property
    def word(self) -> str:
        """Return the verdict as tables and counts name it."""
        return word_of(self.status, self.recorded, self.waived_until)

    @property
    def permissions(self) -> list[str]:
        """Return what each permission of the case did."""
        return [*self.waivers, *self.expectations]

    @property
    def has_notice(self) -> bool:
        """Tell whether it has something to say though it passes."""
        reasons = (Reason[one.reason] for one in self.metrics if one.gated)
        return notable(self.status, reasons, bool(self.expectations))


class LaunchDocument(_Part, frozen=True, kw_only=True):
    """A launch's times."""

    step_ms: float
    step_ms_median: float


class ResultDocument(_Part, frozen=True, kw_only=True):
    """A case that was measured and judged."""

    case: Text
    parameters: dict[str, Any]
    gates: tuple[str, ...]
    metrics: dict[str, float]
    launches: list[LaunchDocument]
    verdict: VerdictDocument
    steps: list[str]  # what to do next, as it is typed
    evidence: str
    baseline: str
    commit: str
    dirty: list[str]
    tree_changed: bool
    disturbed: list[str]  # of each block that was measured again: why
    margins_pct: tuple[float, ...] = ()  # of the case itself, never widened; empty: the device's
    judged_by: str = ""  # the digest of the baseline that judged; empty: none, or another revision


class WaiverDocument(_Part, frozen=True, kw_only=True):
    """A waiver, and what it did: ``effect`` names an Effect, none if it was not asked."""

    case: Text
    metric: Text
    expires: Text
    effect: str
    text: Text


class GpuDocument(_Part, frozen=True, kw_only=True):
    """A GPU that the run could use."""

    name: Text
    uuid: str
    driver: str


class Options(_Part, frozen=True, kw_only=True):
    """Hold what was asked, and where: on the command line, in PYTEST_ADDOPTS, in the settings."""

    arguments: list[str] = []
    environment: str = ""
    settings: list[str] = []
    keyword: str = ""  # -k, wherever it came from
    markers: str = ""  # -m
    perf: dict[str, Scalar] = {}  # every --perf-... that is not its default


class RunDocument(_Part, frozen=True, kw_only=True):
    """A whole run."""

    schema: int
    date: Text  # when it began, UTC, ISO 8601
    wall_s: float
    end: End
    passed: bool  # whether the run, as far as it is ours, exits with 0
    strict: bool
    commit: str  # that was measured; empty where there is none
    dirty: list[str]  # files that differ from it when the run began
    against: str  # the revision that judged, as it was named; empty: the baselines
    base_commit: str  # of that revision
    machine: str  # as a baseline file names it: "CPU", "NVIDIA H200"; empty where it is unknown
    gpus: list[GpuDocument]
    baselines: str  # their folder
    base: str = ""  # the branch whose baselines judged instead of the tree's, as it was named
    base_changes: list[str] = []  # what the tree changes in them, if anything
    options: Options
    cases: list[CaseState]
    results: list[ResultDocument]
    problems: list[Problem]
    notices: list[str]
    waivers: list[WaiverDocument]

    def result_of(self, case_id: str) -> ResultDocument | None:
        """Return what was measured of a case."""
        return next((found for found in self.results if found.case == case_id), None)
