"""Verdict types: what can be said of a metric and of a case, and why, as data.

Every verdict carries a reason, and the figures that its sentence needs as ``facts``; the sentences
themselves are made in sentences.py. The rules that choose are in judge/.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from stepguard.core.explanation import Explanation
from stepguard.core.margins import Margins
from stepguard.core.metrics import BETWEEN_STEPS, COLLECTIVES, OPERATORS, PEAK
from stepguard.core.permission import PermissionOutcome
from stepguard.core.site import Site

Outcome = Literal["passed", "failed", "error"]  # pytest's words
Facts = Mapping[str, Any]  # JSON scalars and short tuples of them, by name


class Status(Enum):
    """The verdicts, worst first. Of a case's metrics one that is known to have moved decides before
    one of which nothing is known: it is what there is to look at, and to confirm.
    """

    BROKEN = "BROKEN"
    UNFIT = "UNFIT"
    NOT_COMPARABLE = "NOT COMPARABLE"
    SLOWER = "SLOWER"
    CHANGED = "CHANGED"
    NO_BASELINE = "NO BASELINE"
    INCONCLUSIVE = "INCONCLUSIVE"
    FASTER = "FASTER"
    SAME = "same"

    @property
    def rank(self) -> int:
        """Return the place in the order, 0 for the worst."""
        return list(Status).index(self)

    @property
    def outcome(self) -> Outcome:
        """Return pytest's word: passed, failed, or error when nothing could be decided."""
        if self in (Status.SAME, Status.FASTER):
            return "passed"
        return "failed" if self in (Status.SLOWER, Status.CHANGED) else "error"


class Reason(Enum):
    """A reason: the code that docs/reason-codes.md lists, and a short phrase for it."""

    WITHIN_LIMIT = "within the limit"
    EQUAL = "equal"
    NOT_JUDGED = "shown, not judged"
    BEYOND_LIMIT = "beyond the limit"
    UNCONFIRMED = "beyond the limit, and no pairs confirmed it"
    WITHIN_LEVEL = "beyond the limit the good way, and no pairs confirmed it"
    KERNELS_MOVED = "within the limit, though kernels, or gaps between them, take longer"
    COUNTER_ROSE = "a counter rose"
    COUNTER_FELL = "a counter fell"
    WORK_MOVED = "the step does other work"
    BEYOND_MARGIN = "beyond the margin, both revisions measured in pairs"
    WITHIN_MARGINS = "within the margins, both revisions measured in pairs"
    IDENTICAL_STEP = "the step is the same, and pairs of both revisions show no difference"
    UNDECIDED = "the pairs do not decide"
    NO_SLOWDOWN = "no slowdown seen, on a CPU"
    MAYBE_SLOWER = "slower in the mean, but not beyond doubt, on a CPU"
    EXPECTED = "worse, as a commit of the range declares"
    UNPROVEN = "not significant among all cases of this run"
    TIME_DECIDES = "moved; beside another revision the time decides"
    PAID_FOR = "a cost rose, and the step is faster"
    LATE_SLOWDOWN = "steps are slower from some step on, in every launch"
    PERIODIC_SLOWDOWN = "steps are slower at one interval, in every launch"
    BASE_LACKS = "the other revision cannot run this case"
    OTHER_FLOPS = "the other revision's step does other work"
    MACHINE_MOVED = "the machine changed, the code did not"
    MACHINE_TOO_FAR = "the code did not change, and cards and clocks cannot change so much"
    NOT_RECORDED = "no recording for this machine"
    METRIC_NOT_RECORDED = "the recording lacks this metric"
    OTHER_SOFTWARE = "recorded under other software"
    OTHER_PARAMETERS = "recorded with other parameters"
    OTHER_TOKENS = "another number of tokens in a step"
    NOT_STEADY = "no steady state within the warm-up's time"
    TOO_NOISY = "launches differ by more than the limit allows"
    TOO_FEW_LAUNCHES = "fewer launches than the case asks for"
    COUNT_UNSTABLE = "a counter differs between steps"
    FOREIGN_PROCESS = "another process uses the GPU"
    GPU_LOCKED = "another run measures on the GPU"
    THROTTLED = "the GPU was throttled"
    MACHINE_UNREADABLE = "the machine's state cannot be read"
    RANKS_DIFFER = "a rank runs on or with something else than rank 0"
    TOO_FEW_GPUS = "fewer GPUs than the case needs"
    NOTHING_MEASURED = "nothing was measured"
    METRIC_MISSING = "a gated metric was not measured"
    FASTER_THAN_PHYSICS = "faster than the hardware can be"
    CLOCKS_DISAGREE = "clocks of the same block disagree"
    CONTRADICTION = "two measurements contradict each other"
    RAISED = "the workload raised"
    BAD_WORKLOAD = "the factory is not one, or returned no workload"
    TREE_CHANGED = "the tree changed while it was measured"
    OTHER_TREE = "a module came from another tree"
    OUT_OF_MEMORY = "out of memory"
    KILLED = "a worker was killed"
    AGENT_DIED = "the launcher died"
    NO_ANSWER = "a worker did not answer in time"
    NOT_STARTED = "the workers did not start"


