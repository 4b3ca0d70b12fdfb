"""Rules for a measurement without regard to a baseline: it must be complete, and believable.

In order, and the first that applies decides: a worker or the machine failed; launches are missing;
the measurement contradicts itself or the hardware; it did not get steady; a gated metric is missing
or differs between steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from stepguard.core.evidence import Difference, Evidence, Launch
from stepguard.core.figures import (
    BelowFloor,
    Failed,
    NegativeDifference,
    NoGates,
    NoneMeasured,
    NotMeasured,
    OfCase,
    RepeatedGap,
    TooFewLaunches,
    Undecided,
    Unstable,
)
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.noise_limits import DIFFERENCE_LIMIT_PCT, paired
from stepguard.judge.summary import summarise


@dataclass(frozen=True)
class Refusal:
    """Why a case is judged as a whole, or cannot be recorded, and no metric decides."""

    status: Status
    reason: Reason
    figures: OfCase
    detail: str = ""


def measurement_problem(evidence: Evidence) -> Refusal | None:
    """Return why this evidence cannot be judged or recorded; None if it is sound."""
    # Faults first: they explain why launches or metrics are missing.
    for fault in evidence.faults:
        status = Status.UNFIT if Status.UNFIT in fault.code.statuses else Status.BROKEN
        launch = fault.during.partition(",")[0]  # the message says where in it
        failed = Failed(launch=launch, message=fault.message, site=fault.site)
        return Refusal(status, fault.code, failed, fault.detail)
    if not evidence.launches or evidence.fingerprint is None:
        return _broken(Reason.NOTHING_MEASURED, NoneMeasured(what="launch"))
    count, planned = len(evidence.launches), evidence.planned_launches
    if count < planned and not _unsteady(evidence):  # after which no other launch follows
        few = TooFewLaunches(launches=count, planned=planned)
        return _broken(Reason.NOTHING_MEASURED, few)
    return _contradiction(evidence) or _undecided(evidence)


def _broken(reason: Reason, figures: OfCase) -> Refusal:
    return Refusal(Status.BROKEN, reason, figures)


def _labelled(evidence: Evidence) -> Iterator[tuple[str, Launch]]:
    for launch in evidence.launches:
        yield f"launch {launch.index}", launch
    if evidence.one_rank:
        yield "one-rank launch", evidence.one_rank


def _contradiction(evidence: Evidence) -> Refusal | None:
    for label, launch in _labelled(evidence):
        if not launch.blocks:
            return _broken(Reason.NOTHING_MEASURED, NoneMeasured(launch=label, what="block"))
        for block in launch.blocks:
            if bad := block.bad_times():
                return _broken(Reason.NOTHING_MEASURED, structs.replace(bad, launch=label))
            if gap := block.clock_gap():
                return _broken(Reason.CLOCKS_DISAGREE, structs.replace(gap, launch=label))
    if gaps := _repeated_clock_gap([launch for _, launch in _labelled(evidence)]):
        return _broken(Reason.CLOCKS_DISAGREE, gaps)
    for difference in evidence.differences:
        if wrong := difference.bad_times():
            return _broken(Reason.NOTHING_MEASURED, wrong)
        if f"{difference.name}_pct" in evidence.gates and (how := _negative(difference)):
            return _broken(Reason.CONTRADICTION, how)
    # Only now: every launch has blocks, and every block valid times, so that there is a step_ms.
    floor, step_ms = evidence.floor_ms(), summarise(evidence).values()[JUDGED_TIME]
    if floor is not None and step_ms < floor:
        below = BelowFloor(step_ms=step_ms, floor_ms=floor)
        return _broken(Reason.FASTER_THAN_PHYSICS, below)
    return None


def _repeated_clock_gap(launches: Sequence[Launch]) -> RepeatedGap | None:
    """Return the first gap if blocks were measured again for it in too many launches.

    A host stalls once in some 300 blocks; work that the events do not see, every so many steps,
    returns.
    """
    gaps = [gap for launch in launches for one in launch.discarded if (gap := one.clock_gap())]
    if len(gaps) <= max(1, len(launches) // 3):
        return None
    return RepeatedGap(blocks=len(gaps), launches=len(launches), first=gaps[0])


def _negative(difference: Difference) -> NegativeDifference | None:
    """Return the figures if steps without exchange take longer beyond doubt. Of a synchronization
    that is not said: a card at its power cap may answer to the pauses.
    """
    found = paired(difference.pairs_ms)
    surely = found.mean_pct + found.half_width_pct < -DIFFERENCE_LIMIT_PCT
    if difference.name != "exposed_comm" or not surely:
        return None
    return NegativeDifference(
        difference=difference.name,
        mean_pct=found.mean_pct,
        half_width_pct=found.half_width_pct,
    )


def _undecided(evidence: Evidence) -> Refusal | None:
    if launch := _unsteady(evidence):
        unsteady = Undecided(launch=f"launch {launch.index}", why=launch.steady)
        return Refusal(Status.INCONCLUSIVE, Reason.NOT_STEADY, unsteady)
    if not evidence.gates:  # of a file that was edited: a case always has some
        return _broken(Reason.METRIC_MISSING, NoGates())
    unstable, sites = evidence.counted.unstable, evidence.counted.sites
    values = summarise(evidence).values()
    # Never skipped: a metric that is gated and missing would pass unseen.
    for name in evidence.gates:
        if name not in values and name not in unstable:
            return _broken(Reason.METRIC_MISSING, NotMeasured(metric=name))
    # First the one that can say where.
    for name in sorted(set(evidence.gates) & unstable.keys(), key=lambda n: n not in sites):
        where = tuple(sites.get(name, ()))
        unequal = Unstable(metric=name, why=unstable[name], sites=where)
        return Refusal(Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE, unequal)
    return None


def _unsteady(evidence: Evidence) -> Launch | None:
    """Return the first launch that never got steady; None where only counters are gated, which do
    not depend on clocks that still move.
    """
    launches = evidence.launches if JUDGED_TIME in evidence.gates else ()
    return next((one for one in launches if one.steady), None)


def undecided_metrics(evidence: Evidence) -> tuple[MetricVerdict, ...]:
    """Return the gated metrics of which otherwise whole evidence says nothing, and why."""
    unstable, sites = evidence.counted.unstable, evidence.counted.sites
    unsteady = next((launch.steady for launch in evidence.launches if launch.steady), "")
    why = {name: [(Reason.COUNT_UNSTABLE, text)] for name, text in unstable.items()}
    if unsteady:
        why[JUDGED_TIME] = [(Reason.NOT_STEADY, unsteady)]
    return tuple(
        MetricVerdict(
            name,
            Status.INCONCLUSIVE,
            reason,
            sites=tuple(sites.get(name, ())),
            figures=Undecided(why=text),
        )
        for name in evidence.gates
        for reason, text in why.get(name, ())
    )


def uncompared(
    now: Recording, gates: Sequence[str], status: Status, reason: Reason
) -> tuple[MetricVerdict, ...]:
    """Return what was measured, in the table's order, where nothing can be compared."""
    values = now.values()
    return tuple(
        MetricVerdict(name, status, reason, new=values[name], gated=name in gates)
        for name in METRICS
        if name in values
    )
