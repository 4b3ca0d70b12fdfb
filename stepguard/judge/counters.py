"""One metric of a case against recordings: a time, a count, a difference.

Both sides have one type: ``now`` is this run's summary, ``past`` are comparable recordings of one
epoch, oldest first, or the other revision's summary alone.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stepguard.core.figures import OwnLimit
from stepguard.core.metrics import (
    COLLECTIVES,
    JUDGED_TIME,
    METRICS,
    OPERATOR_METRICS,
    OPERATORS,
)
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove
from stepguard.judge.moved_places import is_view, moved_places, packet_of
from stepguard.judge.noise_limits import DIFFERENCE_LIMIT_PCT, Screen, screen

Said = tuple[Status, Reason]
# Parts of a step, those first that the others follow from: a product, any other operator, what
# autograd adds beside them, their backward passes, and views.
OTHER_KIND = 1
_KINDS = {
    0: re.compile(r"attention|convolution|mm(\.|$)"),
    2: re.compile(r"[.:](add|clone|copy|fill|mul|ones_like|sum|zeros_like)_?(\.|$)"),
    3: re.compile(r"backward"),
    4: re.compile(
        r"[.:](_unsafe_view|alias|as_strided|detach|empty\w*|expand|lift_fresh|permute|reshape|"
        r"select|slice|split|squeeze|t|transpose|unbind|unsqueeze|view)(\.|$)"
    ),
}
# Operators whose overloads compute as much: others sort stably, round, or raise to tensors' powers.
_ALIKE = re.compile(r"^aten\.(add|arange|eq|full|ge|gt|le|lt|mean|mul|ne|sub|sum)_?$")
_UNTYPED = "aten._to_copy.default"
_CAST = re.compile(r"(?<=_to_copy)\[\w+\]")  # the type that it makes
VIEWS_PCT = 2.0  # of the calls: more of them is work for the host; of launches it is as much


def compare(
    metric: str,
    now: Recording,
    past: Sequence[Recording],
    gates: Sequence[str],
    recorded: bool = False,
) -> MetricVerdict:
    """Return the metric's verdict; ``now`` must hold it. ``recorded``: ``past`` is a baseline's,
    which may be older than a new counter. That is counted, not compared.
    """
    kind, new, gated = METRICS[metric].kind, now.values()[metric], metric in gates
    if recorded and METRICS[metric].new and not any(metric in one.counters for one in past):
        lacks = Status.SAME, Reason.METRIC_NOT_RECORDED
        return MetricVerdict(metric, *lacks, new=new, gated=gated)
    if metric == JUDGED_TIME:
        return _compare_time(new, screen_of(now, past), gated)
    if kind == "difference":
        return _compare_difference(metric, now, past[-1], gated)
    if kind == "counter" and metric != "tokens_per_step":
        return _compare_count(metric, now, past, gated)
    if metric == "tokens_per_step":
        old: float | None = past[-1].tokens_per_step  # equal, or there had been no comparison
        said = Status.SAME, Reason.EQUAL
    else:
        old, said = past[-1].information.get(metric), (Status.SAME, Reason.NOT_JUDGED)
    return MetricVerdict(metric, *said, old, new, _change_pct(old, new), gated=gated)


def screen_of(now: Recording, past: Sequence[Recording]) -> Screen | None:
    """Compare the step time with recordings that have it, by rank 0's card; None if none has."""
    by_card: dict[str, list[Sequence[float]]] = {}
    for recording in past:
        if times := recording.times_ms.get(JUDGED_TIME):
            by_card.setdefault(recording.device_uuid, []).append(times)
    own = by_card.get(now.device_uuid, []) if now.device_uuid else []
    return screen(now.times_ms[JUDGED_TIME], own, list(by_card.values())) if by_card else None


def _change_pct(old: float | None, new: float) -> float | None:
    return 100 * (new / old - 1) if old else None


def _not_recorded(metric: str, new: float, gated: bool) -> MetricVerdict:
    lacks = Status.NO_BASELINE, Reason.METRIC_NOT_RECORDED
    return MetricVerdict(metric, *lacks, new=new, gated=gated)


def _compare_time(new: float, found: Screen | None, gated: bool) -> MetricVerdict:
    if found is None:
        return _not_recorded(JUDGED_TIME, new, gated)
    return MetricVerdict(
        JUDGED_TIME,
        *_against_limit(found.change_pct, found.limit_pct, found.noisy),
        # The level that the change refers to, the mean over recordings; none of them need have it.
        old=new / (1 + found.change_pct / 100),
        new=new,
        change_pct=found.change_pct,
        limit_pct=found.limit_pct,
        noise_pct=found.se_pct,
        gated=gated,
        figures=OwnLimit(own_card=found.own_card, compared=found.compared),
    )