# What is shown although it passes: the machine changed, counters that a time outweighs, a slowdown
# within launches that the other side has too, or of which nobody knows whether it had.
NOTICES = (
    Reason.MACHINE_MOVED,
    Reason.TIME_DECIDES,
    Reason.PAID_FOR,
    Reason.EXPECTED,
    Reason.MAYBE_SLOWER,
    Reason.LATE_SLOWDOWN,
    Reason.PERIODIC_SLOWDOWN,
    Reason.KERNELS_MOVED,
)


class Confirmation(Enum):
    """The outcome of pairs beside the recording's commit, for a time that the screen calls moved.

    In words, with the facts of Confirmed, its commit, and what the pairs ``beside`` that say.
    """

    CONFIRMED = "confirmed, the code is {verdict}: {beside}"
    REVERSED = "confirmed, the code is SLOWER, not FASTER: {beside}"
    STEP_SAME = "no slower step by pairs; {beside}"  # kernels moved, the step did not
    MACHINE = "the machine changed; {beside}"
    SAME_CODE = "the machine changed: HEAD is {commit}"  # the recording is of this very code
    # Why an alarm stays unconfirmed.
    TOO_FAR = "the pairs see no change, but cards and clocks differ by {limit_pct:g} % at most"
    NOT_JUDGED = "the step time was not judged"
    UNDECIDED = "the pairs do not decide"
    NOT_EXCLUDED = "the pairs do not exclude what the baseline says"
    STEPS_NOT_TIMED = "the pairs did not time {missed} of the steps that the run timed"
    OTHER_COMMIT = "as slow as that other commit"
    BASE_FAILED = "{status}, {text}"
    TREE_CHANGED = "the tree changed while it was measured"
    NO_TREE = ""  # the commit says why


@dataclass(frozen=True)
class Decision:
    """A time, judged by its pairs; percent of the base's step time, positive is slower."""

    status: Status  # INCONCLUSIVE while pairs are wanted
    estimate_pct: float
    low_pct: float  # the two bounds that decide, 90 % together over all analyses
    high_pct: float
    pairs: int
    sd_pct: float  # of 100 * d, moderated
    p_value: float  # that there is no slowdown at all; for all analyses
    smallest_detectable_pct: float  # by the whole plan at this standard deviation
    final: bool  # no further pair is wanted
    with_replaced_pct: float | None = None  # the change, if pairs that others replaced count, too


@dataclass(frozen=True)
class PairsFinding:
    """A decision with all that it rests on."""

    decision: Decision
    margins: Margins
    rule: str  # where the margins and the expected noise come from
    together: bool  # both revisions alive, one of them parked; else one after the other
    most: int = 0  # pairs that the plan allows, where it was not followed to its end
    again: int = 0  # pairs that were disturbed, measured again
    earlier: int = 0  # of the pairs, that an earlier run of these commits measured
    check_pct: float | None = None  # of a fresh one beside those, where they alone decide
    not_pooled: str = ""  # why pairs of such a run do not count
    not_enough: str = ""  # why no fewer pairs were enough for `same`


