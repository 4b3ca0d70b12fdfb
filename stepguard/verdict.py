"""Verdict types: what can be said of a metric and of a case, and why. No I/O, no torch.

Every verdict carries a reason code, so that a machine can tell two failures apart and the docs can
name each. `judge.py` holds the rules that choose among them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from stepguard.site import Site
from stepguard.waiver import WaiverOutcome


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
        """0 is the worst."""
        return list(Status).index(self)

    @property
    def outcome(self) -> str:
        """pytest's word for it: passed, failed, or error when nothing could be decided."""
        if self in (Status.SAME, Status.FASTER):
            return "passed"
        return "failed" if self in (Status.SLOWER, Status.CHANGED) else "error"


class Reason(Enum):
    """Why. The value says it in a few words."""

    WITHIN_LIMIT = "within the limit"
    EQUAL = "equal"
    NOT_JUDGED = "information, not judged"
    BEYOND_LIMIT = "beyond the limit"
    COUNTER_ROSE = "a counter rose"
    COUNTER_FELL = "a counter fell"
    WORK_MOVED = "the step does other work"
    BEYOND_MARGIN = "beyond the margin, the other revision beside it"
    WITHIN_MARGINS = "within the margins, the other revision beside it"
    UNDECIDED = "the pairs do not decide"
    UNPROVEN = "not proven among all that the run tried"
    BASE_LACKS = "the other revision cannot run this case"
    OTHER_FLOPS = "the other revision's step does other work"
    MACHINE_MOVED = "the machine moved, the code did not"
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
    CLOCKS_DISAGREE = "wall clock and CUDA events disagree"
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


@dataclass(frozen=True)
class MetricVerdict:
    """One metric of one case, compared."""

    metric: str
    status: Status
    reason: Reason
    old: float | None = None
    new: float | None = None
    change_pct: float | None = None  # 100 * (new / old - 1)
    limit_pct: float | None = None  # times only
    noise_pct: float | None = None  # times only: standard error over launches
    note: str = ""  # what exactly moved, "aten.mm 24 -> 25"
    sites: tuple[Site, ...] = ()  # where
    gated: bool = True
    waived_until: str = ""  # the last day on which it passes all the same, ISO 8601
    failing_ranks: tuple[tuple[float, float], ...] = ()  # old and new of each rank that fails

    @property
    def rank(self) -> float:
        """0 is the worst. What is waived comes behind all that fails, and before what passes."""
        return Status.FASTER.rank - 0.5 if self.waived_until else self.status.rank

    @property
    def place(self) -> Site | None:
        """The first of the sites whose line is known."""
        return next((site for site in self.sites if site.file), None)


# Of counters that moved together: first what others follow from, last what follows from anything.
_CAUSES = ("flops_per_step", "collectives_per_step", "collective_bytes_per_step")
_FOLLOWS = ("operator_calls_per_step", "compiled_operator_calls_per_step")


def worst_of(metrics: Iterable[MetricVerdict]) -> MetricVerdict | None:
    """The worst gated metric, if there is one: of equals the one that says most of the cause. That
    is another amount of work or of exchange, else what names a line; operators move with all of it.
    """
    gated = [metric for metric in metrics if metric.gated]
    return min(gated, key=lambda m: (m.rank, *_tells(m)), default=None)


def _tells(found: MetricVerdict) -> tuple[int, bool, bool]:
    """How much a metric says of the cause; smaller is more."""
    if found.status is not Status.CHANGED:
        return 0, found.place is None, False
    cause = _CAUSES.index(found.metric) if found.metric in _CAUSES else len(_CAUSES)
    return cause, found.place is None, found.metric in _FOLLOWS


@dataclass(frozen=True)
class Verdict:
    """A case's verdict: that of its worst gated metric, or of the case as a whole."""

    case_id: str
    status: Status
    reason: Reason
    message: str = ""  # one sentence, when the case as a whole is judged
    detail: str = ""
    metrics: tuple[MetricVerdict, ...] = ()
    recordings: int = 0  # how many the comparison rests on
    recorded: bool = False  # this run's evidence was accepted by --perf-update
    against: str = ""  # the other revision that took turns, where one did
    p_value: float | None = None  # of the step time: that it is no slower than the other's
    waived_until: str = ""  # everything that fails is waived; the first of the waivers to end
    waivers: tuple[WaiverOutcome, ...] = ()  # of the case, and what each of them did

    @property
    def outcome(self) -> str:
        """pytest's word for it: the status's, unless it is waived."""
        return "passed" if self.waived_until else self.status.outcome

    @property
    def label(self) -> str:
        """The status, and that it is waived."""
        until = f" (waived until {self.waived_until})" if self.waived_until else ""
        return self.status.value + until

    @property
    def word(self) -> str:
        """The verdict as a run's table and counts name it.

        Once recorded, a case has its baseline: NO BASELINE would send the reader looking for one.
        """
        if not self.recorded or self.status is Status.SAME:
            return self.label
        return (
            "recorded" if self.status is Status.NO_BASELINE else f"{self.status.value} (recorded)"
        )

    @property
    def is_told(self) -> bool:
        """Whether it passes and yet has something to tell: the machine moved, not the code."""
        return self.reason is Reason.MACHINE_MOVED

    @property
    def worst(self) -> MetricVerdict | None:
        """The metric that decided, if one did."""
        return worst_of(self.metrics)

    @property
    def machine_moved(self) -> bool:
        """Whether a time moved by the machine's doing, whatever else there is."""
        return any(m.gated and m.reason is Reason.MACHINE_MOVED for m in self.metrics)

    @property
    def undecided(self) -> bool:
        """Whether nothing is known of a gated metric, though another one decided."""
        return any(
            m.gated and not m.waived_until and m.status.outcome == "error" for m in self.metrics
        )

    def with_metrics(self, metrics: tuple[MetricVerdict, ...]) -> "Verdict":
        """The verdict with these metrics in place of its own, the worst of them deciding. That the
        machine moved is the reason where all of them pass: it is told.
        """
        found = replace(self, metrics=metrics)
        worst = worst_of(metrics)
        assert worst is not None
        told = worst.status is Status.SAME and found.machine_moved
        until = min((m.waived_until for m in metrics if m.waived_until), default="")
        return replace(
            found,
            status=worst.status,
            reason=Reason.MACHINE_MOVED if told else worst.reason,
            waived_until=until if worst.waived_until else "",
        )
