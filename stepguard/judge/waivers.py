"""Waivers: known regressions that pass for a while, up to a size, visibly. Pure: no I/O, no clock.

A waiver is of one metric of one case. It says who took it out, why, until when and how far the
metric may be off; it never covers what could not be measured, compared or decided.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Annotated

import msgspec
from msgspec import structs

from stepguard.comparison import Comparison
from stepguard.evidence import Evidence
from stepguard.judge.acceptance import has_words
from stepguard.judge.screen import measurement_problem
from stepguard.metrics import METRICS, format_value
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict

SCHEMA = 1
LITTLE_CALLS, LITTLE_BYTES = 100, 1 << 20  # may be waived where next to nothing is recorded
MAX_PCT = 50
MAX_DAYS = 90  # ahead: what lasts longer is the new level, and is accepted as such
_WAIVABLE = (Status.SLOWER, Status.CHANGED)
Text = Annotated[str, msgspec.Meta(min_length=1)]


class Waiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric of one case, passed up to a size and a day."""

    case: Text
    metric: Text
    # A time: most percent above the recordings. A difference: points of a step above the newest.
    limit_pct: Annotated[float, msgspec.Meta(gt=0, le=MAX_PCT)] | None = None
    # A counter: the most it may be; one of work has to be exactly this.
    value: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    reason: Text
    expires: date  # the last day on which it holds
    who: Text

    def told(self) -> str:
        """ "step_ms up to +6.00 % until 2026-12-31, by A. Author: waits for torch 2.14"."""
        return f"{self.metric} {self.size()} until {self.expires}, by {self.who}: {self.reason}"

    def size(self) -> str:
        """How far it goes: "up to +6.00 %", "up to 3", "at 2,401"."""
        if self.limit_pct is not None:
            return f"up to +{self.limit_pct:.2f} %"
        exact = METRICS[self.metric].role == "work"
        return f"{'at' if exact else 'up to'} {format_value(self.metric, self.value)}"

    def covers(self, found: MetricVerdict) -> bool:
        """Whether the metric is no further off than is waived."""
        if found.status not in _WAIVABLE:
            return False
        if self.limit_pct is not None:
            return found.change_pct is not None and 0 < found.change_pct <= self.limit_pct
        return self.value is not None and found.new is not None and self.missed(found) is None

    def missed(self, found: MetricVerdict) -> tuple[float, float] | None:
        """What a rank counted and counts now that fails and is not covered, or None."""
        each = found.failing_ranks or ((found.old or 0, found.new or 0),)
        return next((pair for pair in each if not self._covers_count(*pair)), None)

    def _covers_count(self, old: float, new: float) -> bool:
        assert self.value is not None
        if METRICS[self.metric].role == "work":  # equal totals are of other operators then
            return new == self.value and new != old
        return new <= self.value <= self.most(old)

    def most(self, old: float) -> float:
        """The largest ``value`` that is a limit still, beside what is recorded."""
        little = LITTLE_BYTES if METRICS[self.metric].unit == "B" else LITTLE_CALLS
        return max(2 * old, little)


def beyond_pct(limit_pct: float, held_pct: float) -> float:
    """What a limit grants beyond what is held already, in percent of the slower one: 39.05 % beyond
    35 % are 3 %.
    """
    return 100 * ((100 + limit_pct) / (100 + held_pct) - 1)


def needed(found: MetricVerdict, held_pct: float = 0.0) -> dict[str, float]:
    """The size of a waiver that covers the metric as it is, on top of what the revision that it is
    compared with holds; half a point of room for a time, as far as it can be waived at all.
    """
    if METRICS[found.metric].kind == "counter":
        return {"value": round(found.new or 0)}
    whole = (100 + (found.change_pct or 0)) * (100 + held_pct) / 100 - 100
    roomy = math.ceil(2 * whole + 1) / 2
    return {"limit_pct": roomy if whole > MAX_PCT else min(roomy, MAX_PCT)}


def problem_of(waiver: Waiver, today: date) -> str:
    """What is wrong with a waiver by itself, or the empty string."""
    metric = METRICS.get(waiver.metric)
    if metric is None or not metric.gateable:
        known = ", ".join(name for name, m in METRICS.items() if m.gateable)
        return f"{waiver.metric!r} is no metric that can be gated; there are: {known}"
    wanted, other = ("value", "limit_pct") if metric.kind == "counter" else ("limit_pct", "value")
    if getattr(waiver, wanted) is None or getattr(waiver, other) is not None:
        return f"{waiver.metric} needs a {wanted} and no {other}: no waiver is unlimited"
    if waiver.limit_pct is not None and waiver.limit_pct > MAX_PCT:
        return (
            f"{waiver.limit_pct:g} % of {waiver.metric}: at most {MAX_PCT} % can be waived; what "
            "is larger is the new level, and is accepted"
        )
    for name in ("reason", "who"):
        text = getattr(waiver, name)
        if not has_words(text) or not text.isprintable():
            return f"{name} is {text!r}: write a line of words (--{name} of the command waive)"
    ahead = (waiver.expires - today).days
    if ahead > MAX_DAYS:
        return f"expires {waiver.expires}, {ahead} days ahead; at most {MAX_DAYS} are possible"
    return ""


