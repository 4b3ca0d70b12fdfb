"""Permissions in sentences: how far each goes, and its effect in a run."""

from stepguard.core.metrics import METRICS, format_value
from stepguard.core.permission import Effect, Permission, PermissionOutcome
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.judge.waiver_rules import largest_value, uncovered_count
from stepguard.report.next_steps import Commands

TYPED_ANYWHERE = Commands()


def described(permission: Permission) -> str:
    """Return "step_ms up to +6.00 % until 2026-12-31, by A. Author: waits for torch 2.14"."""
    if permission.limit_pct is not None:
        size = f"up to +{permission.limit_pct:.2f} %"
    else:
        exact = METRICS[permission.metric].exact
        size = f"{'at' if exact else 'up to'} {format_value(permission.metric, permission.value)}"
    until = f"until {permission.expires}, by {permission.who}: {permission.reason}"
    return f"{permission.metric} {size} {until}"


def of_waivers(verdict: Verdict, commands: Commands = TYPED_ANYWHERE) -> list[str]:
    """Return the effect of each waiver of the case, a sentence each."""
    return [_of_waiver(outcome, verdict, commands) for outcome in verdict.permissions]


def _of_waiver(outcome: PermissionOutcome, verdict: Verdict, commands: Commands) -> str:
    metrics = {metric.metric: metric for metric in verdict.metrics}
    effect = _effect(outcome, metrics.get(outcome.permission.metric), verdict, commands)
    word = effect if outcome.effect is Effect.ALLOWED else f"waiver {effect}"
    here = "declared here, " if outcome.permission.commit else ""
    return f"{here}{word}: {described(outcome.permission)}"


def _effect(
    outcome: PermissionOutcome,
    metric: MetricVerdict | None,
    verdict: Verdict,
    commands: Commands,
) -> str:
    waiver, effect = outcome.permission, outcome.effect
    against = f" against {verdict.against}" if verdict.against else ""
    # A comparison with a revision does not say to remove it: recordings may still need the waiver.
    remove = "" if against else f" (remove it: {commands.unwaive(waiver)})"
    if effect is Effect.ALLOWED:
        return "waived"
    if effect is Effect.EXPIRED:
        return "EXPIRED"
    if effect is Effect.NOT_APPLIED:
        if metric is None or verdict.whole:
            return f"not applied, the case is {verdict.status.value}"
        return f"not applied, {waiver.metric} is {metric.status.value}"
    if metric is None or effect is Effect.NOT_GATED:
        return f"not judged{against}" if against else f"stale, the case does not gate it{remove}"
    if effect is Effect.NOT_NEEDED:
        if metric.confirmed and metric.has_notice:
            return "not needed, not the code moved it"
        word = f"not needed{against}" if against else "stale"
        return f"{word}, {waiver.metric} is {metric.status.value}{remove}"
    if effect is Effect.TOO_WIDE:
        most = format_value(waiver.metric, largest_value(metric))
        return f"TOO WIDE, at most {most}, so it does not apply"
    return _uncovered(waiver, metric)


def _uncovered(waiver: Permission, metric: MetricVerdict) -> str:
    missed = None if waiver.value is None else uncovered_count(waiver, metric)
    old, new = missed or (metric.old, metric.new)
    now = format_value(waiver.metric, new)
    if waiver.limit_pct is not None and metric.change_pct is not None:
        now = f"{metric.change_pct:+.2f} %"
    if METRICS[waiver.metric].exact and missed:
        return "of other work, " + (
            f"it is {now} now" if new != old else "its total did not change"
        )
    return f"EXCEEDED, it is {now} now"
