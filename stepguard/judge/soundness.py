"""Rules for a measurement by itself, without a baseline: it must be complete and plausible. The
first rule that applies decides. Pairs are measured again if something beside the code may have
slowed a side down.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepguard.core.comparison import LaunchPair
from stepguard.core.evidence import Evidence, Launch
from stepguard.core.margins import PRIOR
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.reason_sentences import ClockGap, Failed, Missing, OfCase, Undecided, Unstable
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.summarise_evidence import summarise


@dataclass(frozen=True)
class Refusal:
    """Why no metric decides a case, or why its evidence cannot be recorded."""

    status: Status
    reason: Reason
    figures: OfCase
    detail: str = ""


def measurement_problem(evidence: Evidence) -> Refusal | None:
    """Return why this evidence cannot be judged or recorded; None if it is sound."""
    # Faults come first: they explain why launches or metrics are missing.
    for fault in evidence.faults:
        known = (Status.UNFIT, Status.INCONCLUSIVE)
        status = next((each for each in known if each in fault.code.statuses), Status.BROKEN)
        launch = fault.during.partition(",")[0]  # without the stage, which the message names
        failed = Failed(launch=launch, message=fault.message, site=fault.site)
        return Refusal(status, fault.code, failed, fault.detail)
    if not evidence.launches or evidence.fingerprint is None:
        return _broken(Reason.NOTHING_MEASURED, Missing(what="launches"))
    count, planned = len(evidence.launches), evidence.planned_launches
    if count < planned and not unsteady_launch(evidence):  # no launch follows an unsteady one
        few = Missing(what="launches", found=count, needed=planned)
        return _broken(Reason.NOTHING_MEASURED, few)
    return _contradiction(evidence) or _undecided(evidence)


def _broken(reason: Reason, figures: OfCase) -> Refusal:
    return Refusal(Status.BROKEN, reason, figures)


def _contradiction(evidence: Evidence) -> Refusal | None:
    for launch in evidence.launches:
        label = f"launch {launch.index}"
        if not launch.blocks:
            return _broken(Reason.NOTHING_MEASURED, Missing(launch=label, what="blocks"))
        for block in launch.blocks:
            if bad := block.bad_times(launch=label):
                return _broken(Reason.NOTHING_MEASURED, bad)
            if gap := block.clock_gap(launch=label):
                return _broken(Reason.CLOCKS_DISAGREE, gap)
    if gaps := _repeated_clock_gap(evidence.launches):
        return _broken(Reason.CLOCKS_DISAGREE, gaps)
    for difference in evidence.differences:
        if wrong := difference.bad_times():
            return _broken(Reason.NOTHING_MEASURED, wrong)
    # The next check needs a step time, so it comes after the checks of blocks and their times.
    floor, step_ms = evidence.floor_ms(), summarise(evidence).values()[JUDGED_TIME]
    if floor is not None and step_ms < floor:
        least = "the GPU's peak allows no less than"
        below = ClockGap(clock="the step", clock_ms=step_ms, other=least, other_ms=floor)
        return _broken(Reason.CLOCKS_DISAGREE, below)
    return None


def _repeated_clock_gap(launches: Sequence[Launch]) -> ClockGap | None:
    """Return the first clock gap if too many blocks were measured again because of one; else None.
    A host that stalls causes one in some 300 blocks, work that events miss causes more.
    """
    blocks = [block for launch in launches for block in launch.discarded if block.clock_gap()]
    if len(blocks) <= max(1, len(launches) // 3):
        return None
    return blocks[0].clock_gap(blocks=len(blocks), launches=len(launches))


def _undecided(evidence: Evidence) -> Refusal | None:
    if launch := unsteady_launch(evidence):
        unsteady = Undecided(launch=f"launch {launch.index}", why=launch.steady)
        return Refusal(Status.INCONCLUSIVE, Reason.NOT_STEADY, unsteady)
    if not evidence.gates:  # the file was edited, since a case always gates something
        return _broken(Reason.NOTHING_MEASURED, Missing(what="gated metrics"))
    unstable, sites = evidence.counted.unstable, evidence.counted.sites
    values = summarise(evidence).values()
    # A gated metric that is missing must not be skipped: it would pass unseen.
    for name in evidence.gates:
        if name not in values and name not in unstable:
            return _broken(Reason.NOTHING_MEASURED, Missing(what=f"values of {name}"))
    # A metric with a known place comes first.
    for name in sorted(set(evidence.gates) & unstable.keys(), key=lambda n: n not in sites):
        where = tuple(sites.get(name, ()))
        unequal = Unstable(metric=name, why=unstable[name], sites=where)
        return Refusal(Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE, unequal)
    return None


def unsteady_launch(evidence: Evidence) -> Launch | None:
    """Return the first launch that never got steady, if the step time is gated; else None."""
    launches = evidence.launches if JUDGED_TIME in evidence.gates else ()
    return next((launch for launch in launches if launch.steady), None)


def undecided_metrics(evidence: Evidence) -> tuple[MetricVerdict, ...]:
    """Return the gated metrics that sound evidence does not decide, each with its reason."""
    unstable, sites = evidence.counted.unstable, evidence.counted.sites
    unsteady = next((launch.steady for launch in evidence.launches if launch.steady), "")
    why = {name: (Reason.COUNT_UNSTABLE, text) for name, text in unstable.items()}
    if unsteady:
        why[JUDGED_TIME] = Reason.NOT_STEADY, unsteady
    if not evidence.launches:
        why[JUDGED_TIME] = Reason.UNDECIDED, "no pair was needed"
    return tuple(
        MetricVerdict(
            name,
            Status.INCONCLUSIVE,
            why[name][0],
            sites=tuple(sites.get(name, ())),
            figures=Undecided(why=why[name][1]),
        )
        for name in evidence.gates
        if name in why
    )


def uncompared(
    now: Recording, gates: Sequence[str], status: Status, reason: Reason
) -> tuple[MetricVerdict, ...]:
    """Return what was measured, in the order of METRICS, for a case that cannot be compared."""
    values = now.values()
    return tuple(
        MetricVerdict(name, status, reason, new=values[name], gated=name in gates)
        for name in METRICS
        if name in values
    )


MOST_REPLACED = 3  # pairs that may be replaced; with more the machine is noisy, and they count
# A pair is out of line if the figure of out_of_line() is above so many standard deviations of
# pairs: 1.1 % by default. The largest figure of 73 pairs on H200s was 0.97 %. A block that is slow
# by 3 % gives 2.1 %.
OUT_OF_LINE_SDS = 5.5


def out_of_line(head: Launch, base: Launch) -> bool:
    """Tell whether a pair's blocks differ within a side by more than they do on a quiet machine.

    The figure is the root of the sum of squares of both sides' differences (in logs, between a
    side's first and last block), divided by the square root of two. These differences are
    orthogonal to the pair's log-ratio. So leaving out such a pair shifts no estimate, whichever
    side is slower.
    """
    if not (head.has_times() and base.has_times()):
        return False
    within = [math.log(side.blocks[0].mean_ms / side.blocks[-1].mean_ms) for side in (head, base)]
    return math.hypot(*within) / math.sqrt(2) > OUT_OF_LINE_SDS * PRIOR.sd_pct / 100


@dataclass(frozen=True)
class Pairs:
    """The pairs that count, those that were replaced, and one that waits for the next one."""

    counted: tuple[LaunchPair, ...] = ()
    replaced: tuple[LaunchPair, ...] = ()
    waiting: LaunchPair | None = None

    def take(self, pair: LaunchPair, on_gpu: bool) -> "Pairs":
        """Return these pairs and a new one. It waits for the next one if a side compiled in a timed
        block, or, on a GPU, if it is out of line. If the next one is like that, too, both count: it
        was no accident. Else the next one replaces it, and it is kept for the record only.
        """
        odd = pair.compiled or on_gpu and out_of_line(pair.head, pair.base)
        if odd and self.waiting is None and len(self.replaced) < MOST_REPLACED:
            return Pairs(self.counted, self.replaced, pair)
        if self.waiting is None or odd:
            return Pairs((*self.ended().counted, pair), self.replaced)
        return Pairs((*self.counted, pair), (*self.replaced, self.waiting))

    def ended(self) -> "Pairs":
        """Return these pairs if none follows: one that waits counts."""
        waits = (self.waiting,) if self.waiting else ()
        return Pairs((*self.counted, *waits), self.replaced)
