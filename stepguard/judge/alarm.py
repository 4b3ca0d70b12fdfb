"""Alarms: a step time that moved against recordings, or kernels that take longer. Pure.

Recordings hold times roughly, so they fail nothing: pairs of HEAD and the commit of the level's
first recording answer an alarm. What the pairs say of the time counts. Without such pairs a longer
step is INCONCLUSIVE, and a shorter one is `same` with a note. If HEAD is that commit, the machine
moved the time, and it is `same`.
"""

from dataclasses import replace

from msgspec import structs

from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.question import Answer
from stepguard.core.reason_sentences import NoAnswer, OtherCommit
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import (
    Confirmation,
    Confirmed,
    Decision,
    MetricVerdict,
    NoComparison,
    worst_of,
)
from stepguard.judge.findings import Findings
from stepguard.judge.judge_pairs import pairs_finding, refusal, time_by_pairs, why
from stepguard.judge.rules import decision

_MOVED = (Status.SLOWER, Status.FASTER)


def alarm_of(findings: Findings) -> MetricVerdict | None:
    """Return the step time if it is an alarm, which pairs have to answer; else None."""
    if findings.whole or findings.against:  # pairs have judged already
        return None
    worst = worst_of(one for one in findings.permitted()[0] if not one.waived_until)
    return worst if worst is not None and _is_alarm(worst) else None


def settled(findings: Findings, answer: Answer | None) -> Findings:
    """Return the findings after their alarm has ended. Only a time that moved is changed."""
    if findings.whole or findings.against:
        return findings
    asked = answer if alarm_of(findings) else None
    refused = refusal(asked.pairs) if asked and asked.pairs else None
    # A step that does other work is another step, and an ended run passes nothing.
    if refused and refused.reason in (Reason.WORK_MOVED, Reason.UNDECIDED):
        return replace(findings, whole=refused)
    # A time that a waiver covers passes as it is, whether the code or the machine changed it.
    metrics = tuple(
        _answered(metric, asked) if _is_alarm(metric) and not findings.covers(metric) else metric
        for metric in findings.metrics
    )
    # The pairs' profiles were taken now and on this machine, unlike a recording's.
    causes = why(asked.pairs) if asked and asked.pairs and not refused else {}
    known = {name: cause for name, cause in causes.items() if cause}
    return replace(findings, metrics=metrics, **known)


def _is_alarm(metric: MetricVerdict) -> bool:
    return metric.metric == JUDGED_TIME and metric.gated and metric.status in _MOVED


def _answered(alarm: MetricVerdict, answer: Answer | None) -> MetricVerdict:
    """Return a time that moved, with the status that follows from its answer."""
    if answer is None:
        return _unconfirmed(alarm, None)
    if answer.same_code:
        machine = Confirmed(Confirmation.MACHINE, answer.commit)
        return _ended(alarm, Status.SAME, Reason.UNCONFIRMED, machine)
    decided = decision(answer.pairs) if answer.pairs else None
    if no_answer := _no_answer(answer, decided):
        return _unconfirmed(alarm, Confirmed(Confirmation.NOT_MEASURED, why=no_answer))
    assert answer.pairs is not None and decided is not None  # since there is an answer
    finding = pairs_finding(answer.pairs, decided)
    if decided.status is Status.INCONCLUSIVE:
        return _unconfirmed(alarm, Confirmed(Confirmation.UNDECIDED, answer.commit, finding))
    if decided.status is Status.SAME:
        if not answer.own:  # the step may already have been slow at that commit
            outcome, other = Confirmation.NOT_CLEARED, OtherCommit()
            return _unconfirmed(alarm, Confirmed(outcome, answer.commit, finding, why=other))
        cleared = Confirmed(Confirmation.STEP_SAME, answer.commit, finding)
        return _ended(alarm, Status.SAME, decided.reason, cleared)
    hidden = decided.status is Status.SLOWER and alarm.status is Status.FASTER
    how = Confirmed(Confirmation.CONFIRMED, answer.commit, finding, hidden)
    if decided.status is alarm.status and alarm.reason is not Reason.KERNELS_MOVED:
        return _ended(alarm, alarm.status, alarm.reason, how)
    return time_by_pairs(answer.pairs, decided, figures=alarm.figures, confirmed=how)


def _ended(
    alarm: MetricVerdict, status: Status, reason: Reason, how: Confirmed | None
) -> MetricVerdict:
    return structs.replace(alarm, status=status, reason=reason, confirmed=how)


def _no_answer(answer: Answer, decided: Decision | None) -> NoAnswer | NoComparison | None:
    """Return why an alarm has no answer; None if it has one."""
    if answer.failed or answer.pairs is None:
        return NoAnswer(why=answer.failed)
    if refused := refusal(answer.pairs):
        return NoComparison(refused.status, refused.reason, refused.figures)
    return None if decided else NoAnswer(why="the step time was not judged")


def _unconfirmed(alarm: MetricVerdict, how: Confirmed | None) -> MetricVerdict:
    """Return a time that no pairs confirm. A shorter one is `same`: it is no gain to record."""
    longer = alarm.status is Status.SLOWER
    status = Status.INCONCLUSIVE if longer else Status.SAME
    kernels = alarm.reason is Reason.KERNELS_MOVED
    return _ended(alarm, status, alarm.reason if kernels else Reason.UNCONFIRMED, how)
