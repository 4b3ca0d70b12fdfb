"""Rules of waivers. Pure: no I/O, no clock.

A waiver is of one metric of one case. It never covers what could not be measured, compared or
decided. Against another revision its limit is compared with the change against that revision.
"""

import math
from collections.abc import Sequence
from datetime import date

from msgspec.structs import replace

from stepguard.evidence import Evidence
from stepguard.judge.ab.confirm import settled
from stepguard.judge.acceptance import has_words
from stepguard.judge.soundness import measurement_problem
from stepguard.metrics import GATEABLE, METRICS, not_gateable
from stepguard.verdict import MetricVerdict, Status, Verdict
from stepguard.waiver import MAX_PCT, Waiver, WaiverEffect, WaiverOutcome

MAX_DAYS = 90  # ahead: what lasts longer is the new level, and is accepted as such
LITTLE_CALLS, LITTLE_BYTES = 100, 1 << 20  # may be waived where next to nothing is recorded
_WAIVABLE = (Status.SLOWER, Status.CHANGED)
Size = tuple[float | None, int | None]  # limit_pct and value of a waiver, which has one of them


def waive(verdict: Verdict, evidence: Evidence, waivers: Sequence[Waiver], today: date) -> Verdict:
    """Return the verdict with the case's waivers applied, and what each of them did.

    Unsound evidence is never waived, nor is any verdict but SLOWER and CHANGED.
    """
    mine = {waiver.metric: waiver for waiver in waivers if waiver.case == verdict.case_id}
    if not mine:
        return verdict
    # A counter that moved decides although others are unknown: that is not sound either.
    unsound = verdict.whole or measurement_problem(evidence) is not None
    found = {metric.metric: metric for metric in verdict.metrics}
    effects = {
        name: WaiverEffect.NOT_APPLIED if unsound else effect_of(waiver, found.get(name), today)
        for name, waiver in mine.items()
    }
    outcomes = tuple(WaiverOutcome(mine[name], effect) for name, effect in effects.items())
    if WaiverEffect.WAIVED in effects.values():
        verdict = verdict.with_metrics(
            tuple(
                replace(metric, waived_until=mine[metric.metric].expires.isoformat())
                if effects.get(metric.metric) is WaiverEffect.WAIVED
                else metric
                for metric in verdict.metrics
            )
        )
    return replace(verdict, waivers=outcomes)


def final(verdict: Verdict, evidence: Evidence, waivers: Sequence[Waiver], today: date) -> Verdict:
    """Return the screen's verdict as it may leave a run, after pairs or without: waived, and less
    the alarms that nothing confirmed. What is waived stays as the screen saw it.
    """
    waived = waive(verdict, evidence, waivers, today)
    return waive(settled(waived), evidence, waivers, today)


def effect_of(waiver: Waiver, found: MetricVerdict | None, today: date) -> WaiverEffect:
    """Return what a waiver does to a metric; ``found`` is None where the case has none."""
    if found is None or not found.gated:
        return WaiverEffect.NOT_GATED
    if found.status not in _WAIVABLE:
        return WaiverEffect.NOT_NEEDED
    # After NOT_NEEDED: an expired waiver of what passes is only stale.
    if waiver.expires < today:
        return WaiverEffect.EXPIRED
    if waiver.limit_pct is not None:
        known = found.change_pct is not None and 0 < found.change_pct <= waiver.limit_pct
        return WaiverEffect.WAIVED if known else WaiverEffect.EXCEEDED
    if waiver.value is None or found.new is None:
        return WaiverEffect.EXCEEDED
    work = METRICS[waiver.metric].role == "work"
    # A count of a million is no limit beside ten: the waiver would pass anything.
    if not work and waiver.value > largest_value(found):
        return WaiverEffect.TOO_WIDE
    if uncovered_count(waiver, found) is None:
        return WaiverEffect.WAIVED
    return WaiverEffect.OTHER_WORK if work else WaiverEffect.EXCEEDED


def uncovered_count(waiver: Waiver, found: MetricVerdict) -> tuple[float, float] | None:
    """Return the recorded and the present count of a rank that the waiver's value does not cover,
    or None. Only the ranks that fail are asked.
    """
    assert waiver.value is not None
    counts = _failing_counts(found)
    return next((one for one in counts if not _covers(waiver.value, found.metric, *one)), None)


def _covers(value: int, metric: str, old: float, new: float) -> bool:
    if METRICS[metric].role == "work":
        # Equal totals that are CHANGED are of other operators.
        return new == value and new != old
    return new <= value


def may_cover(value: int, metric: str, old: float) -> bool:
    """Tell whether there is a count that fails beside ``old`` and that the value covers."""
    return value != old if METRICS[metric].role == "work" else value > old


def _failing_counts(found: MetricVerdict) -> tuple[tuple[float, float], ...]:
    return found.failing_ranks or ((found.old or 0, found.new or 0),)


def largest_value(found: MetricVerdict) -> float:
    """Return the largest value that is still a limit: twice what each failing rank recorded, or a
    little where that is next to nothing.
    """
    little = LITTLE_BYTES if METRICS[found.metric].unit == "B" else LITTLE_CALLS
    # The smallest of the ranks': twice the busiest one's count may be a thousand times another's.
    return min(max(2 * old, little) for old, _ in _failing_counts(found))


def suggested_size(found: MetricVerdict) -> Size | None:
    """Return the size that covers a failing metric, a time with room of 0.5 %; None if none can."""
    if found.status not in _WAIVABLE or found.new is None:
        return None
    if METRICS[found.metric].kind == "counter":
        counts = _failing_counts(found)
        value = round(max(new for _, new in counts))
        limits = METRICS[found.metric].role == "work" or value <= largest_value(found)
        possible = limits and all(_covers(value, found.metric, *one) for one in counts)
        return (None, value) if possible else None
    change = found.change_pct or 0
    if not 0 < change <= MAX_PCT:
        return None
    # Up to the next half percent, then one more half: the same code measures otherwise next time.
    return min(math.ceil(2 * change + 1) / 2, MAX_PCT), None


def suggested_sizes(verdict: Verdict) -> dict[str, Size]:
    """Return the size, by metric, that covers each failing one as it is; none where one cannot be
    waived: the case would fail all the same.
    """
    sizes = {m.metric: suggested_size(m) for m in verdict.gated("failed")}
    known = {name: size for name, size in sizes.items() if size}
    return known if len(known) == len(sizes) and not verdict.whole else {}


def problem_of(waiver: Waiver, today: date) -> str:
    """Return what is wrong with a waiver, its case aside, or the empty string."""
    # People edit the file, so every rule is checked when it is read, not by the command alone.
    if waiver.metric not in GATEABLE:
        return not_gateable(waiver.metric)
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
    ahead = (waiver.expires - today).days
    if ahead > MAX_DAYS:
        return f"expires {waiver.expires}, {ahead} days ahead; at most {MAX_DAYS} are possible"
    return ""
