"""Waivers in sentences: how far one goes, and what it did in a run."""

from stepguard.core.metrics import METRICS, format_value
from stepguard.core.verdict import MetricVerdict, Reason, Verdict
from stepguard.core.waiver import Waiver, WaiverEffect, WaiverOutcome
from stepguard.judge.waivers import largest_value, uncovered_count
from stepguard.report.commands import Commands

TYPED_ANYWHERE = Commands()


def described(waiver: Waiver) -> str:
    """Return "step_ms up to +6.00 % until 2026-12-31, by A. Author: waits for torch 2.14"."""
    if waiver.limit_pct is not None:
        size = f"up to +{waiver.limit_pct:.2f} %"
    else:
        exact = METRICS[waiver.metric].role == "work"
        size = f"{'at' if exact else 'up to'} {format_value(waiver.metric, waiver.value)}"
    return f"{waiver.metric} {size} until {waiver.expires}, by {waiver.who}: {waiver.reason}"


def sentences(verdict: Verdict, commands: Commands = TYPED_ANYWHERE) -> list[str]:
    """Return what each waiver of the case did, a sentence each."""
    found = {metric.metric: metric for metric in verdict.metrics}
    return [
        f"{effect if outcome.effect is WaiverEffect.WAIVED else f'waiver {effect}'}: "
        f"{described(outcome.waiver)}"
        for outcome in verdict.waivers
        if (effect := _effect(outcome, found.get(outcome.waiver.metric), verdict, commands))
    ]


def _effect(
    outcome: WaiverOutcome, found: MetricVerdict | None, verdict: Verdict, commands: Commands
) -> str:
    waiver, effect = outcome.waiver, outcome.effect
    against = f" against {verdict.against}" if verdict.against else ""
    # Beside another revision not: the recordings may still need it.
    remove = "" if against else f" (remove it: {commands.unwaive(waiver)})"
    if effect is WaiverEffect.WAIVED:
        return "waived"
    if effect is WaiverEffect.EXPIRED:
        return "EXPIRED"
    if effect is WaiverEffect.NOT_APPLIED:
        return f"not applied, the case is {verdict.status.value}"
    if found is None or effect is WaiverEffect.NOT_GATED:
        return f"not judged{against}" if against else f"stale, the case does not gate it{remove}"
    if effect is WaiverEffect.NOT_NEEDED:
        if found.reason is Reason.MACHINE_MOVED:
            return "not needed, the machine changed and not the code"
        word = f"not needed{against}" if against else "stale"
        return f"{word}, {waiver.metric} is {found.status.value}{remove}"
    if effect is WaiverEffect.TOO_WIDE:
        return f"TOO WIDE, at most {format_value(waiver.metric, largest_value(found))}"
    return _uncovered(waiver, effect, found)


def _uncovered(waiver: Waiver, effect: WaiverEffect, found: MetricVerdict) -> str:
    """Return by how much the metric is further off than is waived."""
    missed = None if waiver.value is None else uncovered_count(waiver, found)
    old, new = missed or (found.old, found.new)
    now = format_value(waiver.metric, new)
    if effect is WaiverEffect.OTHER_WORK:
        return "of other work, " + (
            f"it is {now} now" if new != old else "its total did not change"
        )
    if waiver.limit_pct is not None and found.change_pct is not None:
        now = f"{found.change_pct:+.2f} %"
    return f"EXCEEDED, it is {now} now"
