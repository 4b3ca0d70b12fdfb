"""Confirmation of the screen's alarm by pairs: they tell slower code from a slower machine."""

from collections.abc import Callable

from msgspec import structs
from msgspec.structs import replace

from stepguard.core.comparison import Comparison
from stepguard.core.figures import OtherWork, OtherWorkOfRanks
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.verdict import (
    Confirmation,
    Confirmed,
    Decision,
    MetricVerdict,
    NoComparison,
    Reason,
    Status,
    Verdict,
    worst_of,
)
from stepguard.judge.ab.decision import decision, pairs_finding, problem, why
from stepguard.judge.ab.stays import says_slower
from stepguard.judge.noise_limits import LEVEL_LIMIT_PCT
from stepguard.judge.series import judged_within, of_pairs
from stepguard.judge.summary import summarise

# Of a step time, that another card or clock may make with the same code. H200s: cards differ by
# 4.8 % at most (13 of them), and the SM clock of steady steps was between 1575 and 1800 MHz in all
# studies, a factor of 1.14, which a step's time can follow at most.
MACHINE_LIMIT_PCT = 15.0
PROVEN = (Confirmation.CONFIRMED, Confirmation.REVERSED)


def to_confirm(verdict: Verdict) -> MetricVerdict | None:
    """Return the time by which a stored baseline calls a case SLOWER or FASTER, if one decides of
    all that is not waived; or the step time that is within its limit though kernels moved, where
    all else passes: a counter that fell must not hide them.
    """
    worst = worst_of(metric for metric in verdict.metrics if not metric.waived_until)
    # An A/B verdict rests on pairs already.
    if verdict.whole or worst is None or verdict.against:
        return None
    if worst.metric == JUDGED_TIME and worst.status in (Status.SLOWER, Status.FASTER):
        return worst
    passes = worst.status.outcome == "passed"
    return next((one for one in verdict.metrics if passes and _kernels_ask(one)), None)


def may_ask(verdict: Verdict, pairs: Comparison | None) -> bool:
    """Tell whether pairs have to say what is true of a screen's verdict: it moved a time, or passes
    where the ``pairs`` of an earlier run, which still hold, said SLOWER. Until it is green by
    chance nobody needs to try.
    """
    passes = verdict.outcome == "passed" and any(map(_is_same_time, verdict.metrics))
    slower = pairs is not None and says_slower(pairs)
    return to_confirm(verdict) is not None or passes and slower


def confirmed(
    verdict: Verdict,
    comparison: Comparison,
    commit: str,
    own: bool = True,
    steps: range = range(0),
) -> Verdict:
    """Return the screen's verdict, after its baseline's code ran beside HEAD on this very machine.

    ``commit`` says which one that was; ``own`` that it is the recording's own, and not one in its
    place; ``steps`` are those that the screen timed: it is not the machine unless the pairs timed
    all of them, and exclude what the screen saw. Where they cannot say, the screen's word remains,
    unconfirmed; but a step that does other work is not FASTER, it is CHANGED.
    """
    if to_confirm(verdict) is None:
        return _as_before(verdict, comparison, commit)
    failed = problem(comparison)
    if failed is not None:
        work = failed.figures if verdict.status is Status.FASTER else None
        if isinstance(work, OtherWork | OtherWorkOfRanks):
            work = structs.replace(work, alarm=verdict.status.value)
            return replace(verdict, status=failed.status, reason=failed.reason, figures=work)
        cannot = NoComparison(failed.status, failed.reason, failed.figures)
        return _unconfirmed(verdict, Confirmed(Confirmation.BASE_FAILED, failed=cannot))
    not_machine = _not_the_machine(comparison, own, steps)
    found = _with_times(verdict, lambda m: _judged(m, comparison, commit, not_machine))
    # Of this machine at this time, which a recording's is not.
    return replace(found, **{name: one for name, one in why(comparison).items() if one})


