"""Verdict types: what is said of a metric and of a case, and why, as data.

Every verdict has a reason and the figures of its sentence. The rules that decide are in judge/.
"""

from collections.abc import Iterable
from enum import Enum, StrEnum

import msgspec

from stepguard.core.explanation import Explanation
from stepguard.core.margins import Margins
from stepguard.core.metrics import (
    BETWEEN_STEPS,
    COLLECTIVE_BYTES,
    COLLECTIVES,
    COPIES,
    COUNTERS,
    FLOPS,
    METRICS,
    OPERATORS,
    SETTINGS,
    Role,
)
from stepguard.core.permission import PermissionOutcome
from stepguard.core.reason_sentences import (
    MovedNumbers,
    OfCase,
    OfConfirmation,
    OfMetric,
    OverSteps,
    OwnLimit,
)
from stepguard.core.reasons import NOTICES, Reason
from stepguard.core.site import Site
from stepguard.core.status import Outcome, Status
from stepguard.core.strict_json import DocumentPart
from stepguard.core.text import counted

FARTHEST_PCT = 10_000.0  # an interval's end beyond it is shown as "more than" this


class Confirmation(StrEnum):
    """What pairs of HEAD and the recording's commit say of an alarm, or that there are none."""

    CONFIRMED = "CONFIRMED"  # the code is slower, or faster
    STEP_SAME = "STEP_SAME"  # the step is as fast as that commit's
    MACHINE = "MACHINE"  # HEAD is that commit: the machine changed, the code did not
    UNDECIDED = "UNDECIDED"  # the pairs do not decide
    NOT_CLEARED = "NOT_CLEARED"  # the step is as fast as another commit's
    NOT_MEASURED = "NOT_MEASURED"  # there are no pairs, or they could not be judged


class Joins(Enum):
    """Whether what a run measured may join the level that a baseline holds."""

    ITSELF = "its counters are equal and its time is `same`"
    UNPROVEN = "it passes, but its time is not shown to be the level's"
    ANOTHER = "it is another level, which needs a reason"


class Decision(DocumentPart, frozen=True):
    """The decision on a time by its pairs, in percent of the base's time: positive is slower."""

    status: Status  # INCONCLUSIVE while more pairs are wanted
    reason: Reason
    estimate_pct: float
    low_pct: float  # the bounds that decide: together 90 % over all analyses
    high_pct: float
    pairs: int
    sd_pct: float  # standard deviation of 100 * d, moderated by the known noise
    p_value: float  # of the hypothesis "no slowdown at all", over all analyses
    smallest_detectable_pct: float  # with the whole plan and this standard deviation
    final: bool  # no more pairs are wanted
    with_replaced_pct: float | None = None  # the change, if the pairs that were replaced count, too

    @property
    def interval(self) -> str:
        """Return "[-0.12, +0.20] %"; of a few pairs the upper end may be unlimited."""
        high = self.high_pct
        known = f"{high:+.2f}" if high <= FARTHEST_PCT else f"more than {FARTHEST_PCT:+.0f}"
        return f"[{self.low_pct:+.2f}, {known}] %"

    @property
    def so_far(self) -> str:
        """Return "+0.04 [-0.12, +0.20] % over 6 pairs"."""
        return f"{self.estimate_pct:+.2f} {self.interval} over {counted(self.pairs, 'pair')}"


class PairsFinding(DocumentPart, frozen=True):
    """A decision with all that it is based on."""

    decision: Decision
    margins: Margins
    alpha: float  # the case's level, given the number of cases in its run
    together: bool  # both revisions were alive and took turns; False: one ran after the other
    most: int = 0  # pairs of the whole plan, if the comparison ended before; else 0
    again: int = 0  # disturbed pairs that were measured again
    not_enough: str = ""  # why fewer pairs were not enough for `same`


class NoComparison(DocumentPart, frozen=True, tag=True):
    """Why the pairs of HEAD and the recording's commit cannot be judged."""

    status: Status
    reason: Reason
    figures: OfCase

    @property
    def text(self) -> str:
        """Return the status and the reason in words."""
        return f"{self.status.value}, {self.figures.sentence}"


class Confirmed(DocumentPart, frozen=True):
    """The answer to an alarm of recordings, or why there is none."""

    outcome: Confirmation
    commit: str = ""  # the commit, and how it was chosen
    step: PairsFinding | None = None  # the decision that counts
    hidden: bool = False  # the code is SLOWER although recordings said FASTER
    # Why the pairs do not clear the alarm, or why there are none.
    why: OfConfirmation | NoComparison | None = None


class PartMove(DocumentPart, frozen=True):
    """A part of a counter that moved: an operator, a direction of copies, a collective."""

    name: str
    old: int
    new: int


