"""Verdict types: what can be said of a metric and of a case, and why, as data.

Every verdict has a reason and the figures of its sentence. The rules that choose are in judge/.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from stepguard.core.explanation import Explanation
from stepguard.core.margins import Margins
from stepguard.core.metrics import (
    BETWEEN_STEPS,
    COLLECTIVE_BYTES,
    COLLECTIVES,
    GARBAGE,
    GRAPH_NODES,
    GROWING_LINES,
    OPERATORS,
    PEAK,
    SETTINGS,
)
from stepguard.core.permission import PermissionOutcome
from stepguard.core.reason_sentences import OfCase, OfConfirmation, OfMetric, SlowSteps
from stepguard.core.reasons import NOTICES, Reason
from stepguard.core.site import Site
from stepguard.core.status import Outcome, Status


class _Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a verdict, as rules return it and as a run's document holds it."""


class Confirmation(StrEnum):
    """What pairs beside the recording's commit, or the lack of them, say of an alarm."""

    CONFIRMED = "CONFIRMED"  # the code is slower, or faster
    STEP_SAME = "STEP_SAME"  # kernels take longer, the step does not
    MACHINE = "MACHINE"  # the machine changed, the code did not
    UNDECIDED = "UNDECIDED"  # the pairs do not decide
    NOT_CLEARED = "NOT_CLEARED"  # the pairs see no difference, and that need not be the machine
    NOT_MEASURED = "NOT_MEASURED"  # no pairs could be had, or judged


class Decision(_Data, frozen=True):
    """A time, judged by its pairs; percent of the base's step time, positive is slower."""

    status: Status  # INCONCLUSIVE while pairs are wanted
    reason: Reason
    estimate_pct: float
    low_pct: float  # the two bounds that decide, 90 % together over all analyses
    high_pct: float
    pairs: int
    sd_pct: float  # of 100 * d, moderated
    p_value: float  # that there is no slowdown at all; for all analyses
    smallest_detectable_pct: float  # by the whole plan at this standard deviation
    final: bool  # no further pair is wanted
    with_replaced_pct: float | None = None  # the change, if pairs that others replaced count, too


class PairsFinding(_Data, frozen=True):
    """A decision with all that it rests on."""

    decision: Decision
    margins: Margins
    alpha: float  # the level of the case among those of its run
    together: bool  # both revisions alive, one of them parked; else one after the other
    most: int = 0  # pairs that the plan allows, where it was not followed to its end
    again: int = 0  # pairs that were disturbed, measured again
    stays: str = ""  # the day and time of the earlier run that measured it: nothing was since
    not_enough: str = ""  # why no fewer pairs were enough for `same`


class NoComparison(_Data, frozen=True, tag=True):
    """Why HEAD and the recording's commit cannot be compared."""

    status: Status
    reason: Reason
    figures: OfCase

    @property
    def text(self) -> str:
        """Return it in words."""
        return f"{self.status.value}, {self.figures.sentence}"


class Confirmed(_Data, frozen=True):
    """The answer to an alarm of recordings, or the reason why there is none."""

    outcome: Confirmation
    commit: str = ""  # the one that was chosen, and how
    step: PairsFinding | None = None  # the decision that counts
    hidden: bool = False  # the code is SLOWER, and recordings said FASTER
    why: OfConfirmation | NoComparison | None = None  # it is not cleared, or not measured


class PartMove(_Data, frozen=True):
    """A part of a counter that moved: an operator, a direction of copies, a collective."""

    name: str
    old: int
    new: int


class MetricVerdict(_Data, frozen=True):
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
    figures: OfMetric | None = None  # what else its note says
    slow_steps: SlowSteps | None = None  # of a step time: within launches

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
    SETTINGS,
    "graph_breaks",
    "recompiles",
    COLLECTIVES,
    GARBAGE,
    GRAPH_NODES,
    "leaked_bytes_per_step",
    GROWING_LINES,
    OPERATORS,
    BETWEEN_STEPS,
    "pageable_copies_per_step",
    "copies_per_step",
    "copied_bytes_per_step",
    "memsets_per_step",
    "device_allocations_per_step",
    "unique_graphs",
    "uncached_graphs",
    "generated_kernels",
    "compiled_operator_calls_per_step",
    COLLECTIVE_BYTES,
    "launches_per_step",
    "flops_per_step",
    "tokens_per_step",
    PEAK,
)


