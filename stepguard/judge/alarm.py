"""Alarms: a time that moved beside recordings, and what becomes of it. Pure.

Against recordings a step time is `same` or an alarm: SLOWER, FASTER, or kernels that take longer in
a step that is within its limit. Pairs beside the recording's commit answer it. This is the one
place that says what an alarm ends as:

| the answer | SLOWER, FASTER | kernels alone |
|---|---|---|
| none, or pairs that cannot say | beyond LEVEL_LIMIT_PCT the same; else INCONCLUSIVE, `same` | |
| the code is SLOWER | SLOWER | SLOWER |
| the code is FASTER | FASTER | `same` |
| no difference, and what the screen saw is excluded | `same`, up to MACHINE_LIMIT_PCT | `same` |
| undecided, and beyond the ignore margin | as without | INCONCLUSIVE |
| other work, of a step that is FASTER | CHANGED, the case as a whole | |
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepguard.comparison import Comparison
from stepguard.judge.ab.decision import WORK, pairs_finding, refusal, time_by_pairs, why
from stepguard.judge.ab.stays import says_slower
from stepguard.judge.findings import Findings, Permits
from stepguard.judge.noise_limits import LEVEL_LIMIT_PCT
from stepguard.judge.rules import decision
from stepguard.judge.soundness import Refusal
from stepguard.judge.summary import summarise
from stepguard.metrics import JUDGED_TIME
from stepguard.verdict import (
    Confirmation,
    Confirmed,
    Decision,
    MetricVerdict,
    Reason,
    Status,
    worst_of,
)

# Of a step time, that another card or clock may make with the same code. H200s: cards differ by
# 4.8 % at most (13 of them), and the SM clock of steady steps was between 1575 and 1800 MHz in all
# studies, a factor of 1.14, which a step's time can follow at most.
MACHINE_LIMIT_PCT = 15.0
_MOVED = (Status.SLOWER, Status.FASTER)


@dataclass(frozen=True)
class Answer:
    """What a run found out about an alarm: pairs beside a commit, or why there are none."""

    commit: str = ""  # the one that was chosen, and how
    pairs: Comparison | None = None
    own: bool = True  # it is the recording's own, and not one in its place
    same_code: bool = False  # HEAD is that commit: only the machine can differ
    failed: str = ""  # why no pairs could be had


def alarm_of(found: Findings, permits: Permits) -> MetricVerdict | None:
    """Return the time that pairs are asked about: the one by which recordings call a case SLOWER or
    FASTER, if it decides of all that is not waived; or the step time that is within its limit
    though kernels moved, where all else passes: a counter that fell must not hide them.
    """
    if found.whole or found.against:  # pairs have judged already
        return None
    metrics = _unwaived(found, permits)
    worst = worst_of(metrics)
    if worst is None:
        return None
    if worst.metric == JUDGED_TIME and worst.status in _MOVED:
        return worst
    passes = worst.status.outcome == "passed"
    return next((one for one in metrics if passes and one.reason is Reason.KERNELS_MOVED), None)


def is_asked(found: Findings, permits: Permits, pairs: Comparison | None) -> bool:
    """Tell whether pairs have to say what is true of a case: there is an alarm, or it passes where
    the ``pairs`` of an earlier run, which still hold, said SLOWER. Until it is green by chance
    nobody needs to try.
    """
    return alarm_of(found, permits) is not None or _is_overruled(found, permits, pairs)


def _is_overruled(found: Findings, permits: Permits, pairs: Comparison | None) -> bool:
    """Tell whether a case passes by recordings though pairs call its step slower."""
    if found.whole or found.against or pairs is None:
        return False
    passes = all(one.status.outcome == "passed" for one in _unwaived(found, permits) if one.gated)
    timed = any(_is_time(one) and one.status is Status.SAME for one in found.metrics)
    return passes and timed and says_slower(pairs)


def settled(
    found: Findings, permits: Permits, answer: Answer | None = None, steps: range = range(0)
) -> Findings:
    """Return what a run ends with: each moved time as its alarm ends, and all else as it is.

    ``steps`` are those that the run timed: it was not the machine unless the pairs timed all of
    them, and exclude what the screen saw.
    """
    if found.whole or found.against:
        return found
    alarm = alarm_of(found, permits)
    overruled = answer is not None and _is_overruled(found, permits, answer.pairs)
    answer = answer if alarm or overruled else None
    pairs = answer.pairs if answer else None
    refused = refusal(pairs) if pairs else None
    if alarm and refused and alarm.status is Status.FASTER and refused.reason in WORK.values():
        # A step that does other work is not FASTER.
        facts = {**refused.facts, "but": alarm.status.value}
        return replace(found, whole=Refusal(refused.status, refused.reason, facts))
    metrics = tuple(
        _ended(one, found, permits, answer, refused, steps, overruled) if _is_time(one) else one
        for one in found.metrics
    )
    causes: dict[str, Any] = {}
    if alarm and pairs and refused is None:
        # Of this machine at this time, which a recording's is not.
        causes = {name: cause for name, cause in why(pairs).items() if cause}
    return replace(found, metrics=metrics, **causes)


def _unwaived(found: Findings, permits: Permits) -> Sequence[MetricVerdict]:
    return [one for one in permits.apply(found)[0] if not one.waived_until]


def _is_time(found: MetricVerdict) -> bool:
    return found.metric == JUDGED_TIME and found.gated


def _ended(
    time: MetricVerdict,
    found: Findings,
    permits: Permits,
    answer: Answer | None,
    refused: Refusal | None,
    steps: range,
    overruled: bool,
) -> MetricVerdict:
    """Return a step time as it may leave the run. What a waiver covers passes, be it the code's
    doing or the machine's, and stays as the screen, or the pairs, saw it.
    """
    moved = time.status in _MOVED or time.reason is Reason.KERNELS_MOVED
    if not (moved or overruled) or permits.covers(found, time):
        return time
    fields = _answered(time, answer, refused, steps) if answer else {}
    ended: dict[str, Any] = {"status": time.status, "reason": time.reason, **fields}
    how = fields.get("confirmed")
    proven = how is not None and how.outcome is Confirmation.CONFIRMED
    change = fields.get("change_pct", time.change_pct) or 0
    if ended["status"] in _MOVED and not proven and abs(change) <= LEVEL_LIMIT_PCT:
        # Its limits are narrow, since pairs confirm; an alarm that none confirmed proves nothing.
        faster = ended["status"] is Status.FASTER  # nobody is to accept it as a gain
        ended["status"] = Status.SAME if faster else Status.INCONCLUSIVE
        ended["reason"] = Reason.WITHIN_LEVEL if faster else Reason.UNCONFIRMED
    return replace(time, **{**fields, **ended})


def _answered(
    time: MetricVerdict, answer: Answer, refused: Refusal | None, steps: range
) -> dict[str, Any]:
    """Return what an answer makes of a moved time, as fields of its verdict."""
    if answer.same_code:
        return _by_machine(time, Confirmed(Confirmation.MACHINE, answer.commit))
    if answer.failed or answer.pairs is None:
        facts = {"text": answer.failed}
        return {"confirmed": Confirmed(Confirmation.NOT_MEASURED, facts=facts)}
    by_pairs = decision(answer.pairs)
    if refused:
        failed = {"status": refused.status.value, "reason": refused.reason, "facts": refused.facts}
        return {"confirmed": Confirmed(Confirmation.NOT_MEASURED, facts=failed)}
    if by_pairs is None:
        facts = {"text": "the step time was not judged"}
        return {"confirmed": Confirmed(Confirmation.NOT_MEASURED, facts=facts)}
    return _by_pairs(time, answer, answer.pairs, by_pairs, steps)


def _by_pairs(
    time: MetricVerdict, answer: Answer, pairs: Comparison, by_pairs: Decision, steps: range
) -> dict[str, Any]:
    """Return what the pairs make of a moved time."""
    finding = pairs_finding(pairs, by_pairs)
    outcome, facts = _outcome(time, by_pairs, answer, _missed(pairs, steps))
    how = Confirmed(outcome, answer.commit, finding, facts)
    if outcome is Confirmation.MACHINE:
        return _by_machine(time, how)
    if outcome is Confirmation.CONFIRMED and by_pairs.status is time.status:
        return {"confirmed": how}
    if outcome is Confirmation.CONFIRMED:
        its = time_by_pairs(pairs, by_pairs)
        if its["reason"] is Reason.BEYOND_MARGIN and time.status is Status.FASTER:
            its["reason"] = time.reason
        return {
            **_by_figures(pairs, its),
            "confirmed": how,
            "facts": {**time.facts, **its["facts"]},
        }
    leans = by_pairs.low_pct > pairs.margins.ignore_pct
    if outcome is Confirmation.UNDECIDED and leans and time.status is Status.SAME:
        shown = _by_figures(pairs, time_by_pairs(pairs, by_pairs))
        return {**shown, "confirmed": how, "pairs": finding, "facts": time.facts}
    return {"confirmed": how}


def _by_figures(pairs: Comparison, its: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the pairs, which alone show what they say."""
    new = summarise(pairs.head).values()[JUDGED_TIME]
    old = new / (1 + its["change_pct"] / 100)
    return {**its, "old": old, "new": new, "noise_pct": None}