class MetricVerdict(DocumentPart, frozen=True):
    """One metric of one case, compared."""

    metric: str
    status: Status
    reason: Reason
    old: float | None = None
    new: float | None = None
    change_pct: float | None = None  # 100 * (new / old - 1); of a difference in points of a step
    limit_pct: float | None = None  # only of times and differences
    # Against recordings half of a difference's interval; in pairs the standard deviation of a pair.
    noise_pct: float | None = None
    moved: tuple[PartMove, ...] = ()  # parts, causes first
    ranks: tuple[int, ...] = ()  # the ranks that moved, if not all did
    sites: tuple[Site, ...] = ()  # the places
    gated: bool = True
    waived_until: str = ""  # ISO 8601; the last day on which it passes by a waiver
    failing_ranks: tuple[tuple[float, float], ...] = ()  # old and new of each rank that fails
    pairs: PairsFinding | None = None  # of a time that pairs with another revision judged
    confirmed: Confirmed | None = None  # of a time that moved against recordings
    figures: OfMetric | None = None  # the figures of its note

    @property
    def joins(self) -> Joins:
        """Return whether the metric's value may join the level that it was compared with."""
        if self.status is not Status.SAME:
            return Joins.ANOTHER
        if self.confirmed is None:
            return Joins.UNPROVEN if self.reason is Reason.UNCONFIRMED else Joins.ITSELF
        # Another card may join. A bad day of a recorded card would move its own mean.
        own_card = isinstance(self.figures, OwnLimit) and self.figures.own_card
        cleared = self.confirmed.outcome in (Confirmation.STEP_SAME, Confirmation.MACHINE)
        return Joins.ITSELF if cleared and not own_card else Joins.UNPROVEN

    @property
    def has_notice(self) -> bool:
        """Tell whether the report shows the metric although it passes."""
        several = isinstance(self.figures, OverSteps) and bool(self.figures.counts)
        disagree = several or isinstance(self.figures, MovedNumbers)
        noted = self.reason in NOTICES or self.confirmed is not None or disagree
        return self.status.outcome == "passed" and noted

    @property
    def rank(self) -> float:
        """Return the place in the order of verdicts; 0 is the worst. Waived ones come later."""
        return Status.FASTER.rank - 0.5 if self.waived_until else self.status.rank

    @property
    def outcome(self) -> Outcome:
        """Return pytest's word for the status; passed, too, if the metric is waived."""
        return "passed" if self.waived_until else self.status.outcome

    @property
    def role(self) -> Role:
        """Return the counter's role in this move. As many FLOPs, or as much of a price, by other
        parts are an amount. So are copies, unless more of them are to or from the host.
        """
        role = METRICS[self.metric].role
        equal = self.new == self.old and all(new <= old for old, new in self.failing_ranks)
        if equal and (role == "price" or self.metric == FLOPS):
            return "amount"
        if self.metric == COPIES and self.moved and not self.failing_ranks:
            hosts = (part for part in self.moved if part.name.startswith(("HtoD", "DtoH")))
            return "price" if sum(part.new - part.old for part in hosts) > 0 else "amount"
        return role

    @property
    def decides(self) -> bool:
        """Tell whether the counter fails its case before the time is asked."""
        failed = self.gated and self.status is Status.CHANGED and not self.waived_until
        return failed and self.role != "amount"

    @property
    def rise(self) -> float:
        """Return by how much the value rose, in its unit."""
        return (self.new or 0) - (self.old or 0)

    @property
    def place(self) -> Site | None:
        """Return the first site whose line is known; that of another revision has none."""
        return min((s for s in self.sites if s.file), key=lambda s: not s.line, default=None)


def cause_first(metric: MetricVerdict) -> tuple[float, float, bool]:
    """Return a metric's place among others: the worst first, and of equally bad ones the cause
    first. A time comes before any counter.

    If a model has more parameters, the backward pass and the optimizer call more operators, which
    no line of the step calls: they come after the memory that is kept.
    """
    cause: float = COUNTERS.index(metric.metric) if metric.metric in COUNTERS else -1
    if metric.metric == SETTINGS:  # it may make any of the others
        cause = -0.5
    if metric.metric == COLLECTIVES and metric.old == metric.new:
        cause = COUNTERS.index(COLLECTIVE_BYTES)  # as many collectives, with other sizes
    if metric.metric == OPERATORS and all(site.phase for site in metric.sites):
        cause = COUNTERS.index(BETWEEN_STEPS) + 0.5
    return metric.rank, cause, metric.place is None