def cause_first(metric: MetricVerdict) -> tuple[float, float, bool]:
    """Return a metric's place in the order of a report: the worst first, and of equals the one that
    the others follow from. A time comes before any counter.
    """
    cause: float = _CAUSES.index(metric.metric) if metric.metric in _CAUSES else -1
    if metric.metric == COLLECTIVES and metric.old == metric.new:
        cause = _CAUSES.index(COLLECTIVE_BYTES)  # as many, of other sizes
    if metric.metric == OPERATORS and all(site.phase for site in metric.sites):
        cause = _CAUSES.index(BETWEEN_STEPS) + 0.5
    return metric.rank, cause, metric.place is None


def worst_of(metrics: Iterable[MetricVerdict]) -> MetricVerdict | None:
    """Return the worst gated metric; of equals the one that the others follow from."""
    return min((metric for metric in metrics if metric.gated), key=cause_first, default=None)


class Straggler(_Data, frozen=True):
    """The rank that got slower against itself; without the time in which it waits for others."""

    rank: int
    old_ms: float
    new_ms: float
    others_pct: float  # by how much the next one of the other ranks got slower


class Verdict(_Data, frozen=True):
    """A case's verdict: that of its worst gated metric, or of the case as a whole."""

    case_id: str
    status: Status
    reason: Reason
    figures: OfCase | None = None  # of the case as a whole; None when a metric decides
    detail: str = ""
    metrics: tuple[MetricVerdict, ...] = ()
    recordings: int = 0  # how many the comparison rests on
    recorded: bool = False  # this run's evidence was accepted by --perf-update
    accepted: bool = False  # by the tree's own baseline, where another branch's judged
    against: str = ""  # the other revision of an A/B comparison
    p_value: float | None = None  # of the step time: that it is no slower than the other's
    waived_until: str = ""  # everything that fails is waived; the first of the waivers to end
    permissions: tuple[PermissionOutcome, ...] = ()  # of the case, and what each of them did
    # Those that are others than the recording's, "transformers 5.22 -> 5.23". Only then written.
    libraries: str | msgspec.UnsetType = msgspec.UNSET
    explanation: Explanation | None = None  # of the time, where both sides have a profile
    straggler: Straggler | None = None  # in pairs: the rank that got slower than the others

    @property
    def whole(self) -> bool:
        """Tell whether the case as a whole was judged, and no metric decided."""
        return self.figures is not None

    @property
    def message(self) -> str:
        """Return the sentence of a case that was judged as a whole; empty if a metric decided."""
        return self.figures.sentence if self.figures else ""

    @property
    def outcome(self) -> Outcome:
        """Return pytest's word: the status's, unless it is waived."""
        return "passed" if self.waived_until else self.status.outcome

    @property
    def label(self) -> str:
        """Return the status, and that it is waived."""
        until = f" (waived until {self.waived_until})" if self.waived_until else ""
        return self.status.value + until

    @property
    def word(self) -> str:
        """Return the verdict as a run's table and counts name it."""
        if not self.recorded or self.status is Status.SAME:
            return self.label
        # Once recorded, a case has its baseline, and nobody is to look for one.
        is_new = self.status is Status.NO_BASELINE
        return "recorded" if is_new else f"{self.status.value} (recorded)"

    @property
    def has_notice(self) -> bool:
        """Tell whether it has something to say though it passes."""
        noticed = any(metric.gated and metric.reason in NOTICES for metric in self.metrics)
        declared = any(outcome.permission.is_trailer for outcome in self.permissions)
        return self.status.outcome == "passed" and (noticed or declared)

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
