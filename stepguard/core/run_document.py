"""The document of a run: what was asked of it, what became of every case, what was measured.

It is the file that --perf-json writes, and all that a report or a gate on another machine has of a
run, so a run that failed, was stopped or was refused leaves one, too. Paths are relative to the
project's folder. Whoever reads one from a file reads it with storage/run_document_file.py.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Annotated, Any

import msgspec

from stepguard.core.case import Scalar
from stepguard.core.recording import Text
from stepguard.core.site import Site
from stepguard.core.verdict import Verdict

SCHEMA = 3

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


class ProblemCode(StrEnum):
    """Why a run is no pass, apart from its verdicts: a code, what it means, and what to do about it
    in the Markdown of docs/reason-codes.md. The last ones are the gate's own.
    """

    means: str
    remedy: str

    def __new__(cls, code: str, means: str, remedy: str) -> "ProblemCode":
        problem = str.__new__(cls, code)
        problem._value_ = code
        problem.means, problem.remedy = means, remedy
        return problem

    REFUSED = "REFUSED", "A usage error: nothing was measured.", "The message says it."
    NOT_FINISHED = (
        "NOT_FINISHED",
        "The run was interrupted, or pytest failed inside; or a test ended it with status 0 "
        "though its case fails.",
        "Run it again; else see the log.",
    )
    NOTHING_MEASURED = (
        "NOTHING_MEASURED",
        "No selected case came to a result; in a strict run also `--collect-only`, `--fixtures` "
        "and `--fixtures-per-test`.",
        "See why each was skipped or failed. To collect alone, add `--perf-no-strict`.",
    )
    NOT_RECORDED = (
        "NOT_RECORDED",
        "`--perf-update` could not record what it measured.",
        "The message says it.",
    )
    CASE_MISSING = (
        "CASE_MISSING",
        "A guarded case was deleted, skipped, deselected, or never reached.",
        "Measure it; or say what is meant with `--perf-select`; or remove it from the baseline as "
        "well.",
    )
    NO_CASES = (
        "NO_CASES",
        "No performance test was collected; of the gate: the base has no recording for this "
        "machine.",
        "Call pytest where they are; record first.",
    )
    FEWER_GATES = (
        "FEWER_GATES",
        "A case gates less than its recording has, has wider margins (`margins_pct`) than were "
        "recorded, or its verdict says nothing of a gate.",
        "Gate it again, or narrow its margins; or record the case as it is: `--perf-update "
        "--perf-select=CASE`.",
    )
    OTHER_CASE = (
        "OTHER_CASE",
        "A test measured another case than it declares, or one with other parameters than are "
        "recorded.",
        "`perf(case)` with the case that the test is given; a changed workload is another case, "
        "with a name of its own.",
    )
    EXPECTED_TO_FAIL = (
        "EXPECTED_TO_FAIL",
        "A mark `xfail` on a case.",
        "`python -m stepguard waive`: it has a size, a day and a reason.",
    )
    RECORDS = (
        "RECORDS",
        "`--perf-update` in a gate.",
        "Record in a run of its own, with `--perf-no-strict`.",
    )
    DIRTY = (
        "DIRTY",
        "What was measured is in no commit: there is no git, no repository or no commit, files "
        "differ from the commit, or a file in `baselines/` is in none, or only a link.",
        "Commit it, or let git ignore what is no source; the message names the files, or has the "
        "command.",
    )
    TREE_CHANGED = (
        "TREE_CHANGED",
        "Files or the commit changed while a case was measured, or since the run began.",
        "Measure again, and leave the tree alone meanwhile.",
    )
    OTHER_ENVIRONMENT = (
        "OTHER_ENVIRONMENT",
        "Code of the tree changed, inside of pytest, what launches inherit: an environment "
        "variable, the niceness, the allowed CPUs, a limit of resources; or both sides of a "
        "comparison had other variables that steer than the recording.",
        "Set it for the command, or in the workload's module, where one side has it alone.",
    )
    FOREIGN_COMMIT = (
        "FOREIGN_COMMIT",
        "The gate: the document is of another commit.",
        "Measure the commit that is to be merged.",
    )
    FEWER_GPUS = (
        "FEWER_GPUS",
        "The gate: fewer GPUs than the machine should have.",
        "`--perf-require-gpus=N`; `python -m stepguard doctor`.",
    )
    NOT_STRICT = (
        "NOT_STRICT",
        "The gate: the run was not strict.",
        "`--perf-strict`, or `CI` is set.",
    )
    NOT_PASSED = "NOT_PASSED", "The gate: pytest failed though no case did.", "See its log."
    FAILED = (
        "FAILED",
        "The gate: a case does not pass, or is waived where the base has no such waiver.",
        "Its verdict says it.",
    )
    OTHER_BASELINE = (
        "OTHER_BASELINE",
        "Judged by what the base has not recorded, or against itself.",
        "`--perf-base=BRANCH`; see which baselines the change edits.",
    )

    @classmethod
    def _missing_(cls, value: object) -> "ProblemCode | None":
        return FORMER_PROBLEM_CODES.get(value)


# Codes that documents of earlier versions have, and what they are called now.
FORMER_PROBLEM_CODES: Mapping[object, ProblemCode] = {
    "NO_COMMIT": ProblemCode.DIRTY,
    "ONLY_COLLECTED": ProblemCode.NOTHING_MEASURED,
}


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the document."""


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


class VerdictText(_Part, frozen=True, kw_only=True):
    """What a verdict says, as reports have it; stepguard/report makes it."""

    headline: Text  # one line: the cause first
    message: str  # of a case that was judged as a whole
    detail: str  # a traceback, or a worker's last output
    lines: list[str]  # what it rests on
    place: Site | None  # where the metric that decided moved, if that is known
    notes: dict[str, str]  # of metrics: parts and ranks that moved, what pairs said
    causes: list[str]  # of a time that moved
    steps: list[str]  # what to do next, as it is typed


class JudgedDocument(_Part, frozen=True, kw_only=True):
    """A verdict on kept evidence."""

    verdict: Verdict
    text: VerdictText


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
    verdict: Verdict
    text: VerdictText
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
        return next((result for result in self.results if result.case == case_id), None)
