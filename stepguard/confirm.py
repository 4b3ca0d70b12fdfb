"""What the judge's answer makes of the screen's: the code moved, or the machine. Pure."""

from dataclasses import replace

from stepguard.comparison import Comparison
from stepguard.metrics import METRICS
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict, worst_of
from stepguard.versus import decision, problem, told


def to_confirm(verdict: Verdict) -> MetricVerdict | None:
    """The time by which a stored baseline calls a case SLOWER or FASTER, if that is its verdict."""
    worst = verdict.worst
    if verdict.message or worst is None or verdict.against:
        return None
    timed = METRICS[worst.metric].kind == "time"
    return worst if timed and worst.status in (Status.SLOWER, Status.FASTER) else None


def confirmed(verdict: Verdict, comparison: Comparison, how: str) -> Verdict:
    """The screen's verdict, after its baseline's code ran beside HEAD on this very machine.

    ``how`` says which commit that was. Where the code has not moved, the times are `same`: the
    machine has. Where the pairs cannot say, the screen's word stands, unconfirmed.
    """
    screened = to_confirm(verdict)
    assert screened is not None
    found, failed = decision(comparison, screened.metric), problem(comparison)
    if failed is not None:
        return unconfirmed(verdict, f"{failed.status.value}, {failed.message}")
    if found is None:
        return unconfirmed(verdict, "the step time was not judged")
    words = f"{how} beside it: {told(comparison, found)}"
    if found.status is Status.SLOWER or found.status is screened.status:
        note = f"confirmed, the code is {found.status.value}: {words}"
        return _moved(verdict, found.status, screened.reason, note)
    if found.status is Status.INCONCLUSIVE:
        return unconfirmed(verdict, f"the pairs do not decide, {words}")
    return _moved(verdict, Status.SAME, Reason.MACHINE_MOVED, f"the machine moved; {words}")


def same_code(verdict: Verdict, how: str) -> Verdict:
    """The verdict where the recording was made of this very code: nothing else can have moved."""
    note = f"the machine moved: HEAD is {how}"
    return _moved(verdict, Status.SAME, Reason.MACHINE_MOVED, note)


def unconfirmed(verdict: Verdict, why: str) -> Verdict:
    """The screen's verdict as it is, and why nobody could tell code from machine."""
    screened = to_confirm(verdict)
    assert screened is not None
    return _moved(verdict, screened.status, screened.reason, f"unconfirmed: {why}")


def _moved(verdict: Verdict, status: Status, reason: Reason, note: str) -> Verdict:
    """The verdict with its moved times judged anew; what else moved keeps its say."""
    metrics = tuple(
        replace(m, status=status, reason=reason, note=note)
        if METRICS[m.metric].kind == "time" and m.status in (Status.SLOWER, Status.FASTER)
        else m
        for m in verdict.metrics
    )
    worst = worst_of(metrics)
    assert worst is not None
    reason = reason if worst.status is Status.SAME else worst.reason
    return replace(verdict, status=worst.status, reason=reason, metrics=metrics)