@dataclass(frozen=True)
class Confirmed:
    """The confirmation of a screen's alarm, or the reason why there is none."""

    outcome: Confirmation
    commit: str = ""  # the one that was chosen, and how
    step: PairsFinding | None = None  # the decision that counts
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class PartMove:
    """A part of a counter that moved: an operator, a direction of copies, a collective."""

    name: str
    old: int
    new: int


@dataclass(frozen=True)
class MetricVerdict:
    """One metric of one case, compared."""

    metric: str
    status: Status
    reason: Reason
    old: float | None = None
    new: float | None = None
    change_pct: float | None = None  # 100 * (new / old - 1)
    limit_pct: float | None = None  # times and differences only
    noise_pct: float | None = None  # standard error over launches; a difference's half width
    moved: tuple[PartMove, ...] = ()  # parts, those that explain first
    ranks: tuple[int, ...] = ()  # the ranks that moved, where not all did
    sites: tuple[Site, ...] = ()  # where
    gated: bool = True
    waived_until: str = ""  # the last day on which it passes all the same, ISO 8601
    failing_ranks: tuple[tuple[float, float], ...] = ()  # old and new of each rank that fails
    pairs: PairsFinding | None = None  # a time that pairs with another revision judged
    confirmed: Confirmed | None = None  # a time that the screen called moved
    facts: Facts = field(default_factory=dict)  # what else its note says

    @property
    def rank(self) -> float:
        """Return the place in the order, 0 for the worst. A waived metric comes behind all that
        fails, and before what passes.
        """
        return Status.FASTER.rank - 0.5 if self.waived_until else self.status.rank

    @property
    def place(self) -> Site | None:
        """Return the first of the sites whose line is known."""
        return next((site for site in self.sites if site.file), None)


# Counters, each before those that follow from it: a sync is an operator, too, what is kept of each
# step seldom comes without one, and an operator makes launches, FLOPs and bytes. On what a model
# holds more of, backward pass and optimizer call operators, which no line of the step does.
_CAUSES = (
    "host_syncs_per_step",
    "sync_candidates_per_step",
    "graph_breaks",
    "recompiles",
    COLLECTIVES,
    "leaked_bytes_per_step",
    OPERATORS,
    BETWEEN_STEPS,
    "pageable_copies_per_step",
    "copies_per_step",
    "copied_bytes_per_step",
    "memsets_per_step",
    "device_allocations_per_step",
    "unique_graphs",
    "generated_kernels",
    "compiled_operator_calls_per_step",
    "collective_bytes_per_step",
    "launches_per_step",
    "flops_per_step",
    "tokens_per_step",
    PEAK,
)


def cause_first(found: MetricVerdict) -> tuple[float, float, bool]:
    """Return a metric's place in the order of a report: the worst first, and of equals the one that
    the others follow from. A time comes before any counter.
    """
    cause: float = _CAUSES.index(found.metric) if found.metric in _CAUSES else -1
    if found.metric == COLLECTIVES and found.old == found.new:
        cause = _CAUSES.index("collective_bytes_per_step")  # as many, of other sizes
    if found.metric == OPERATORS and all(site.phase for site in found.sites):
        cause = _CAUSES.index(BETWEEN_STEPS) + 0.5
    return found.rank, cause, found.place is None


def worst_of(metrics: Iterable[MetricVerdict]) -> MetricVerdict | None:
    """Return the worst gated metric; of equals the one that the others follow from."""
    return min((metric for metric in metrics if metric.gated), key=cause_first, default=None)


@dataclass(frozen=True)
class Straggler:
    """The rank that got slower against itself; without the time in which it waits for others."""

    rank: int
    old_ms: float
    new_ms: float
    others_pct: float  # by how much the next one of the other ranks got slower


