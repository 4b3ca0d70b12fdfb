"""What the profiles of two sides say beside their times: why, and of several ranks which one."""

from collections.abc import Sequence
from statistics import stdev

import msgspec

from stepguard.core.explanation import Explanation, Kind
from stepguard.core.profile import Parts, Profile, less, mean
from stepguard.core.recording import Recording
from stepguard.core.verdict import Straggler
from stepguard.explain.causes import explain
from stepguard.judge.recorded_profile import as_recorded, restored

# A step that waits for its host has an idle GPU. Of steps that do not wait, 1.0 and 1.2 % are gaps
# between queued kernels.
IDLE_SHARE = 0.03
# A rank stands out by this share of its step, which is what pairs of whole steps see of a change,
# and by so many standard errors of its mean over the profiled steps.
STRAGGLER_SHARE = 0.005
STRAGGLER_ERRORS = 4.0

# What takes more of the step by so much asks for pairs, which are sure to find it. On another card
# the same step differs in this by 0.08 % at the most: 110 comparisons of H100s and of H200s whose
# steps as a whole differ by up to 4.4 % (studies/other_card).
ALARM_SHARE = 0.005
_OTHER_KERNELS = (
    Kind.CALLS, Kind.SHAPE, Kind.REPLACED, Kind.ADDED, Kind.REMOVED, Kind.MOVED
)  # fmt: skip
_WORK = (*_OTHER_KERNELS, Kind.TIME)
AGREE = 0.5  # of what pairs saw, or twice as much, is what a profile of six steps says about it
_GAPS = (Kind.IDLE, Kind.COPIES)


def other_kernels(explanation: Explanation | None, change: float) -> bool:
    """Tell whether other kernels, other code of theirs or another number of their launches make a
    step longer by about the share of it that it changed by.
    """
    if explanation is None or not change * explanation.before_us:
        return False
    other = (
        cause for cause in explanation.causes if cause.kind in _OTHER_KERNELS or cause.other_code
    )
    made_us = sum(cause.us for cause in other)
    return AGREE <= made_us / (change * explanation.before_us) <= 1 / AGREE


def against_recordings(
    now: Profile | None, past: Sequence[Recording], uuid: str
) -> tuple[Explanation | None, bool]:
    """Return why the step takes longer than in the newest recording with a profile, of this card if
    there is one; and whether what it does takes so much longer that pairs have to say what of it.
    """
    known = [recording for recording in past if recording.profile is not msgspec.UNSET]
    mine = [recording for recording in known if recording.device_uuid == uuid]
    if now is None or not known:
        return None, False
    newest = (mine or known)[-1]
    assert newest.profile is not msgspec.UNSET
    before = restored(newest.profile)
    explanation = explain(before, as_recorded(now, {row.key for row in before.kernels}))
    risen = risen_us(explanation, before.parts)
    return explanation, risen > ALARM_SHARE * explanation.before_us > 0


def risen_us(explanation: Explanation, before: Parts) -> float:
    """Return what kernels take more, without what a whole class shares: the card, or its clock; and
    copies and gaps between them, unless the step waited for its host before: then hosts differ.
    """
    gpu_bound = mean(before.idle_us) <= IDLE_SHARE * mean(before.step_us)
    return sum(
        cause.us
        for cause in explanation.causes
        if cause.kind in _WORK
        and (cause.before.calls or cause.after.calls)
        or cause.kind in _GAPS
        and gpu_bound
    )


def straggler(before: Sequence[Parts], after: Sequence[Parts]) -> Straggler | None:
    """Return the one rank that got slower against itself by more than all others, if any."""
    old, new = ([_own_us(parts) for parts in side] for side in (before, after))
    if len(old) != len(new) or len(new) < 2:
        return None
    change = [mean(now) / mean(then) - 1 for now, then in zip(new, old, strict=True)]
    order = sorted(range(len(change)), key=lambda rank: -change[rank])
    rank, next_one = order[0], order[1]
    ahead = change[rank] - max(change[next_one], 0.0)
    error = sum(_error(side[number]) ** 2 for side in (old, new) for number in order[:2]) ** 0.5
    if ahead < max(STRAGGLER_SHARE, STRAGGLER_ERRORS * error):
        return None
    return Straggler(rank, mean(old[rank]) / 1e3, mean(new[rank]) / 1e3, 100 * change[next_one])


def _own_us(parts: Parts) -> list[float]:
    """Return each step without the time in which the rank only exchanges, or waits to."""
    return list(less(parts.step_us, parts.exposed_communication_us))


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean as a share of it."""
    return stdev(values) / len(values) ** 0.5 / mean(values) if len(values) > 1 else 1.0
