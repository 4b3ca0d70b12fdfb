"""Compare one metric of a case, a time, a difference or a count, with recordings or another
revision.

Both sides have one type. ``past`` are comparable recordings of one epoch, oldest first, or only the
other revision's summary. A count is that of the rank that counts most, or has the worse verdict.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from stepguard.core.metrics import FLOPS, JUDGED_TIME, METRICS, NUMBERS, OPERATOR_METRICS, PEAK
from stepguard.core.profile import summed
from stepguard.core.reason_sentences import OverSteps, OwnLimit
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording, on_same_steps
from stepguard.core.site import Site
from stepguard.core.source_marks import without_mark
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove
from stepguard.judge.comparable import of_one_card
from stepguard.judge.compare_numbers import compare_numbers, known_equal
from stepguard.judge.moved_places import computes_as_much, moved_parts, where_moved

# A time raises an alarm if it is so far from the mean of the level's recordings: of this card, or
# of other cards. Pairs answer an alarm. Of 26 accepted recordings on a card that was known none is
# beyond 0.46 % of the others, of 70 beside other cards one is beyond 2 %, by 2.02 % (baselines/).
OWN_CARD_PCT, OTHER_CARD_PCT = 0.7, 2.0
DIFFERENCE_LIMIT_PCT = 0.5  # of a step: hosts differ in how fast they wake up and launch
Said = tuple[Status, Reason]


def compare(
    metric: str,
    now: Recording,
    past: Sequence[Recording],
    gates: Sequence[str],
    recorded: bool = False,
    longer: bool = False,
) -> MetricVerdict:
    """Return the metric's verdict. ``recorded``: ``past`` is a baseline's, so a newer counter is
    only shown. ``longer``: kernels take longer, so a time that is `same` is an alarm, too.
    """
    kind, new, gated = METRICS[metric].kind, now.values()[metric], metric in gates
    known = any(metric in recording.counters for recording in past)
    if recorded and METRICS[metric].new and not known:
        return _not_recorded(metric, new, gated, Status.SAME)
    if metric == JUDGED_TIME:
        return _compare_time(now, past, gated, longer)
    if kind == "difference":
        return _compare_difference(metric, now, past, gated)
    if metric == NUMBERS:
        return compare_numbers(now, past[-1], gated)
    if kind == "counter" and metric != "tokens_per_step":
        return _compare_count(metric, now, past, gated)
    if metric == "tokens_per_step":
        old: float | None = past[-1].tokens_per_step  # equal: another number was refused before
        said = Status.SAME, Reason.EQUAL
    else:
        old, said = past[-1].information.get(metric), (Status.SAME, Reason.NOT_JUDGED)
        gated = False  # only pairs judge information, not recordings
    return MetricVerdict(metric, *said, old, new, _change_pct_of(old, new), gated=gated)


def _compare_time(
    now: Recording, past: Sequence[Recording], gated: bool, longer: bool
) -> MetricVerdict:
    """Judge the step time by recordings of this card; else by others, each card once."""
    by_card: dict[str, list[float]] = {}
    own: list[float] = []
    for recording in past:
        if times := recording.times_ms.get(JUDGED_TIME):
            by_card.setdefault(recording.device_uuid, []).append(_level(times))
            own += [_level(times)] if of_one_card(recording, now) else []
    new, levels = now.values()[JUDGED_TIME], own or [fmean(card) for card in by_card.values()]
    if not levels:
        return _not_recorded(JUDGED_TIME, new, gated)
    change_pct = 100 * math.expm1(_level(now.times_ms[JUDGED_TIME]) - fmean(levels))
    limit_pct = OWN_CARD_PCT if own else OTHER_CARD_PCT
    said = _against_limit(change_pct, limit_pct)
    if longer and gated and said[0] is Status.SAME:
        said = Status.SLOWER, Reason.KERNELS_MOVED
    return MetricVerdict(
        JUDGED_TIME,
        *said,
        # The mean that the change refers to. It need not be any recording's own time.
        old=new / (1 + change_pct / 100),
        new=new,
        change_pct=change_pct,
        limit_pct=limit_pct,
        gated=gated,
        figures=OwnLimit(own_card=bool(own), compared=len(levels)),
    )


def _level(times_ms: Sequence[float]) -> float:
    """Return the mean of the logs of step times: launches differ by ratios."""
    return fmean(map(math.log, times_ms))


def _compare_difference(
    metric: str, now: Recording, past: Sequence[Recording], gated: bool
) -> MetricVerdict:
    """Judge a difference in percentage points of a step: a ratio to zero does not exist."""
    known = [one.differences_pct[metric].mean for one in past if metric in one.differences_pct]
    new, noise = now.differences_pct[metric].mean, now.differences_pct[metric].half_width
    if not known:
        return _not_recorded(metric, new, gated)
    old, limit = fmean(known), DIFFERENCE_LIMIT_PCT
    moved = new - old
    said = _against_limit(moved, limit, noise)
    return MetricVerdict(metric, *said, old, new, moved, limit, noise, gated=gated)


def _against_limit(change_pct: float, limit_pct: float, noise_pct: float = 0.0) -> Said:
    # Noise comes first: if it is beyond the limit, it may hide a change, or look like one.
    if not noise_pct <= limit_pct:
        return Status.INCONCLUSIVE, Reason.TOO_NOISY
    if abs(change_pct) <= limit_pct:
        return Status.SAME, Reason.WITHIN_LIMIT
    return Status.SLOWER if change_pct > 0 else Status.FASTER, Reason.BEYOND_LIMIT


def _compare_count(
    metric: str, now: Recording, past: Sequence[Recording], gated: bool
) -> MetricVerdict:
    """Return the verdict on a count by its total, ranks and parts, with the places."""
    now, *past = on_same_steps(now, *past)
    now = _with_marked(metric, now, past[-1])
    new, old = now.counters[metric], _recorded_count(metric, past)
    # With equal totals one part may have replaced another. A recording without parts cannot show
    # that.
    lost = METRICS[metric].parts and metric in now.detail and metric not in past[-1].detail
    if old is None or lost and new == old:
        return _not_recorded(metric, now.values()[metric], gated)
    moved = moved_parts(metric, now, past[-1])
    said = _by_parts(metric, _judge_count(metric, old, new), moved, old)
    # Parts come before ranks: otherwise a part that fell on one rank could hide another part that
    # rose on another rank.
    judged, ranks, failing = _compare_ranks(metric, now, past, old, new, said)
    # A move within the limit shows no places. An equal count shows them, since a call may have
    # moved to another line.
    shown = judged.reason is not Reason.WITHIN_LIMIT
    steps = len(now.differing_steps().get(metric, ())) if metric != PEAK else 0
    return MetricVerdict(
        metric,
        judged.status,
        judged.reason,
        judged.old,
        judged.new,
        _change_pct_of(judged.old, judged.new),
        moved=moved if shown and judged.reason is not Reason.EQUAL else (),
        ranks=ranks,
        sites=where_moved(metric, now, past[-1], moved, new - old) if shown else (),
        gated=gated,
        failing_ranks=tuple(failing),
        figures=OverSteps(steps=steps) if steps else None,
    )


def _with_marked(metric: str, now: Recording, past: Recording) -> Recording:
    """Return ``now`` with the calls that it allows where ``past`` counts them: no gain."""
    newly = _calls_at_lines(metric, now, True) - _calls_at_lines(metric, past, True)
    marked = newly & _calls_at_lines(metric, past, False)
    if not (calls := marked.total()):
        return now
    sites = [
        replace(site, allowed="", text=without_mark(site.text)) if marked[_unmarked(site)] else site
        for site in now.sites[metric]
    ]
    count, ranks = now.counters[metric] + calls, now.by_rank
    several = max(len(side.differing_ranks().get(metric, ())) for side in (past, now))
    if several:  # which ranks make these calls is not known
        both = zip(past.of_ranks(metric, several), now.of_ranks(metric, several), strict=True)
        raised = [max(n, min(then, n + calls)) for then, n in both]
        count, ranks = max(raised), now.differing_ranks() | {metric: raised}
    return replace(
        now,
        counters=now.counters | {metric: count},
        sites=now.sites | {metric: sites},
        by_rank=ranks,
    )


def _calls_at_lines(metric: str, of: Recording, allowed: bool) -> Counter[tuple[str, ...]]:
    """Return how often each line makes calls that are allowed, or such that are not."""
    return summed(
        (_unmarked(site), site.count)
        for site in of.sites.get(metric, ())
        if site.file and bool(site.allowed) is allowed
    )


def _unmarked(site: Site) -> tuple[str, ...]:
    return site.file, site.function, without_mark(site.text)


def _change_pct_of(old: float | None, new: float | None) -> float | None:
    """Return by how many percent a figure moved; None if the old one is zero or one is unknown."""
    return 100 * (new / old - 1) if old and new is not None else None


def _not_recorded(
    metric: str, new: float, gated: bool, status: Status = Status.NO_BASELINE
) -> MetricVerdict:
    return MetricVerdict(metric, status, Reason.NOT_RECORDED, new=new, gated=gated)


def _by_parts(metric: str, said: Said, moved: Sequence[PartMove], calls: int) -> Said:
    """Return what a count says, given which of its parts moved. ``calls`` is the recorded count."""
    if said[1] is Reason.EQUAL and moved and METRICS[metric].parts:
        # There are as many operators as before, but other ones. Without this, an operator that is
        # gone could hide an operator that was added.
        said = Status.CHANGED, Reason.WORK_MOVED
    alike = metric in OPERATOR_METRICS and computes_as_much(moved, calls)
    if said[1] is Reason.WORK_MOVED and alike:
        return Status.SAME, Reason.WITHIN_LIMIT
    return said


def _recorded_count(metric: str, past: Sequence[Recording]) -> int | None:
    """Return the newest count; the epoch's lowest if the metric may rise a little."""
    newest = past[-1].counters.get(metric)
    if newest is None or not METRICS[metric].tolerant:
        return newest
    return min(recording.counters.get(metric, newest) for recording in past)


