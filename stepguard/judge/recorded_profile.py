"""Profiles as a recording keeps them: the longest kernels, with rounded figures."""

from collections.abc import Container
from dataclasses import replace

from stepguard.core.profile import (
    IdleRow,
    KernelRow,
    Parts,
    Profile,
    Series,
    Work,
    bounded,
    mean,
    merged,
)
from stepguard.core.recording import ProfileRow, RecordedProfile
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
