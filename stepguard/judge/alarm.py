"""Alarms: a step time that moved against recordings, and how its alarm ends. Pure.

Against recordings a step time is `same` or an alarm: SLOWER, FASTER, or kernels that take longer in
a step that is within its limit. Pairs of HEAD and the recording's commit answer an alarm. Only this
module says how an alarm ends:

* The pairs say SLOWER: SLOWER, whatever the alarm was.
* The pairs say FASTER: an alarm FASTER stays. An alarm of kernels ends as `same`. An alarm SLOWER
  ends as if the pairs saw no difference.
* The pairs see no difference, and exclude the alarm's change: `same`, or INCONCLUSIVE if that
  change is beyond MACHINE_LIMIT_PCT. An alarm of kernels ends as `same`, whatever they exclude.
* The pairs do not decide, or do not clear the alarm, or there are none: beyond LEVEL_LIMIT_PCT the
  alarm stays. Within it SLOWER becomes INCONCLUSIVE, and FASTER becomes `same`. An alarm of kernels
  ends as `same`, or as INCONCLUSIVE if the interval of undecided pairs is above the ignore margin.
* The two sides do other work, and the alarm is FASTER: the case as a whole is CHANGED.
* The run was ended meanwhile, and the alarm is not SLOWER: the case as a whole is INCONCLUSIVE.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from stepguard.core.comparison import Comparison
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reason_sentences import (
    NoAnswer,
    NotTimed,
    OfConfirmation,
    OtherCommit,
    TooFar,
    WorkMoved,
)
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
from stepguard.judge.findings import Findings, Permits
from stepguard.judge.judge_pairs import (
    pairs_finding,
    refusal,
    time_by_pairs,
    why,
)
from stepguard.judge.noise_limits import LEVEL_LIMIT_PCT
from stepguard.judge.rules import decision
from stepguard.judge.soundness import Refusal

# Another card or clock can change the step time of the same code by this much. Of 13 H200s two
# differ by 4.8 % at most. The SM clock of steady steps was between 1575 and 1800 MHz in all
# studies. That is a factor of 1.14, and a step time changes by no more than the clock.
MACHINE_LIMIT_PCT = 15.0
_MOVED = (Status.SLOWER, Status.FASTER)


@dataclass(frozen=True)
class Answer:
    """What a run learned about an alarm: pairs of HEAD and a commit, or why there are none."""

    commit: str = ""  # the commit, and how it was chosen
    pairs: Comparison | None = None
    own: bool = True  # whether it is the recording's own commit, and not a substitute
    same_code: bool = False  # HEAD is that commit: only the machine can differ
    failed: str = ""  # why there are no pairs


@dataclass(frozen=True)
class _Judged:
    """An answer, and what its pairs say."""

    answer: Answer
    pairs: Comparison | None
    refused: Refusal | None = None  # why the pairs cannot be compared
    decided: Decision | None = None  # None if no time is judged
    missed: int = 0  # steps that the run timed and the pairs did not


def alarm_of(findings: Findings, permits: Permits) -> MetricVerdict | None:
    """Return the step time if it is an alarm, which pairs have to answer; else None.

    It is an alarm if recordings call it SLOWER or FASTER, and no metric that is not waived is
    worse. It is also one if all metrics pass and its kernels take longer, even if a counter fell.
    """
    if findings.whole or findings.against:  # pairs have judged already
        return None
    metrics = _unwaived(findings, permits)
    worst = worst_of(metrics)
    if worst is None:
        return None
    if worst.metric == JUDGED_TIME and worst.status in _MOVED:
        return worst
    passes = worst.status.outcome == "passed"
    return next(
        (metric for metric in metrics if passes and metric.reason is Reason.KERNELS_MOVED), None
    )


def settled(
    findings: Findings, permits: Permits, answer: Answer | None = None, steps: range = range(0)
) -> Findings:
    """Return the findings after all alarms have ended. Only times that moved are changed.

    ``steps`` are the steps that the run timed. The machine is the cause only if the pairs timed all
    of them, and if the pairs' interval excludes the change that recordings show.
    """
    if findings.whole or findings.against:
        return findings
    alarm = alarm_of(findings, permits)
    judged = _judged(answer, steps) if answer and alarm else None
    refused = judged.refused if judged else None
    if alarm and refused and alarm.status is not Status.SLOWER:
        work = refused.figures
        if isinstance(work, WorkMoved) and alarm.status is Status.FASTER:
            work = structs.replace(work, alarm=alarm.status.value)  # such a step is not FASTER
            return replace(findings, whole=replace(refused, figures=work))
        if refused.reason is Reason.UNDECIDED:  # the run was ended
            return replace(findings, whole=refused)

    def ended(metric: MetricVerdict) -> MetricVerdict:
        moved = metric.status in _MOVED or metric.reason is Reason.KERNELS_MOVED
        # A time that a waiver covers passes as it is, whether the code or the machine changed it.
        if not (_is_time(metric) and moved) or permits.covers(findings, metric):
            return metric
        return _settled(_answered(metric, judged) if judged else metric)

    findings = replace(findings, metrics=tuple(map(ended, findings.metrics)))
    if not (alarm and judged and judged.pairs) or judged.refused:
        return findings
    # The pairs' profiles were taken now and on this machine, unlike a recording's.
    causes = {name: cause for name, cause in why(judged.pairs).items() if cause}
    return replace(findings, **causes)


def _judged(answer: Answer, steps: range) -> _Judged:
    """Return an answer with what its pairs say."""
    pairs = answer.pairs
    if pairs is None:
        return _Judged(answer, None)
    return _Judged(answer, pairs, refusal(pairs), decision(pairs), _missed(pairs, steps))


def _unwaived(findings: Findings, permits: Permits) -> Sequence[MetricVerdict]:
    return [metric for metric in permits.apply(findings)[0] if not metric.waived_until]


def _is_time(metric: MetricVerdict) -> bool:
    return metric.metric == JUDGED_TIME and metric.gated


def _settled(time: MetricVerdict) -> MetricVerdict:
    """Return the final verdict on a moved time. The limits against recordings are narrow, since
    pairs check every alarm. So a change within LEVEL_LIMIT_PCT proves nothing without pairs.
    """
    proven = time.confirmed is not None and time.confirmed.outcome is Confirmation.CONFIRMED
    if time.status not in _MOVED or proven or abs(time.change_pct or 0) > LEVEL_LIMIT_PCT:
        return time
    status, reason = Status.INCONCLUSIVE, Reason.UNCONFIRMED
    if time.status is Status.FASTER:  # `same`, so that nobody records it as a gain
        status, reason = Status.SAME, Reason.UNCONFIRMED
    return structs.replace(time, status=status, reason=reason)


def _answered(time: MetricVerdict, judged: _Judged) -> MetricVerdict:
    """Return a moved time with its answer, and with the status that follows from the answer."""
    answer, pairs, by_pairs = judged.answer, judged.pairs, judged.decided
    if answer.same_code:
        return _by_machine(time, Confirmed(Confirmation.MACHINE, answer.commit))
    if answer.failed or pairs is None or judged.refused or by_pairs is None:
        how = Confirmed(Confirmation.NOT_MEASURED, why=_why_not(judged))
        return structs.replace(time, confirmed=how)
    finding = pairs_finding(pairs, by_pairs)
    outcome, why_not = _outcome(time, by_pairs, answer.own, judged.missed)
    confirmed = outcome is Confirmation.CONFIRMED
    hidden = confirmed and by_pairs.status is Status.SLOWER and time.status is Status.FASTER
    how = Confirmed(outcome, answer.commit, finding, hidden, why_not)
    if outcome is Confirmation.MACHINE:
        return _by_machine(time, how)
    if confirmed and by_pairs.status is not time.status:
        shown = time_by_pairs(pairs, by_pairs)
        reason = time.reason if hidden and shown.reason is Reason.BEYOND_MARGIN else shown.reason
        slow = shown.slow_steps or time.slow_steps
        return structs.replace(
            shown, reason=reason, slow_steps=slow, figures=time.figures, confirmed=how
        )
    leans = by_pairs.low_pct > pairs.margins.ignore_pct
    if outcome is Confirmation.UNDECIDED and leans and time.status is Status.SAME:
        # The run's own launches, not the pairs, show which steps are slower within launches.
        return structs.replace(
            time_by_pairs(pairs, by_pairs),
            slow_steps=time.slow_steps,
            figures=time.figures,
            pairs=finding,
            confirmed=how,
        )
    return structs.replace(time, confirmed=how)


def _why_not(judged: _Judged) -> NoAnswer | NoComparison:
    """Return why an alarm has no answer."""
    if judged.answer.failed or judged.pairs is None:
        return NoAnswer(why=judged.answer.failed)
    if refused := judged.refused:
        return NoComparison(refused.status, refused.reason, refused.figures)
    return NoAnswer(why="the step time was not judged")


def _outcome(
    time: MetricVerdict, by_pairs: Decision, own: bool, missed: int
) -> tuple[Confirmation, OfConfirmation | None]:
    """Return what the pairs say of a moved time. The second value says why the pairs do not clear
    the alarm; None if they do, or if there is no sentence for it.
    """
    if by_pairs.status is Status.SLOWER:
        return Confirmation.CONFIRMED, None
    if by_pairs.status is Status.INCONCLUSIVE:
        return Confirmation.UNDECIDED, None
    if time.status is Status.SAME:  # kernels alone never fail a case
        return Confirmation.STEP_SAME, None
    if by_pairs.status is time.status:
        return Confirmation.CONFIRMED, None
    # From here on the pairs say `same`, or FASTER although recordings said SLOWER.
    if not _excludes(time, by_pairs):
        return Confirmation.NOT_CLEARED, None
    if missed:
        return Confirmation.NOT_CLEARED, NotTimed(missed=missed)
    if not own:  # the step may already have been slow at that commit
        return Confirmation.NOT_CLEARED, OtherCommit()
    return Confirmation.MACHINE, None


def _by_machine(time: MetricVerdict, how: Confirmed) -> MetricVerdict:
    """Return a time that moved although the code did not: `same` up to MACHINE_LIMIT_PCT.

    Beyond that limit the cause is unknown. For example, the recording may not be of the commit that
    it names.
    """
    status, reason = Status.SAME, Reason.MACHINE_MOVED
    if time.change_pct is None or abs(time.change_pct) > MACHINE_LIMIT_PCT:
        status, reason = Status.INCONCLUSIVE, Reason.MACHINE_TOO_FAR
        far = TooFar(limit_pct=MACHINE_LIMIT_PCT)
        how = Confirmed(Confirmation.NOT_CLEARED, how.commit, how.step, why=far)
    return structs.replace(time, status=status, reason=reason, confirmed=how)


def _missed(comparison: Comparison, steps: range) -> int:
    """Return how many of ``steps`` the pairs did not time, on the side that lacks more of them."""
    timed = (
        [block.timed_steps for launch in side.launches for block in launch.blocks]
        for side in (comparison.head, comparison.base)
    )
    return max(len(set(steps).difference(*blocks)) for blocks in timed)


def _excludes(time: MetricVerdict, by_pairs: Decision) -> bool:
    """Tell whether the pairs' interval excludes the change against recordings. With wide margins
    pairs may say `same` although their interval contains it.
    """
    if time.change_pct is None:
        return False
    if time.change_pct > 0:
        return by_pairs.high_pct < time.change_pct
    return by_pairs.low_pct > time.change_pct
