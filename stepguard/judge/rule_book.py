"""Judge a case: the two questions that are asked of the judge. Pure.

Whoever measures asks need() until it says nothing. docs/judge.md is the rule book: the order of the
rules, and what each of them says.

Recordings hold times roughly, so they fail nothing: a step time that moved against them, or kernels
that take longer, are an alarm. Pairs of HEAD and the commit of the level's first recording answer
it. What the pairs say of the time counts. Without such pairs a longer step is INCONCLUSIVE, and a
shorter one is `same` with a note. If HEAD is that commit, the machine moved the time: `same`.
"""

from dataclasses import dataclass, replace

from msgspec import structs

from stepguard.core.comparison import Answer, Comparison, Question
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reason_sentences import NoAnswer, OtherCommit
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import (
    Confirmation,
    Confirmed,
    Decision,
    Joins,
    MetricVerdict,
    NoComparison,
    Verdict,
    worst_of,
)
from stepguard.judge.count_again import doubtful, doubtful_of, doubtful_of_other, with_both
from stepguard.judge.findings import Findings, verdict_of
from stepguard.judge.judge_pairs import (
    findings_of,
    pairs_finding,
    refusal,
    time_by_pairs,
    wants_another_pair,
    why,
)
from stepguard.judge.judge_recordings import alike, enough_launches, screen
from stepguard.judge.pair_statistics import MOST_PAIRS
from stepguard.judge.soundness import unsteady_launch
from stepguard.judge.summarise_evidence import summarise
from stepguard.judge.time_rules import LEAST_PAIRS, decision, wants_profiles, why_not_same


@dataclass(frozen=True)
class Need:
    """What has to be measured next, and whether anything will likely follow it."""

    counters: tuple[str, ...] = ()  # one more launch counts them
    of_base: bool = False  # that launch is the other tree's
    launch: bool = False
    pair: bool = False
    profiled: bool = False  # the pair ends with a profile of each launch
    beside: str = ""  # pairs with this commit, to answer an alarm
    last: bool = False

    def __bool__(self) -> bool:
        return bool(self.counters or self.launch or self.pair or self.beside)


NOTHING = Need()


def need(question: Question) -> Need:
    """Return what has to be measured now."""
    if question.pairs is not None:
        return _need_of_pairs(question, question.pairs)
    now = question.now
    assert now is not None, "a question without pairs is about evidence"
    if now.faults:
        return NOTHING
    if names := doubtful_of(now, question.entry) if now.counts else ():
        return Need(counters=names)
    if not unsteady_launch(now) and _wants_launch(question, now):
        done, early = len(now.launches), bool(question.entry) and not question.everything
        return Need(launch=True, last=done + 1 == now.planned_launches or early and not done)
    return Need(beside=_commit_beside(question, now))


def judge(question: Question) -> Verdict:
    """Return the verdict on what was measured."""
    findings, accepted = settled(_findings(question), question.answer), False
    if question.now is not None and question.own is not None:
        accepted = judge(Question(question.now, question.own)).joins is Joins.ITSELF
    return verdict_of(findings, accepted)


def _findings(question: Question) -> Findings:
    if question.pairs is not None:
        findings, head = findings_of(question.pairs), question.pairs.head
    else:
        assert question.now is not None, "a question without pairs is about evidence"
        findings, head = screen(question.now, question.entry, question.path), question.now
    metrics = tuple(with_both(metric, head.counted) for metric in findings.metrics)
    return replace(
        findings, metrics=metrics, permissions=question.permissions, today=question.today
    )


def _wants_launch(question: Question, now: Evidence) -> bool:
    """Tell whether a further launch is wanted: something may have moved."""
    done, entry = len(now.launches), question.entry
    if not done or done >= now.planned_launches or question.everything or entry is None:
        return done < now.planned_launches
    return not enough_launches(replace(now, planned_launches=done), entry)


def _commit_beside(question: Question, now: Evidence) -> str:
    """Return the commit of the level's first recording. Later ones may be a little slower."""
    entry = question.entry
    if question.answer is not None or entry is None or now.fingerprint is None:
        return ""
    recordings = alike(entry.level, now)
    return recordings[0].commit if recordings and alarm_of(_findings(question)) else ""


def _need_of_pairs(question: Question, pairs: Comparison) -> Need:
    head, base = pairs.head, pairs.base
    if head.counts and base.counts and not (head.faults or base.faults):
        # Launches that are alive by then are timed all the same, as the first pair.
        profiled = wants_profiles(pairs)
        if names := doubtful(head, summarise(base)):
            return Need(counters=names, profiled=profiled)
        if names := doubtful_of_other(base, head):
            return Need(counters=names, of_base=True, profiled=profiled)
    every = question.everything
    permissions = () if every else question.permissions
    wanted = wants_another_pair(pairs, permissions, question.today, every)
    if not wanted or pairs.pairs >= MOST_PAIRS:
        return NOTHING
    return next_pair(pairs, every)


def next_pair(pairs: Comparison, everything: bool = False) -> Need:
    """Return the need of a pair that follows these. With ``everything`` none is the last."""
    head = pairs.head
    profiled = wants_profiles(pairs)
    few = pairs.pairs == LEAST_PAIRS - 1
    alike_steps = pairs.pairs == 0 and not why_not_same(pairs)
    last = JUDGED_TIME not in head.gates or alike_steps or few and profiled
    return Need(pair=True, profiled=profiled, last=last and not everything)


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
    covered = {metric.metric for metric in findings.permitted()[0] if metric.waived_until}
    metrics = tuple(
        _answered(metric, asked) if _is_alarm(metric) and metric.metric not in covered else metric
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
