"""Rules of waivers: which failing metrics may pass. Pure: no I/O, no clock.

A permission is for one metric of one case. It never covers what could not be measured, compared or
decided. In pairs a waiver's limit applies to the change against the other revision.
"""

import math
from collections.abc import Sequence
from datetime import date

from msgspec.structs import replace

from stepguard.core.metrics import GATEABLE, METRICS, NUMBERS
from stepguard.core.permission import Effect, Permission, PermissionOutcome
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.text import has_words, meant
from stepguard.core.verdict import MetricVerdict, Verdict

MAX_DAYS = 90  # the last day is at most so far ahead; a change that lasts longer is a new level
MAX_PCT = 50
# The largest waived value of a counter whose recorded count is very small.
LITTLE_CALLS, LITTLE_BYTES = 100, 1 << 20
_FAILING = (Status.SLOWER, Status.CHANGED)
_STAY_UNDECIDED = (Reason.COUNT_UNSTABLE, Reason.NOT_STEADY)
Size = tuple[float | None, int | None]  # a waiver's limit_pct and value; it has one of them


def permitted(
    metrics: tuple[MetricVerdict, ...],
    permissions: Sequence[Permission],
    whole: bool,
    today: date,
) -> tuple[tuple[MetricVerdict, ...], tuple[PermissionOutcome, ...]]:
    """Return a case's metrics under its permissions, and the effect of each. Only SLOWER and
    CHANGED can be permitted: such a metric gets the last day. Nothing of a ``whole`` case is.
    """
    known = {metric.metric: metric for metric in metrics}
    outcomes = tuple(
        PermissionOutcome(
            permission,
            Effect.NOT_APPLIED
            if whole
            else effect_of(permission, known.get(permission.metric), today),
        )
        for permission in permissions
    )
    until = {
        outcome.permission.metric: str(outcome.permission.expires)
        for outcome in outcomes
        if outcome.effect is Effect.ALLOWED
    }
    covered = (
        replace(m, waived_until=until[m.metric]) if m.metric in until else m for m in metrics
    )
    return tuple(covered), outcomes


def effect_of(permission: Permission, metric: MetricVerdict | None, today: date) -> Effect:
    """Return a permission's effect on a metric; ``metric`` is None if the case does not have it."""
    if metric is None or not metric.gated:
        return Effect.NOT_GATED
    if metric.status not in _FAILING:
        return Effect.NOT_APPLIED if metric.outcome == "error" else Effect.NOT_NEEDED
    # This comes after NOT_NEEDED: an expired waiver of a metric that passes does no harm.
    if permission.expires is None or permission.expires < today:
        return Effect.EXPIRED
    if permission.limit_pct is not None:
        known = metric.change_pct is not None and 0 < metric.change_pct <= permission.limit_pct
        return Effect.ALLOWED if known else Effect.EXCEEDED
    if permission.value is None or metric.new is None:
        return Effect.EXCEEDED
    # The value must limit the count: with a million for a count of ten anything would pass.
    limits = METRICS[permission.metric].exact or permission.value <= largest_value(metric)
    if not limits:
        return Effect.TOO_WIDE
    covered = uncovered_count(permission, metric) is None
    return Effect.ALLOWED if covered else Effect.EXCEEDED


def uncovered_count(waiver: Permission, metric: MetricVerdict) -> tuple[float, float] | None:
    """Return both counts of the first failing rank that the waiver does not cover, or None."""
    assert waiver.value is not None
    counts = _failing_counts(metric)
    return next((pair for pair in counts if not _covers(waiver.value, metric.metric, *pair)), None)


def _covers(value: int, metric: str, old: float, new: float) -> bool:
    if METRICS[metric].exact:
        # CHANGED with equal totals means other operators, which no total covers. Nor do as many
        # numbers have to be the same.
        return new == value and new != old and metric != NUMBERS
    return new <= value


def _failing_counts(metric: MetricVerdict) -> tuple[tuple[float, float], ...]:
    return metric.failing_ranks or ((metric.old or 0, metric.new or 0),)


def largest_value(metric: MetricVerdict) -> float:
    """Return the largest value of a counter's waiver: twice the count, or a little."""
    little = LITTLE_BYTES if METRICS[metric.metric].unit == "B" else LITTLE_CALLS
    # The rank with the smallest count decides: twice the busiest rank's count may be a thousand
    # times that of another rank.
    return min(max(2 * old, little) for old, _ in _failing_counts(metric))


def suggested_size(metric: MetricVerdict) -> Size | None:
    """Return the size of a waiver that covers a metric, of a time with some room; else None."""
    if metric.status not in _FAILING or metric.new is None:
        return None
    if METRICS[metric.metric].kind == "counter":
        counts = _failing_counts(metric)
        value = round(max(new for _, new in counts))
        limits = METRICS[metric.metric].exact or value <= largest_value(metric)
        possible = limits and all(_covers(value, metric.metric, *pair) for pair in counts)
        return (None, value) if possible else None
    change = metric.change_pct or 0
    if not 0 < change <= MAX_PCT:
        return None
    # Round up to half a percent, then add half a percent: the same code measures a little
    # differently next time.
    return min(math.ceil(2 * change + 1) / 2, MAX_PCT), None


def staying_undecided(verdict: Verdict) -> list[MetricVerdict]:
    """Return the metrics that stay undecided however often this tree is measured."""
    return [metric for metric in verdict.moved if metric.reason in _STAY_UNDECIDED]


def suggested_sizes(verdict: Verdict) -> dict[str, Size]:
    """Return each failing metric's waiver size; empty if the case would fail all the same."""
    sizes = {m.metric: suggested_size(m) for m in verdict.gated("failed")}
    known = {name: size for name, size in sizes.items() if size}
    passes = len(known) == len(sizes) and not (verdict.whole or staying_undecided(verdict))
    return known if passes else {}


def problem_of(waiver: Permission, today: date) -> str:
    """Return what is wrong with a waiver, its case aside; empty if nothing is."""
    # Users edit the file by hand, so its reader checks every rule.
    if waiver.metric not in GATEABLE:
        hint = meant(waiver.metric, GATEABLE) or f"; there are: {', '.join(GATEABLE)}"
        return f"{waiver.metric!r} is no metric that can be gated{hint}"
    counts = METRICS[waiver.metric].kind == "counter"
    wanted, other = ("value", "limit_pct") if counts else ("limit_pct", "value")
    if getattr(waiver, wanted) is None or getattr(waiver, other) is not None:
        return f"{waiver.metric} needs a {wanted} and no {other}: no waiver is unlimited"
    if waiver.limit_pct is not None and not 0 < waiver.limit_pct <= MAX_PCT:
        return (
            f"{waiver.limit_pct:g} % of {waiver.metric}: more than 0 and at most {MAX_PCT} % can "
            "be waived; accept a larger change as the new level"
        )
    if waiver.value is not None and waiver.value < 0:
        return f"{waiver.value} of {waiver.metric}: a count is not negative"
    for name in ("reason", "who"):
        text = getattr(waiver, name)
        if not has_words(text) or not text.isprintable():
            return f"{name} is {text!r}: write a line of words (--{name} of the command waive)"
    assert waiver.expires is not None, "the file's reader takes no waiver without a day"
    ahead = (waiver.expires - today).days
    if ahead > MAX_DAYS:
        return f"expires {waiver.expires}, {ahead} days ahead; at most {MAX_DAYS} are possible"
    return ""
