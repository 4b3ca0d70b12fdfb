"""What the profiles of two sides say beside their times: why, and of several ranks which one."""

from collections.abc import Sequence

from stepguard.explain.causes import explain
from stepguard.explanation import Explanation
from stepguard.profile import Parts, Profile, mean
from stepguard.verdict import Straggler

# A rank stands out by this share of its step, which is what pairs of whole steps see of a change,
# and by so many standard errors of its mean over the profiled steps.
STRAGGLER_SHARE = 0.005
STRAGGLER_ERRORS = 4.0


def explained(before: Profile | None, after: Profile | None) -> Explanation | None:
    """Return why ``after`` takes longer; None where a side has no profile."""
    return explain(before, after) if before is not None and after is not None else None


def straggler(before: Sequence[Parts], after: Sequence[Parts]) -> Straggler | None:
    """Return the one rank that got slower against itself by more than all others did, if any; of
    the parts of each rank's steps.
    """
    old, new = ([_own_us(parts) for parts in side] for side in (before, after))
    if len(old) != len(new) or len(new) < 2:
        return None
    change = [mean(now) / mean(then) - 1 for now, then in zip(new, old, strict=True)]
    order = sorted(range(len(change)), key=lambda rank: -change[rank])
    rank, next_one = order[0], order[1]
    ahead = change[rank] - max(change[next_one], 0.0)
    error = sum(_error(side[one]) ** 2 for side in (old, new) for one in (rank, next_one)) ** 0.5
    if ahead < max(STRAGGLER_SHARE, STRAGGLER_ERRORS * error):
        return None
    return Straggler(rank, mean(old[rank]) / 1e3, mean(new[rank]) / 1e3, 100 * change[next_one])


def _own_us(parts: Parts) -> list[float]:
    """Return each step without the time in which the rank only exchanges, or waits to."""
    exchange = parts.exposed_communication_us
    return [step - waits for step, waits in zip(parts.step_us, exchange, strict=True)]


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean as a share of it."""
    if len(values) < 2:
        return 1.0
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    return float((variance / len(values)) ** 0.5 / middle)