def _compare_difference(metric: str, now: Recording, past: Recording, gated: bool) -> MetricVerdict:
    """Judge in percentage points of a step: a difference may be zero, and no ratio of it means
    anything. ``change_pct`` and ``noise_pct`` are such points.
    """
    one, then = now.differences_pct[metric], past.differences_pct.get(metric)
    if then is None:
        return _not_recorded(metric, one.mean, gated)
    moved, limit = one.mean - then.mean, DIFFERENCE_LIMIT_PCT
    said = _against_limit(moved, limit, noisy=not one.half_width <= limit)
    noise = one.half_width
    return MetricVerdict(metric, *said, then.mean, one.mean, moved, limit, noise, gated=gated)


def _against_limit(change_pct: float, limit_pct: float, noisy: bool) -> Said:
    """Compare a change with a limit, either way."""
    # Before the limit: noise that exceeds it may hide a change, or make one up.
    if noisy:
        return Status.INCONCLUSIVE, Reason.TOO_NOISY
    if abs(change_pct) <= limit_pct:
        return Status.SAME, Reason.WITHIN_LIMIT
    return Status.SLOWER if change_pct > 0 else Status.FASTER, Reason.BEYOND_LIMIT


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


def _compare_count(
    metric: str, now: Recording, past: Sequence[Recording], gated: bool
) -> MetricVerdict:
    new, old = now.counters[metric], _recorded_count(metric, past)
    # Without its parts a recording cannot tell one that hides behind another that is gone.
    lost = METRICS[metric].parts and metric in now.detail and metric not in past[-1].detail
    if old is None or lost and new == old:
        return _not_recorded(metric, new, gated)
    moved = _moved_parts(metric, now, past[-1])
    called = _moved_parts(OPERATORS, now, past[-1]) if metric == COLLECTIVES else moved
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
        _change_pct(found.old, found.new),
        moved=moved if shown and reason is not Reason.EQUAL else (),
        ranks=found.ranks,
        sites=moved_places(metric, now, past[-1], called, new - old) if shown else (),
        gated=gated,
        failing_ranks=found.failing,
    )


def _by_parts(metric: str, said: Said, moved: Sequence[PartMove], calls: int) -> Said:
    """Return what a count says, by what it is made of."""
    reason = said[1]
    if reason is Reason.EQUAL and moved and METRICS[metric].parts:
        # As many operators, but other ones: an improvement would hide what was added beside it.
        said = Status.CHANGED, Reason.WORK_MOVED
    alike = metric in OPERATOR_METRICS and _computes_as_much(moved, calls)
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


def _moved_parts(metric: str, now: Recording, past: Recording) -> tuple[PartMove, ...]:
    """Return the parts of a counter that moved, those first that the others follow from."""
    new, old = now.detail.get(metric, {}), past.detail.get(metric, {})
    if not old and past.counters.get(metric):  # what it was made of is not known
        return ()
    # Of a GPU alone, whose time tells a copy from a cast: on a CPU there is nothing but the name.
    if past.device_uuid and _UNTYPED in old and not any(_CAST.search(name) for name in old):
        new = _without_types(new)
    moves = [
        PartMove(name, old.get(name, 0), new.get(name, 0))
        for name in sorted(old.keys() | new.keys())
        if old.get(name, 0) != new.get(name, 0)
    ]
    return tuple(sorted(moves, key=_distance_from_cause))


def _without_types(parts: Mapping[str, int]) -> dict[str, int]:
    """Return the parts as a recording has them that is older than types in the names of casts."""
    found: Counter[str] = Counter()
    for name, count in parts.items():
        found[_CAST.sub("", name)] += count
    return found


def _computes_as_much(moved: Sequence[PartMove], calls: int) -> bool:
    """Tell whether nothing moved but how operators are called: by another overload, by other views,
    or with a few views more or fewer.
    """
    changes: Counter[str] = Counter()
    for part in moved:
        packet = packet_of(part.name)
        alike = is_view(packet) or _ALIKE.search(packet)
        changes[packet if alike else part.name] += part.new - part.old
    views = all(is_view(name) for name, change in changes.items() if change)
    return bool(moved) and views and abs(changes.total()) <= VIEWS_PCT / 100 * calls


def _distance_from_cause(part: PartMove) -> tuple[int, bool, bool, bool, int]:
    """Order parts: by their kind, what is new or lost, attention before the products that are put
    in its place, what is new before what it replaces, then by how far.
    """
    kinds = [rank for rank, kind in _KINDS.items() if kind.search(part.name)]
    kind = max(kinds, default=OTHER_KIND)
    changed_number = 0 not in (part.old, part.new)
    lost = part.new < part.old
    return kind, changed_number, "attention" not in part.name, lost, -abs(part.new - part.old)