def _judge_count(metric: str, old: float, new: float) -> Said:
    row = METRICS[metric]
    if new == old:
        return Status.SAME, Reason.EQUAL
    if row.exact:
        return Status.CHANGED, Reason.WORK_MOVED
    if abs(new - old) < row.floor:
        return Status.SAME, Reason.WITHIN_LIMIT
    # Falls come before the slack: also a fall smaller than the slack is FASTER.
    if new < old:
        return Status.FASTER, Reason.COUNTER_FELL
    if new <= old * (1 + row.slack_pct / 100):
        return Status.SAME, Reason.WITHIN_LIMIT
    return Status.CHANGED, Reason.COUNTER_ROSE


def _compare_ranks(
    metric: str, now: Recording, past: Sequence[Recording], old: int, new: int, said: Said
) -> tuple[MetricVerdict, tuple[int, ...], list[tuple[int, int]]]:
    """Return the count of the rank with the worst verdict, the ranks that have it if not all do,
    and both counts of each rank that fails. ``old``, ``new`` and ``said`` are the busiest rank's.
    """
    busiest = MetricVerdict(metric, *said, old, new)
    recorded = _recorded_ranks(metric, past)
    ranks = len(now.differing_ranks().get(metric) or recorded or ())
    if not ranks:  # one rank, or ranks that are all alike, now and in the recording
        return busiest, (), []
    counts = [*zip(recorded or [old] * ranks, now.of_ranks(metric, ranks), strict=True)]
    each = [MetricVerdict(metric, *_judge_count(metric, *both), *both) for both in counts]
    worst = min(each, key=lambda count: count.status.rank)
    # Among equally bad ranks the busiest is shown, since the counter's value is its count.
    judged = worst if worst.status.rank < busiest.status.rank else busiest
    if judged.status is Status.SAME:
        return judged, (), []
    its = [rank for rank, count in enumerate(each) if count.status is judged.status]
    failing = [counts[rank] for rank in its] if judged.status is Status.CHANGED else []
    if judged.status is Status.CHANGED and judged.new == judged.old:
        # Other operators; which ranks call them is unknown.
        its, failing = [], [(old, new), *failing]
    return judged, tuple(its) if len(its) < ranks else (), failing