def waive(
    verdict: Verdict,
    evidence: Evidence,
    waivers: Sequence[Waiver],
    today: date,
    other: Comparison | None = None,
) -> Verdict:
    """The verdict with its waivers applied, and said. Unsound evidence is never waived, nor is any
    verdict but SLOWER and CHANGED. Against another revision, which ``other`` says, a limit is what
    it grants beyond that revision's own: else each pull request could be so much slower again.
    """
    mine = {waiver.metric: waiver for waiver in waivers if waiver.case == verdict.case_id}
    if not mine:
        return verdict
    if measurement_problem(evidence) is not None or verdict.message:
        said = tuple(f"not applied: {waiver.told()}" for waiver in mine.values())
        return replace(verdict, waivers=said)
    left = {name: _left(waiver, other) for name, waiver in mine.items()}
    metrics = tuple(_applied(found, left.get(found.metric), today) for found in verdict.metrics)
    by_name = {metric.metric: metric for metric in verdict.metrics}
    said = tuple(
        _of_elsewhere(waiver, left[name], by_name.get(name), today, other)
        or _said(waiver, by_name.get(name), today)
        for name, waiver in mine.items()
    )
    return replace(verdict.with_metrics(metrics), waivers=said)


def _applied(found: MetricVerdict, waiver: Waiver | None, today: date) -> MetricVerdict:
    if waiver is None or not found.gated or waiver.expires < today or not waiver.covers(found):
        return found
    return replace(found, waived_until=waiver.expires.isoformat())


def _left(waiver: Waiver, other: Comparison | None) -> Waiver | None:
    """The waiver as far as it goes beyond what the other revision holds of it."""
    if other is None or waiver.limit_pct is None:
        return waiver
    held_pct = other.waived_pct.get(waiver.metric)
    if other.waivers_problem:
        return None
    if held_pct is None:
        return waiver
    left_pct = beyond_pct(waiver.limit_pct, held_pct)
    return structs.replace(waiver, limit_pct=left_pct) if left_pct > 0 else None


def _of_elsewhere(
    waiver: Waiver,
    left: Waiver | None,
    found: MetricVerdict | None,
    today: date,
    other: Comparison | None,
) -> str:
    """What is else to be said beside another revision: a waiver that is not needed there may be
    against the recordings, and less than the whole of it counts. Empty where it is as usual.
    """
    if other is None:
        return ""
    if found is None or not found.gated:
        return f"not judged against {other.against}: {waiver.told()}"
    if found.status not in _WAIVABLE:
        now = f"{found.metric} is {found.status.value}"
        return f"not needed against {other.against}, {now}: {waiver.told()}"
    if left is waiver or waiver.expires < today:
        return ""
    if other.waivers_problem:
        why = f"{other.against}'s own cannot be read ({other.waivers_problem})"
        return f"not applied, {why}: {waiver.told()}"
    if left is None:
        return f"not applied, {other.against} has it already: {waiver.told()}"
    if left.covers(found):
        return ""
    return (
        f"EXCEEDED, it is {found.change_pct:+.2f} % now, and {other.against} has all but "
        f"{left.limit_pct:.2f} % of it already: {waiver.told()}"
    )


def _said(waiver: Waiver, found: MetricVerdict | None, today: date) -> str:
    """What a waiver did in this run."""
    if found is None or not found.gated:
        return f"stale, the case does not gate it; take it out: {waiver.told()}"
    if found.reason is Reason.MACHINE_MOVED:
        return f"not needed, the machine moved and not the code: {waiver.told()}"
    if found.status not in _WAIVABLE:
        return f"stale, {found.metric} is {found.status.value}; take it out: {waiver.told()}"
    if waiver.expires < today:
        return f"EXPIRED: {waiver.told()}"
    if waiver.value is not None and METRICS[waiver.metric].role == "cost":
        if waiver.value > (most := waiver.most(found.old or 0)):
            return f"TOO WIDE, at most {format_value(found.metric, most)}: {waiver.told()}"
    if not waiver.covers(found):
        missed = None if waiver.value is None else waiver.missed(found)
        then, count = missed or (found.old, found.new)
        now = format_value(found.metric, count)
        if METRICS[waiver.metric].role == "work":
            moved = f"it is {now} now" if count != then else "its total has not moved"
            return f"not what was waived, {moved}: {waiver.told()}"
        if waiver.limit_pct is not None and found.change_pct is not None:
            now = f"{found.change_pct:+.2f} %"
        return f"EXCEEDED, it is {now} now: {waiver.told()}"
    return f"waived: {waiver.told()}"