def _outcome(
    time: MetricVerdict, by_pairs: Decision, answer: Answer, missed: int
) -> tuple[Confirmation, dict[str, Any]]:
    """Return what the pairs say of a time that recordings call moved, and its figures."""
    undecided = by_pairs.status is Status.INCONCLUSIVE
    if by_pairs.status is Status.SLOWER:
        hidden = {"hidden": True} if time.status is Status.FASTER else {}
        return Confirmation.CONFIRMED, hidden
    if undecided:
        return Confirmation.UNDECIDED, {}
    if time.status is Status.SAME:  # kernels alone never fail a case
        return Confirmation.STEP_SAME, {}
    if by_pairs.status is time.status:
        return Confirmation.CONFIRMED, {}
    # `same` from here on, or the opposite: FASTER where the screen said SLOWER.
    if not _excludes(time, by_pairs):
        return Confirmation.NOT_CLEARED, {}
    if missed:
        return Confirmation.NOT_CLEARED, {"missed": missed}
    if not answer.own:  # it may have been slow there already
        return Confirmation.NOT_CLEARED, {"other_commit": True}
    return Confirmation.MACHINE, {}


def _by_machine(time: MetricVerdict, how: Confirmed) -> dict[str, Any]:
    """Return a time that moved though the code did not: by the machine, as far as machines go.

    Beyond that nobody knows what moved; a recording that is not of its commit, maybe.
    """
    if time.change_pct is None or abs(time.change_pct) > MACHINE_LIMIT_PCT:
        facts = {**how.facts, "limit_pct": MACHINE_LIMIT_PCT}
        return {
            "status": Status.INCONCLUSIVE,
            "reason": Reason.MACHINE_TOO_FAR,
            "confirmed": replace(how, outcome=Confirmation.NOT_CLEARED, facts=facts),
        }
    return {"status": Status.SAME, "reason": Reason.MACHINE_MOVED, "confirmed": how}


def _missed(comparison: Comparison, steps: range) -> int:
    """Return how many of the steps the pairs did not time, on the side that lacks more of them."""
    timed = (
        [block.timed_steps for launch in side.launches for block in launch.blocks]
        for side in (comparison.head, comparison.base)
    )
    return max(len(set(steps).difference(*blocks)) for blocks in timed)


def _excludes(time: MetricVerdict, by_pairs: Decision) -> bool:
    """Tell whether the pairs' interval leaves no room for the change that the screen saw: with wide
    margins `same` may still be most of it.
    """
    if time.change_pct is None:
        return False
    if time.change_pct > 0:
        return by_pairs.high_pct < time.change_pct
    return by_pairs.low_pct > time.change_pct
