"""Compare the profiles of two sides: why a step changed, whether its kernels take longer, and
whether one rank alone got slower. A recording keeps the longest kernels, with rounded figures.
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from statistics import stdev

import msgspec

from stepguard.core.explanation import Explanation, Kind
from stepguard.core.profile import (
    IdleRow,
    KernelRow,
    Parts,
    Profile,
    Series,
    Work,
    bounded,
    less,
    mean,
    merged,
)
from stepguard.core.recording import ProfileRow, RecordedProfile, Recording
from stepguard.core.verdict import Straggler
from stepguard.explain.causes import explain
from stepguard.judge.comparable import of_one_card
from stepguard.trace.kernel_classes import usual_classes

KERNELS = 40  # these take 97 to 99 % of the kernels' time of a GPT-2's step
_PARTS = {name.removesuffix("_us"): name for name in Parts.__dataclass_fields__}
_NO_SHAPE = "-"


def recorded(profile: Profile) -> RecordedProfile:
    """Return a profile as it is recorded, with five digits a figure."""
    small = as_recorded(profile)
    kernels: dict[str, dict[str, dict[str, ProfileRow]]] = {}
    for row in small.kernels:
        shapes = " ".join("x".join(map(str, sizes)) or _NO_SHAPE for sizes in (row.grid, row.block))
        of_kind = kernels.setdefault(row.phase, {}).setdefault(row.kind, {})
        of_kind[f"{row.name} {shapes}"] = _row(row.calls, row.us)
    idle: dict[str, dict[str, dict[str, ProfileRow]]] = {}
    for gap in small.idle:
        idle.setdefault(gap.cause, {}).setdefault(gap.place, {})[gap.call] = _row(gap.count, gap.us)
    parts = {
        short: [_short(us) for us in getattr(small.parts, name)] for short, name in _PARTS.items()
    }
    return RecordedProfile(
        gpu=small.gpu, ranks=small.ranks, parts_us=parts, kernels=kernels, idle=idle
    )


def as_recorded(profile: Profile, kept: Container[object] = ()) -> Profile:
    """Return what a recording keeps of a profile, and the kernels whose keys are ``kept``."""
    return bounded(replace(profile, kernels=merged(profile.kernels, work=Work())), KERNELS, kept)


def _row(counts: Series, us: Series) -> ProfileRow:
    return [_short(mean(counts)), *map(_short, us)]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def restored(kept: RecordedProfile) -> Profile:
    """Return the profile that a recording keeps. Raises ValueError if it is damaged."""
    if sorted(kept.parts_us) != sorted(_PARTS):
        raise ValueError(
            f"its profile has the parts {', '.join(sorted(kept.parts_us))}, "
            f"not {', '.join(sorted(_PARTS))}"
        )
    profile = Profile(
        gpu=kept.gpu,
        ranks=kept.ranks,
        parts=Parts(*(tuple(kept.parts_us[short]) for short in _PARTS)),
        kernels=tuple(
            _kernel(key, kind, phase, row)
            for phase, kinds in kept.kernels.items()
            for kind, rows in kinds.items()
            for key, row in rows.items()
        ),
        idle=tuple(
            IdleRow(cause, call, place, _counts(row), tuple(row[1:]))
            for cause, places in kept.idle.items()
            for place, calls in places.items()
            for call, row in calls.items()
        ),
    )
    if problem := profile.problem():
        raise ValueError(problem)
    return profile


def _kernel(key: str, kind: str, phase: str, row: ProfileRow) -> KernelRow:
    name, *shapes = key.rsplit(" ", 2)
    if len(shapes) != 2:
        raise ValueError(f"its profile has the kernel {key!r}, without grid and block")
    grid, block = (tuple(map(int, size.split("x"))) if size != _NO_SHAPE else () for size in shapes)
    canonical = usual_classes().canonical_name(name)
    return KernelRow(name, canonical, kind, phase, _counts(row), tuple(row[1:]), grid, block)


def _counts(row: ProfileRow) -> Series:
    return (row[0],) * (len(row) - 1)


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
    """Return why the step takes longer than in the newest recording with a profile, if possible of
    this card, and whether its kernels take so much longer that pairs have to decide.
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