def worst_first(metrics: Iterable[MetricVerdict]) -> list[MetricVerdict]:
    """Return metrics in the order of a report. If a counter decides before the time, all that
    changed comes before a time that is SLOWER. Of what is as bad, other work comes first, with the
    operators that do it; operators that fell come last if anything rose.
    """
    metrics = [*metrics]
    changed = [metric for metric in metrics if metric.status is Status.CHANGED]
    work = any(metric.metric == FLOPS and metric.role == "work" for metric in changed)
    rose = any(metric.rise > 0 for metric in changed)

    def order(metric: MetricVerdict) -> tuple[float | bool, ...]:
        fell = rose and metric.metric == OPERATORS and metric.rise < 0
        effect = not (work and metric.metric in (SETTINGS, OPERATORS, FLOPS))
        return metric.rank, fell, effect, *cause_first(metric)

    ordered = sorted(metrics, key=order)
    if any(metric.decides for metric in ordered):
        ordered.sort(key=lambda one: bool(one.waived_until) or one.status is not Status.CHANGED)
    return ordered


def worst_of(metrics: Iterable[MetricVerdict]) -> MetricVerdict | None:
    """Return the gated metric that decides: the first in the order of a report."""
    return next(iter(worst_first(metric for metric in metrics if metric.gated)), None)


class Straggler(DocumentPart, frozen=True):
    """The rank that got slower than all others, without its waits for others."""

    rank: int
    old_ms: float
    new_ms: float
    others_pct: float  # by how much the second slowest rank got slower


class Verdict(DocumentPart, frozen=True):
    """A case's verdict: that of its worst gated metric, or of the case as a whole."""

    case_id: str
    status: Status
    reason: Reason
    figures: OfCase | None = None  # if the case is judged as a whole; None if a metric decides
    detail: str = ""
    metrics: tuple[MetricVerdict, ...] = ()
    recordings: int = 0  # how many of them the comparison uses
    recorded: bool = False  # the run recorded its evidence
    accepted: bool = False  # the tree's own baseline accepts it, but another branch's judged
    against: str = ""  # the other revision of an A/B comparison
    p_value: float | None = None  # of the hypothesis that the step is no slower than the other's
    waived_until: str = ""  # if all that fails is waived: the first day on which a waiver ends
    permissions: tuple[PermissionOutcome, ...] = ()  # of the case, with their effects
    # Libraries whose versions differ from the recording's, "transformers 5.22 -> 5.23". Written
    # only if there are any.
    libraries: str | msgspec.UnsetType = msgspec.UNSET
    explanation: Explanation | None = None  # of the time, if both sides have a profile
    straggler: Straggler | None = None  # in pairs: the rank that got slower than all others

    @property
    def whole(self) -> bool:
        """Tell whether the case was judged as a whole, without a deciding metric."""
        return self.figures is not None

    @property
    def message(self) -> str:
        """Return the sentence of a case that was judged as a whole; empty if a metric decided."""
        return self.figures.sentence if self.figures else ""

    @property
    def outcome(self) -> Outcome:
        """Return pytest's word for the case: also passed if it is waived, or just recorded."""
        return "passed" if self.waived_until or self.recorded else self.status.outcome

    @property
    def label(self) -> str:
        """Return the status, with the last day if it is waived."""
        until = f" (waived until {self.waived_until})" if self.waived_until else ""
        return self.status.value + until

    @property
    def word(self) -> str:
        """Return the word for the verdict in a run's table and counts."""
        # A recorded case has a baseline now, so nobody should look for one.
        is_new = self.recorded and self.status is Status.NO_BASELINE
        return "recorded" if is_new else self.label

    @property
    def has_notice(self) -> bool:
        """Tell whether the case passes and the report shows a notice on it."""
        noticed = any(metric.gated and metric.has_notice for metric in self.metrics)
        return self.status.outcome == "passed" and noticed

    @property
    def worst(self) -> MetricVerdict | None:
        """Return the metric that decided, if one did."""
        return worst_of(self.metrics)

    @property
    def joins(self) -> Joins:
        """Return whether the run may join its case's level."""
        if self.whole:
            return Joins.ANOTHER
        each = {metric.joins for metric in self.metrics if metric.gated}
        order = Joins.ANOTHER, Joins.UNPROVEN
        return next((joins for joins in order if joins in each), Joins.ITSELF)

    @property
    def moved(self) -> list[MetricVerdict]:
        """Return the gated metrics that are not `same`."""
        return [m for m in self.metrics if m.gated and m.status is not Status.SAME]

    def gated(self, outcome: Outcome) -> list[MetricVerdict]:
        """Return the gated metrics that have this outcome."""
        return [m for m in self.metrics if m.gated and m.outcome == outcome]


def outcome_of_run(verdicts: Iterable[Verdict]) -> Outcome:
    """Return whether all cases of a run pass. It is failed if there are none."""
    outcomes = {verdict.outcome for verdict in verdicts}
    return "passed" if outcomes == {"passed"} else "failed"