def _as_before(verdict: Verdict, comparison: Comparison, commit: str) -> Verdict:
    """Return a verdict that passes, SLOWER where the pairs of an earlier run say so."""
    # Where they have a problem, the earlier pairs are none of this machine.
    its = _by_pairs(comparison) if problem(comparison) is None else None
    if its is None or its.status is not Status.SLOWER:
        return verdict
    how = Confirmed(Confirmation.CONFIRMED, commit, pairs_finding(comparison, its))
    judged = (
        _slower(one, comparison, its, how) if _is_same_time(one) else one for one in verdict.metrics
    )
    return verdict.with_metrics(tuple(judged))


def _by_pairs(comparison: Comparison) -> Decision | None:
    """Return the pairs' decision; SLOWER where steps are slower within launches and the other
    tree's are not: a mean may hide it, no machine does.
    """
    found = decision(comparison)
    return replace(found, status=Status.SLOWER) if found and of_pairs(comparison) else found


def _not_the_machine(
    comparison: Comparison, own: bool, steps: range
) -> tuple[Confirmation, int] | None:
    """Return why pairs that saw no difference do not say that it was the machine."""
    if missed := _missed(comparison, steps):
        return Confirmation.STEPS_NOT_TIMED, missed
    return None if own else (Confirmation.OTHER_COMMIT, 0)  # it may have been slow there already


def _missed(comparison: Comparison, steps: range) -> int:
    """Return how many of the steps the pairs did not time, on the side that lacks more of them."""
    timed = (
        [block.timed_steps for launch in side.launches for block in launch.blocks]
        for side in (comparison.head, comparison.base)
    )
    return max(len(set(steps).difference(*blocks)) for blocks in timed)


def _judged(
    found: MetricVerdict,
    comparison: Comparison,
    commit: str,
    not_machine: tuple[Confirmation, int] | None,
) -> MetricVerdict:
    """Judge a time that the screen says has moved, by the pairs."""
    by_pairs = _by_pairs(comparison)
    if by_pairs is None:
        return replace(found, confirmed=Confirmed(Confirmation.NOT_JUDGED))
    outcome, missed = _outcome(found, by_pairs), 0
    if outcome is Confirmation.MACHINE and not_machine:
        outcome, missed = not_machine
    how = Confirmed(outcome, commit, pairs_finding(comparison, by_pairs), missed)
    if outcome is Confirmation.MACHINE:
        return _by_machine(found, how)
    if by_pairs.status is Status.SLOWER and found.status is not Status.SLOWER:
        return _slower(found, comparison, by_pairs, how)
    if outcome is Confirmation.CONFIRMED:
        return replace(found, status=by_pairs.status, confirmed=how)
    leans = by_pairs.low_pct > comparison.margins.ignore_pct
    if outcome is Confirmation.UNDECIDED and leans and found.status is Status.SAME:
        shown = _by_its_figures(found, comparison, by_pairs, how)
        return replace(shown, status=Status.INCONCLUSIVE, reason=Reason.UNDECIDED)
    return replace(found, confirmed=how)


def _outcome(found: MetricVerdict, by_pairs: Decision) -> Confirmation:
    """Return what the pairs say of a time that the screen says has moved."""
    undecided = by_pairs.status is Status.INCONCLUSIVE
    if by_pairs.status is Status.SLOWER:
        hidden = found.status is Status.FASTER
        return Confirmation.REVERSED if hidden else Confirmation.CONFIRMED
    if found.status is Status.SAME:  # kernels alone never fail a case
        return Confirmation.UNDECIDED if undecided else Confirmation.STEP_SAME
    if by_pairs.status is found.status:
        return Confirmation.CONFIRMED
    if undecided:
        return Confirmation.UNDECIDED
    # `same` from here on, or the opposite: FASTER where the screen said SLOWER.
    excluded = _excluded(found, by_pairs)
    return Confirmation.MACHINE if excluded else Confirmation.NOT_EXCLUDED


def _slower(
    found: MetricVerdict, comparison: Comparison, its: Decision, how: Confirmed
) -> MetricVerdict:
    """Judge a time that pairs alone say is slower."""
    judged = replace(
        _by_its_figures(found, comparison, its, how),
        status=Status.SLOWER,
        reason=found.reason if found.status is Status.FASTER else Reason.BEYOND_MARGIN,
    )
    if of_pairs(comparison):
        judged = judged_within(comparison, judged)
    slow_steps = judged.slow_steps or found.slow_steps
    return replace(judged, pairs=None, slow_steps=slow_steps)


