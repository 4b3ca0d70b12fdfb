"""Reasons: why a verdict or a fault is what it is. Each is a row: a code, a phrase, the statuses
that it comes with, and, if a case as a whole can have it, the figures of its sentences. Evidence
and documents hold the code. docs/reason-codes.md says what a code means and what mends it.
"""

from enum import StrEnum

from stepguard.core import former
from stepguard.core.reason_sentences import (
    Changed,
    ClockGap,
    Failed,
    Missing,
    NotRecorded,
    Sentence,
    Undecided,
    Unstable,
    WorkMoved,
)
from stepguard.core.status import Status


class Reason(StrEnum):
    """A reason: its code, a short phrase, and what it comes with."""

    phrase: str
    statuses: tuple[Status, ...]
    figures: tuple[type[Sentence], ...]  # of its sentences; none if the phrase says all

    def __new__(
        cls, code: str, phrase: str, statuses: Status | tuple[Status, ...], *figures: type[Sentence]
    ) -> "Reason":
        reason = str.__new__(cls, code)
        reason._value_ = code
        reason.phrase, reason.figures = phrase, figures
        reason.statuses = statuses if isinstance(statuses, tuple) else (statuses,)
        return reason

    @classmethod
    def _missing_(cls, value: object) -> "Reason | None":
        return cls.__members__.get(former.REASONS.get(value, ""))

    WITHIN_LIMIT = "WITHIN_LIMIT", "within the limit", Status.SAME
    EQUAL = "EQUAL", "equal", Status.SAME
    NOT_JUDGED = "NOT_JUDGED", "shown, not judged", Status.SAME
    BEYOND_LIMIT = "BEYOND_LIMIT", "beyond the limit", (Status.SLOWER, Status.FASTER)
    UNCONFIRMED = (
        "UNCONFIRMED",
        "beyond the limit, and no pairs confirmed it",
        (Status.INCONCLUSIVE, Status.SAME),
    )
    KERNELS_MOVED = (
        "KERNELS_MOVED",
        "within the limit, but kernels, or gaps between them, take longer",
        (Status.SLOWER, Status.INCONCLUSIVE),
    )
    COUNTER_ROSE = "COUNTER_ROSE", "a counter rose", Status.CHANGED
    COUNTER_FELL = "COUNTER_FELL", "a counter fell", Status.FASTER
    WORK_MOVED = (
        "WORK_MOVED",
        "the step does other work",
        (Status.CHANGED, Status.NOT_COMPARABLE),
        WorkMoved,
    )
    BEYOND_MARGIN = (
        "BEYOND_MARGIN",
        "beyond the margin, both revisions measured in pairs",
        (Status.SLOWER, Status.FASTER),
    )
    WITHIN_MARGINS = (
        "WITHIN_MARGINS",
        "within the margins, both revisions measured in pairs",
        Status.SAME,
    )
    IDENTICAL_STEP = (
        "IDENTICAL_STEP",
        "the step is the same, and pairs of both revisions show no difference",
        Status.SAME,
    )
    CHANGED_KERNELS = (
        "CHANGED_KERNELS",
        "by the kernels that differ, and pairs of both revisions agree",
        (Status.SLOWER, Status.FASTER, Status.SAME),
    )
    UNDECIDED = "UNDECIDED", "the time is not decided", Status.INCONCLUSIVE, Failed
    NO_SLOWDOWN = "NO_SLOWDOWN", "not 1.5 times as long in each pair, on a CPU", Status.SAME
    TIME_DECIDES = "TIME_DECIDES", "moved, but in pairs the time decides", Status.SAME
    BASE_LACKS = (
        "BASE_LACKS",
        "the other revision cannot run this case",
        Status.NOT_COMPARABLE,
        Failed,
    )
    NOT_RECORDED = (
        "NOT_RECORDED",
        "it is not recorded",
        (Status.NO_BASELINE, Status.SAME),
        NotRecorded,
    )
    OTHER_CONDITIONS = (
        "OTHER_CONDITIONS",
        "recorded with other parameters or under other software",
        Status.NOT_COMPARABLE,
        Changed,
    )
    NOT_STEADY = (
        "NOT_STEADY",
        "no steady state within the warm-up's time",
        Status.INCONCLUSIVE,
        Undecided,
    )
    TOO_NOISY = "TOO_NOISY", "its interval is wider than its limit", Status.INCONCLUSIVE
    COUNT_UNSTABLE = (
        "COUNT_UNSTABLE",
        "launches count the same steps differently, or a count is missing",
        Status.INCONCLUSIVE,
        Unstable,
    )
    FOREIGN_PROCESS = "FOREIGN_PROCESS", "another process or run uses the GPU", Status.UNFIT, Failed
    THROTTLED = "THROTTLED", "the GPU was throttled", Status.UNFIT, Failed
    MACHINE_UNREADABLE = (
        "MACHINE_UNREADABLE",
        "the machine's state cannot be read",
        Status.UNFIT,
        Failed,
    )
    RANKS_DIFFER = (
        "RANKS_DIFFER",
        "a rank's hardware or software differs from rank 0's",
        Status.UNFIT,
        Failed,
    )
    TOO_FEW_GPUS = "TOO_FEW_GPUS", "fewer GPUs than the case needs", Status.UNFIT, Failed
    NOTHING_MEASURED = (
        "NOTHING_MEASURED",
        "launches, blocks, times or gated metrics are missing",
        Status.BROKEN,
        Missing,
    )
    CLOCKS_DISAGREE = (
        "CLOCKS_DISAGREE",
        "clocks disagree with each other, or with the hardware",
        Status.BROKEN,
        ClockGap,
        Failed,
    )
    RAISED = "RAISED", "the workload raised", Status.BROKEN, Failed
    BAD_WORKLOAD = (
        "BAD_WORKLOAD",
        "the factory is not one, or returned no workload",
        Status.BROKEN,
        Failed,
    )
    TREE_CHANGED = "TREE_CHANGED", "the tree changed while it was measured", Status.BROKEN, Failed
    OTHER_TREE = "OTHER_TREE", "a module came from another tree", Status.BROKEN, Failed
    OUT_OF_MEMORY = "OUT_OF_MEMORY", "out of memory", Status.BROKEN, Failed
    KILLED = "KILLED", "a worker or the launcher died", Status.BROKEN, Failed
    NO_ANSWER = "NO_ANSWER", "a worker did not answer in time", Status.BROKEN, Failed


# Reasons that are shown although the case passes.
NOTICES = (Reason.UNCONFIRMED, Reason.TIME_DECIDES)
