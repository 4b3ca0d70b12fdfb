"""What the judge's answer makes of the screen's: the code moved, or the machine. Pure."""

from collections.abc import Callable
from dataclasses import replace

from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.judge.ab import decision, decision_text, problem, wants_another_pair
from stepguard.judge.pairs import Decision
from stepguard.metrics import METRICS
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict

OTHER_WORK = (Reason.OTHER_FLOPS, Reason.OTHER_TOKENS)


def to_confirm(verdict: Verdict) -> MetricVerdict | None:
    """The time by which a stored baseline calls a case SLOWER or FASTER, if that is its verdict."""
    worst = verdict.worst
    if verdict.message or worst is None or verdict.against:
        return None
    timed = METRICS[worst.metric].kind == "time"
    return worst if timed and worst.status in (Status.SLOWER, Status.FASTER) else None


def wants_pairs(verdict: Verdict, comparison: Comparison) -> bool:
    """Whether a confirmation needs another pair: the step is not decided yet, or it is not what
    the screen says of another time, and the pairs still leave room for that.
    """
    if wants_another_pair(comparison):
        return True
    step = decision(comparison)
    return (
        step is not None
        and step.status is not Status.SLOWER
        and any(
            step.status is not found.status
            and wants_another_pair(comparison, found.metric)
            and not _excluded(found, decision(comparison, found.metric), comparison)
            for found in verdict.metrics
            if _is_moved_time(found)
        )
    )


def confirmed(
    verdict: Verdict,
    comparison: Comparison,
    how: str,
    own: bool = True,
    steps: range = range(0),
) -> Verdict:
    """The screen's verdict, after its baseline's code ran beside HEAD on this very machine.

    ``how`` says which commit that was; ``own`` whether it was the recording's own, and not one in
    its place; ``steps`` which ones the screen timed: it is not the machine unless the pairs timed
    all of them. The mean decides, as it does between two revisions: a median scatters two to three
    times as much (pair sd 0.56 % beside 0.17 %, H200), and rarely comes to a `same` of its own. It
    is heard where its pairs say SLOWER, and the machine moved it only if they exclude what the
    screen saw of it. Where the pairs cannot say, the screen's word stands, unconfirmed; but a step
    that does other work is not FASTER, it is NOT COMPARABLE.
    """
    failed = problem(comparison)
    if failed is not None and failed.reason in OTHER_WORK and verdict.status is Status.FASTER:
        message = f"{verdict.status.value}, but at other work: {failed.message}"
        return replace(verdict, status=failed.status, reason=failed.reason, message=message)
    if failed is not None:
        return unconfirmed(verdict, f"{failed.status.value}, {failed.message}")
    excuse = _no_machine(comparison, own, steps)
    return _with_times(verdict, lambda m: _judged(m, comparison, how, excuse))


def _no_machine(comparison: Comparison, own: bool, steps: range) -> str:
    """Why the pairs, if they saw no difference, do not say that it was the machine."""
    for side in (comparison.head, comparison.base):
        blocks = [block for launch in side.launches for block in launch.blocks]
        if missed := set(steps).difference(*(block.timed_steps for block in blocks)):
            return f"the pairs did not time {len(missed)} of the steps that the run timed"
    return "" if own else "like that other commit"  # it may have been slow there already


def _judged(
    found: MetricVerdict, comparison: Comparison, how: str, no_machine: str
) -> MetricVerdict:
    """A time that the screen says has moved, by the pairs."""
    step, its = decision(comparison), decision(comparison, found.metric)
    if step is None or its is None:
        return replace(found, note="unconfirmed: the step time was not judged")
    heard = found.metric == JUDGED_TIME or its.status is Status.SLOWER
    by_pairs = its if heard else step
    words = f"{how} beside it: {decision_text(comparison, by_pairs)}"
    if not heard:
        words += f"; {found.metric} itself [{its.low_pct:+.2f}, {its.high_pct:+.2f}] %"
    if by_pairs.status is Status.SLOWER and found.status is Status.FASTER:
        # The machine hides it: only the pairs' own figures show what is said.
        return replace(
            found,
            status=Status.SLOWER,
            old=comparison.base.values()[found.metric],
            new=comparison.head.values()[found.metric],
            change_pct=its.estimate_pct,
            limit_pct=comparison.margins.ignore_pct,
            noise_pct=None,
            note=f"confirmed, the code is SLOWER, not FASTER: {words}",
        )
    if by_pairs.status is Status.SLOWER or by_pairs.status is found.status:
        note = f"confirmed, the code is {by_pairs.status.value}: {words}"
        return replace(found, status=by_pairs.status, note=note)
    if by_pairs.status is Status.INCONCLUSIVE:
        return replace(found, note=f"unconfirmed: the pairs do not decide, {words}")
    if not _excluded(found, its, comparison):
        note = f"unconfirmed: the pairs do not exclude what the baseline says, {words}"
        return replace(found, note=note)
    if no_machine:
        return replace(found, note=f"unconfirmed: {no_machine}, {words}")
    note = f"the machine moved; {words}"
    return replace(found, status=Status.SAME, reason=Reason.MACHINE_MOVED, note=note)


def _excluded(found: MetricVerdict, by_pairs: Decision | None, comparison: Comparison) -> bool:
    """Whether the pairs' interval leaves no room for the change that the screen saw, and some for
    none: with wide margins `same` may still be most of it, and what lies wholly beyond what is
    ignored is the code's, were it ever so far from what the screen saw.
    """
    if found.change_pct is None or by_pairs is None:
        return False
    nothing = comparison.margins.ignore_pct
    if found.change_pct > 0:
        return by_pairs.high_pct < found.change_pct and by_pairs.low_pct <= nothing
    return by_pairs.low_pct > found.change_pct and by_pairs.high_pct >= -nothing


def same_code(verdict: Verdict, how: str) -> Verdict:
    """The verdict where the recording was made of this very code: nothing else can have moved."""
    note = f"the machine moved: HEAD is {how}"
    reason = Reason.MACHINE_MOVED
    return _with_times(verdict, lambda m: replace(m, status=Status.SAME, reason=reason, note=note))


def unconfirmed(verdict: Verdict, why: str) -> Verdict:
    """The screen's verdict as it is, and why nobody could tell code from machine."""
    assert to_confirm(verdict) is not None
    return _with_times(verdict, lambda m: replace(m, note=f"unconfirmed: {why}"))


def _with_times(verdict: Verdict, judged: Callable[[MetricVerdict], MetricVerdict]) -> Verdict:
    """The verdict with each of its moved times judged anew; what else moved keeps its say."""
    return verdict.with_metrics(
        tuple(judged(m) if _is_moved_time(m) else m for m in verdict.metrics)
    )


def _is_moved_time(found: MetricVerdict) -> bool:
    timed = METRICS[found.metric].kind == "time"
    return timed and found.gated and found.status in (Status.SLOWER, Status.FASTER)