def _by_its_figures(
    found: MetricVerdict, comparison: Comparison, its: Decision, how: Confirmed
) -> MetricVerdict:
    """Return a time with the figures of the pairs, which alone show what they say."""
    return replace(
        found,
        old=summarise(comparison.base).values()[found.metric],
        new=summarise(comparison.head).values()[found.metric],
        change_pct=its.estimate_pct,
        limit_pct=comparison.margins.ignore_pct,
        noise_pct=None,
        confirmed=how,
        pairs=how.step,
    )


def _by_machine(found: MetricVerdict, how: Confirmed) -> MetricVerdict:
    """Judge a time that moved though the code did not: by the machine, as far as machines go.

    Beyond that nobody knows what moved; a recording that is not of its commit, maybe.
    """
    if found.change_pct is None or abs(found.change_pct) > MACHINE_LIMIT_PCT:
        how = replace(how, outcome=Confirmation.TOO_FAR, limit_pct=MACHINE_LIMIT_PCT)
        return replace(
            found, status=Status.INCONCLUSIVE, reason=Reason.MACHINE_TOO_FAR, confirmed=how
        )
    return replace(found, status=Status.SAME, reason=Reason.MACHINE_MOVED, confirmed=how)


def _excluded(found: MetricVerdict, by_pairs: Decision) -> bool:
    """Tell whether the pairs' interval leaves no room for the change that the screen saw: with wide
    margins `same` may still be most of it.
    """
    if found.change_pct is None:
        return False
    if found.change_pct > 0:
        return by_pairs.high_pct < found.change_pct
    return by_pairs.low_pct > found.change_pct


def same_code(verdict: Verdict, commit: str) -> Verdict:
    """Return the verdict where the recording is of this very code: only the machine can differ."""
    how = Confirmed(Confirmation.SAME_CODE, commit)
    return _with_times(verdict, lambda m: _by_machine(m, how))


def unconfirmed(verdict: Verdict, why: Confirmation, commit: str = "") -> Verdict:
    """Return the screen's verdict as it is, and why code and machine could not be told apart."""
    return _unconfirmed(verdict, Confirmed(why, commit))


def _unconfirmed(verdict: Verdict, how: Confirmed) -> Verdict:
    assert to_confirm(verdict) is not None
    return _with_times(verdict, lambda m: replace(m, confirmed=how))


def settled(verdict: Verdict) -> Verdict:
    """Return the screen's verdict as it may leave the run. Its limits are narrow, since pairs
    confirm; an alarm that none confirmed proves nothing within LEVEL_LIMIT_PCT.
    """
    if verdict.whole or verdict.against:
        return verdict
    return _with_times(verdict, _settled)


def _settled(found: MetricVerdict) -> MetricVerdict:
    proven = found.confirmed is not None and found.confirmed.outcome in PROVEN
    if found.status is Status.SAME or proven or abs(found.change_pct or 0) > LEVEL_LIMIT_PCT:
        return found
    if found.status is Status.FASTER:  # as good as `same`, and nobody is to accept it as a gain
        return replace(found, status=Status.SAME, reason=Reason.WITHIN_LEVEL)
    return replace(found, status=Status.INCONCLUSIVE, reason=Reason.UNCONFIRMED)


def _with_times(verdict: Verdict, judged: Callable[[MetricVerdict], MetricVerdict]) -> Verdict:
    """Return the verdict with each of its moved times judged anew, and all else as it is."""
    return verdict.with_metrics(
        tuple(judged(m) if _is_moved_time(m) or _kernels_ask(m) else m for m in verdict.metrics)
    )


def _is_moved_time(found: MetricVerdict) -> bool:
    if found.waived_until:  # it passes, be it the code's doing or the machine's
        return False
    moved = found.status in (Status.SLOWER, Status.FASTER)
    return found.metric == JUDGED_TIME and found.gated and moved


def _is_same_time(found: MetricVerdict) -> bool:
    return found.metric == JUDGED_TIME and found.gated and found.status is Status.SAME


def _kernels_ask(found: MetricVerdict) -> bool:
    return found.reason is Reason.KERNELS_MOVED and found.confirmed is None
