"""Compare the profiles of two sides: why a step changed, whether its kernels take longer, and
whether one rank alone got slower.
"""

from collections.abc import Sequence
from statistics import stdev

import msgspec

from stepguard.core.explanation import Explanation, Kind
from stepguard.core.profile import Parts, Profile, less, mean
from stepguard.core.recording import Recording
from stepguard.core.verdict import Straggler
from stepguard.explain.causes import explain
from stepguard.judge.comparable import of_one_card
from stepguard.judge.recorded_profile import as_recorded, restored

# A step that waits for its host has an idle GPU. Steps that do not wait were idle for 1.0 and
# 1.2 %: gaps between queued kernels.
IDLE_SHARE = 0.03
# A rank is a straggler if it got slower by this share of its step (what pairs of whole steps can
# find), and by this many standard errors of its mean over the profiled steps.
STRAGGLER_SHARE = 0.005
STRAGGLER_ERRORS = 4.0

# If kernels take longer by this share of the step, pairs are measured, which find a change of that
# size. With the same code this figure differs between cards by at most 0.08 %: 110 comparisons of
# H100s and of H200s whose steps as a whole differ by up to 4.4 % (96e72680:studies/other_card).
ALARM_SHARE = 0.005
_WORK = (
    Kind.CALLS, Kind.SHAPE, Kind.REPLACED, Kind.ADDED, Kind.REMOVED, Kind.MOVED, Kind.TIME
)  # fmt: skip
_GAPS = (Kind.IDLE, Kind.COPIES)


def against_recordings(
    profile: Profile | None, now: Recording, past: Sequence[Recording]
) -> tuple[Explanation | None, bool]:
    """Return why the step takes longer than in a recording, and whether its kernels take so much
    longer that pairs have to decide. The explanation is None if a profile is missing.

    The recording is the newest one with a profile, of the same card as ``now`` if there is one.
    """
    known = [recording for recording in past if recording.profile is not msgspec.UNSET]
    mine = [recording for recording in known if of_one_card(recording, now)]
    if profile is None or not known:
        return None, False
    newest = (mine or known)[-1]
    assert newest.profile is not msgspec.UNSET
    before = restored(newest.profile)
    after = as_recorded(profile, {row.key for row in before.kernels})
    explanation = explain(before, after, operators=now.operator_sites())
    risen = risen_us(explanation, before.parts)
    return explanation, risen > ALARM_SHARE * explanation.before_us > 0


def risen_us(explanation: Explanation, before: Parts) -> float:
    """Return by how many us a step the kernels take longer. A change that a whole class of kernels
    shares is left out: it is the card's, or its clock's. Copies and gaps count too, unless the step
    waited for its host before: hosts differ.
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
    """Return the one rank that got slower by more than all others did; None if there is none."""
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
    """Return the us of each step without exposed communication, in which a rank waits."""
    return list(less(parts.step_us, parts.exposed_communication_us))


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean as a share of it."""
    return stdev(values) / len(values) ** 0.5 / mean(values) if len(values) > 1 else 1.0