@dataclass(frozen=True)
class Verdict:
    """A case's verdict: that of its worst gated metric, or of the case as a whole."""

    case_id: str
    status: Status
    reason: Reason
    facts: Facts | None = None  # of the case as a whole; None when a metric decides
    detail: str = ""
    metrics: tuple[MetricVerdict, ...] = ()
    recordings: int = 0  # how many the comparison rests on
    recorded: bool = False  # this run's evidence was accepted by --perf-update
    accepted: bool = False  # by the tree's own baseline, where another branch's judged
    against: str = ""  # the other revision of an A/B comparison
    p_value: float | None = None  # of the step time: that it is no slower than the other's
    waived_until: str = ""  # everything that fails is waived; the first of the waivers to end
    permissions: tuple[PermissionOutcome, ...] = ()  # of the case, and what each of them did
    libraries: str = ""  # that are others than the recording's: "transformers 5.22 -> 5.23"
    explanation: Explanation | None = None  # of the time, where both sides have a profile
    straggler: Straggler | None = None  # in pairs: the rank that got slower than the others

    @classmethod
    def of(cls, case_id: str, metrics: tuple[MetricVerdict, ...], **others: Any) -> "Verdict":
        """Return the verdict that metrics make, the worst deciding; ``others`` are more fields."""
        worst = worst_of(metrics)
        assert worst is not None
        return cls(case_id, worst.status, worst.reason, metrics=metrics, **others)

    @property
    def whole(self) -> bool:
        """Tell whether the case as a whole was judged, and no metric decided."""
        return self.facts is not None

    @property
    def outcome(self) -> Outcome:
        """Return pytest's word: the status's, unless it is waived."""
        return "passed" if self.waived_until else self.status.outcome

    @property
    def label(self) -> str:
        """Return the status, and that it is waived."""
        return labelled(self.status, self.waived_until)

    @property
    def word(self) -> str:
        """Return the verdict as a run's table and counts name it."""
        return word_of(self.status, self.recorded, self.waived_until)

    @property
    def has_notice(self) -> bool:
        """Tell whether it has something to say though it passes."""
        reasons = (m.reason for m in self.metrics if m.gated)
        declared = any(one.permission.is_trailer for one in self.permissions)
        return notable(self.status, reasons, declared)

    @property
    def worst(self) -> MetricVerdict | None:
        """Return the metric that decided, if one did."""
        return worst_of(self.metrics)

    @property
    def machine_moved(self) -> bool:
        """Tell whether a time changed and the code did not, whatever else there is."""
        moved = (Reason.MACHINE_MOVED, Reason.MACHINE_TOO_FAR)
        return any(m.gated and m.reason in moved for m in self.metrics)

    @property
    def moved(self) -> list[MetricVerdict]:
        """Return the gated metrics that are not `same`."""
        return [m for m in self.metrics if m.gated and m.status is not Status.SAME]

    def gated(self, outcome: Outcome) -> list[MetricVerdict]:
        """Return the gated metrics that have this outcome and are not waived."""
        gated = (m for m in self.metrics if m.gated and not m.waived_until)
        return [m for m in gated if m.status.outcome == outcome]

    def with_metrics(self, metrics: tuple[MetricVerdict, ...]) -> "Verdict":
        """Return the verdict with these metrics in place of its own, the worst of them deciding.
        That the machine changed is the reason where all of them pass, so that it is shown.
        """
        found = replace(self, metrics=metrics)
        worst = worst_of(metrics)
        assert worst is not None
        machine = worst.status is Status.SAME and found.machine_moved
        # ISO 8601 days sort as text.
        until = min((m.waived_until for m in metrics if m.waived_until), default="")
        return replace(
            found,
            status=worst.status,
            reason=Reason.MACHINE_MOVED if machine else worst.reason,
            waived_until=until if worst.waived_until else "",
        )


def notable(status: Status, gated: Iterable[Reason], declared: bool) -> bool:
    """Tell whether a verdict has something to say though it passes, by the reasons of its ``gated``
    metrics and whether a commit ``declared`` one.
    """
    return status.outcome == "passed" and (declared or any(one in NOTICES for one in gated))


def labelled(status: Status, waived_until: str) -> str:
    """Return a status, and that it is waived."""
    return status.value + (f" (waived until {waived_until})" if waived_until else "")


def word_of(status: Status, recorded: bool, waived_until: str) -> str:
    """Return a verdict as tables and counts name it."""
    if not recorded or status is Status.SAME:
        return labelled(status, waived_until)
    # Once recorded, a case has its baseline, and nobody is to look for one.
    return "recorded" if status is Status.NO_BASELINE else f"{status.value} (recorded)"
