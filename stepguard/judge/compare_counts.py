"""A count of a case against recordings: of the busiest rank, or of the rank that it is worse on."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from stepguard.core.metrics import METRICS, OPERATOR_METRICS
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove
from stepguard.judge.moved_places import computes_as_much, moved_parts, where_moved

Said = tuple[Status, Reason]


def compare_count(
    metric: str, now: Recording, past: Sequence[Recording], gated: bool
) -> MetricVerdict:
    """Return the verdict on a count, which ``now`` must hold: its ranks, parts and places too."""
    new, old = now.counters[metric], _recorded_count(metric, past)
    # Without its parts a recording cannot tell one that hides behind another that is gone.
    lost = METRICS[metric].parts and metric in now.detail and metric not in past[-1].detail
    if old is None or lost and new == old:
        return not_recorded(metric, new, gated)
    moved = moved_parts(metric, now, past[-1])
    busiest = _Count(old, new, _by_parts(metric, _judge_count(metric, old, new), moved, old))
    # After the parts: what falls on one rank must not hide other parts that another one has.
    found = _compare_ranks(metric, now, past, busiest)
    reason = found.said[1]
    # What is within its limit is nothing that a reader has to know. Where a count is equal places
    # are shown all the same: one may be at another place now.
    shown = reason is not Reason.WITHIN_LIMIT
    return MetricVerdict(
        metric,
        *found.said,
        found.old,
        found.new,
        change_pct_of(found.old, found.new),
        moved=moved if shown and reason is not Reason.EQUAL else (),
        ranks=found.ranks,
        sites=where_moved(metric, now, past[-1], moved, new - old) if shown else (),
        gated=gated,
        failing_ranks=found.failing,
    )


def change_pct_of(old: float | None, new: float) -> float | None:
    """Return by how many percent a figure moved; None beside zero, or nothing."""
    return 100 * (new / old - 1) if old else None


def not_recorded(metric: str, new: float, gated: bool) -> MetricVerdict:
    """Return the verdict on a metric that the recordings lack."""
    lacks = Status.NO_BASELINE, Reason.METRIC_NOT_RECORDED
    return MetricVerdict(metric, *lacks, new=new, gated=gated)


@dataclass(frozen=True)
class _Count:
    """A count of now beside the recorded one, and what that says; of some ranks, or of all."""

    old: float
    new: float
    said: Said
    ranks: tuple[int, ...] = ()
    failing: tuple[tuple[float, float], ...] = ()

    @property
    def status(self) -> Status:
        return self.said[0]


def _by_parts(metric: str, said: Said, moved: Sequence[PartMove], calls: int) -> Said:
    """Return what a count says, by what it is made of."""
    reason = said[1]
    if reason is Reason.EQUAL and moved and METRICS[metric].parts:
        # As many operators, but other ones: an improvement would hide what was added beside it.
        said = Status.CHANGED, Reason.WORK_MOVED
    alike = metric in OPERATOR_METRICS and computes_as_much(moved, calls)
    if said[1] is Reason.WORK_MOVED and alike:
        return Status.SAME, Reason.WITHIN_LIMIT
    return said


def _recorded_count(metric: str, past: Sequence[Recording]) -> int | None:
    """Return the newest recording's count; the epoch's lowest where a metric may rise a little, so
    that small rises do not add up, one recording at a time.
    """
    newest = past[-1].counters.get(metric)
    if newest is None or not METRICS[metric].tolerant:
        return newest
    return min(recording.counters.get(metric, newest) for recording in past)


def _judge_count(metric: str, old: float, new: float) -> Said:
    row = METRICS[metric]
    if new == old:
        return Status.SAME, Reason.EQUAL
    if row.role == "work":
        return Status.CHANGED, Reason.WORK_MOVED
    if abs(new - old) < row.floor:
        return Status.SAME, Reason.WITHIN_LIMIT
    # Before the slack, so that a gain of less than the slack is FASTER, too.
    if new < old:
        return Status.FASTER, Reason.COUNTER_FELL
    if new <= old * (1 + row.slack_pct / 100):
        return Status.SAME, Reason.WITHIN_LIMIT
    return Status.CHANGED, Reason.COUNTER_ROSE


def _compare_ranks(
    metric: str, now: Recording, past: Sequence[Recording], busiest: _Count
) -> _Count:
    """Return the rank that counted most, unless that hides what another rank counts; with the ranks
    that it is of, where it is not of all.
    """
    new, old = now.unlike_ranks().get(metric), _recorded_ranks(metric, past)
    ranks = len(new or old or ())
    if not ranks:  # one rank, or all of them alike, now and then
        return busiest
    both = zip(
        old or [int(busiest.old)] * ranks,
        new or [int(busiest.new)] * ranks,
        strict=True,
    )
    each = [_Count(then, count, _judge_count(metric, then, count)) for then, count in both]
    worst = min(each, key=lambda one: one.status.rank)
    # Of equals the busiest: its figures are the counter's own.
    found = worst if worst.status.rank < busiest.status.rank else busiest
    if found.status is Status.SAME:
        return found
    its = [rank for rank, one in enumerate(each) if one.status is found.status]
    failing = [each[rank] for rank in its]
    if found.status is not Status.CHANGED:
        failing = []
    elif found.new == found.old:  # other parts, of as many: of which ranks, is not known
        its, failing = [], [found, *failing]
    counts = tuple((one.old, one.new) for one in failing)
    return _Count(found.old, found.new, found.said, _some(its, ranks), counts)


def _recorded_ranks(metric: str, past: Sequence[Recording]) -> list[int] | None:
    """Return the newest recording's count of each rank; the epoch's lowest where it may rise.
    None where no recording has ranks that differ.

    Recordings from before ranks were kept apart are left out; the newest of a file never is one.
    """
    known = [r for r in past if r.by_rank is not msgspec.UNSET and metric in r.counters]
    each = [recording.unlike_ranks().get(metric) for recording in known]
    ranks = max((len(counts) for counts in each if counts), default=0)
    if not ranks:
        return None
    whole = [
        counts or [recording.counters[metric]] * ranks
        for counts, recording in zip(each, known, strict=True)
    ]
    lowest = [min(counts) for counts in zip(*whole, strict=True)]
    return lowest if METRICS[metric].tolerant else whole[-1]


def _some(its: list[int], ranks: int) -> tuple[int, ...]:
    """Return the ranks, unless it is all of them."""
    return tuple(its) if len(its) < ranks else ()
