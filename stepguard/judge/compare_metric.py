"""One metric of a case against recordings: a time, a count, a difference.

Both sides have one type: ``now`` is this run's summary, ``past`` are comparable recordings of one
epoch, oldest first, or the other revision's summary alone.
"""

from collections.abc import Sequence

from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.reason_sentences import OwnLimit
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.comparable import of_one_card
from stepguard.judge.compare_counts import Said, change_pct_of, compare_count, not_recorded
from stepguard.judge.noise_limits import DIFFERENCE_LIMIT_PCT, Screen, screen_times


def compare(
    metric: str,
    now: Recording,
    past: Sequence[Recording],
    gates: Sequence[str],
    recorded: bool = False,
) -> MetricVerdict:
    """Return the metric's verdict. ``now`` must hold the metric. ``recorded``: ``past`` is a
    baseline's; a counter that is newer than the baseline is shown, not compared.
    """
    kind, new, gated = METRICS[metric].kind, now.values()[metric], metric in gates
    known = any(metric in recording.counters for recording in past)
    if recorded and METRICS[metric].new and not known:
        lacks = Status.SAME, Reason.METRIC_NOT_RECORDED
        return MetricVerdict(metric, *lacks, new=new, gated=gated)
    if metric == JUDGED_TIME:
        return _compare_time(new, screen_of(now, past), gated)
    if kind == "difference":
        return _compare_difference(metric, now, past[-1], gated)
    if kind == "counter" and metric != "tokens_per_step":
        return compare_count(metric, now, past, gated)
    if metric == "tokens_per_step":
        old: float | None = past[-1].tokens_per_step  # equal: other tokens were refused
        said = Status.SAME, Reason.EQUAL
    else:
        old, said = past[-1].information.get(metric), (Status.SAME, Reason.NOT_JUDGED)
        gated = False  # of what pairs judge, recordings say nothing
    return MetricVerdict(metric, *said, old, new, change_pct_of(old, new), gated=gated)


def screen_of(now: Recording, past: Sequence[Recording]) -> Screen | None:
    """Compare the step time with the recordings that have one, by rank 0's card; None if none has
    one.
    """
    by_card: dict[str, list[Sequence[float]]] = {}
    own: list[Sequence[float]] = []
    for recording in past:
        if times := recording.times_ms.get(JUDGED_TIME):
            by_card.setdefault(recording.device_uuid, []).append(times)
            own += [times] if of_one_card(recording, now) else []
    return screen_times(now.times_ms[JUDGED_TIME], own, list(by_card.values())) if by_card else None


def _compare_time(new: float, screened: Screen | None, gated: bool) -> MetricVerdict:
    if screened is None:
        return not_recorded(JUDGED_TIME, new, gated)
    return MetricVerdict(
        JUDGED_TIME,
        *_against_limit(screened.change_pct, screened.limit_pct, screened.noisy),
        # The mean over recordings, to which the change refers; no recording need have it.
        old=new / (1 + screened.change_pct / 100),
        new=new,
        change_pct=screened.change_pct,
        limit_pct=screened.limit_pct,
        noise_pct=screened.se_pct,
        gated=gated,
        figures=OwnLimit(own_card=screened.own_card, compared=screened.compared),
    )


def _compare_difference(metric: str, now: Recording, past: Recording, gated: bool) -> MetricVerdict:
    """Judge a difference in percentage points of a step: it may be zero, and then no ratio exists.
    ``change_pct`` and ``noise_pct`` are such points.
    """
    difference, then = now.differences_pct[metric], past.differences_pct.get(metric)
    if then is None:
        return not_recorded(metric, difference.mean, gated)
    moved, limit = difference.mean - then.mean, DIFFERENCE_LIMIT_PCT
    said = _against_limit(moved, limit, noisy=not difference.half_width <= limit)
    noise, old, new = difference.half_width, then.mean, difference.mean
    return MetricVerdict(metric, *said, old, new, moved, limit, noise, gated=gated)


def _against_limit(change_pct: float, limit_pct: float, noisy: bool) -> Said:
    """Compare a change with its limit, in both directions."""
    # Noise comes first: beyond the limit it may hide a change, or look like one.
    if noisy:
        return Status.INCONCLUSIVE, Reason.TOO_NOISY
    if abs(change_pct) <= limit_pct:
        return Status.SAME, Reason.WITHIN_LIMIT
    return Status.SLOWER if change_pct > 0 else Status.FASTER, Reason.BEYOND_LIMIT