def _recorded_ranks(metric: str, past: Sequence[Recording]) -> list[int] | None:
    """Return the count of each rank in the newest recording; the epoch's lowest if the metric may
    rise a little. None if no recording has ranks that differ.
    """
    known = [r for r in past if r.by_rank is not msgspec.UNSET and metric in r.counters]
    ranks = max((len(one.differing_ranks().get(metric, ())) for one in known), default=0)
    if not ranks:
        return None
    whole = [recording.of_ranks(metric, ranks) for recording in known]
    lowest = [min(counts) for counts in zip(*whole, strict=True)]
    return lowest if METRICS[metric].tolerant else whole[-1]


def with_fallen(metrics: Sequence[MetricVerdict]) -> tuple[MetricVerdict, ...]:
    """Return all metrics of a case, of which operators and FLOPs that are a gain are FASTER."""
    counters = {one.metric: one for one in metrics if METRICS[one.metric].kind == "counter"}
    less = {name for name in (*OPERATOR_METRICS, FLOPS) if _only_fell(counters.get(name))}
    others = (metric for name, metric in counters.items() if name not in less)
    rose = any(metric.status not in (Status.SAME, Status.FASTER) for metric in others)
    if rose or not known_equal(counters.get(NUMBERS)):
        return tuple(metrics)
    return tuple(
        replace(metric, status=Status.FASTER, reason=Reason.COUNTER_FELL)
        if metric.metric in less
        else metric
        for metric in metrics
    )


def _only_fell(metric: MetricVerdict | None) -> bool:
    """Tell whether a count moved, and fell with all its parts, on each rank that it moved on."""
    if metric is None or metric.reason is not Reason.WORK_MOVED:
        return False
    ranks = metric.failing_ranks or ((metric.old or 0.0, metric.new or 0.0),)
    parts = all(part.new <= part.old for part in metric.moved)
    return parts and all(new < old for old, new in ranks)
