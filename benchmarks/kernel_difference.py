"""Judge kernels against kernels: how much longer do the kernels that differ take? Pure functions.

Kernels of both sides are matched. Some differ, by name, grid, launches or code. The others are the
same on both sides, and so they show the pace of each side. The times of the kernels that differ are
divided by the pace. They give one difference for each pair of launches, in percent of a step. Its
bounds come from the scatter of the pairs' differences (Student's t, or moderated by a known
scatter). Unprofiled blocks can forbid a finding, but never make one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, variance
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from stepguard.core.margins import ALPHA, PRIOR, Prior
from stepguard.core.profile import KernelRow, mean
from stepguard.core.work_and_peaks import Work
from stepguard.explain.match_kernels import How, Match, match

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
# A class of kernels has a pace of its own if its equal kernels take at least this share of all
# kernels' time: at a power cap products and copies do not slow down alike.
LEAST_SHARE = 0.02


@dataclass(frozen=True)
class Turn:
    """One profile of a launch."""

    step_us: float  # mean of its steps
    idle_us: float
    kernels: tuple[KernelRow, ...]


@dataclass(frozen=True)
class Launch:
    """What was recorded of one launch."""

    turns: tuple[Turn, ...]
    block_ms: tuple[float, ...]  # mean step time of each unprofiled block


LaunchPair = tuple[Launch, Launch]  # base, head


@dataclass(frozen=True)
class KernelTimes:
    """Times of matched kernels in us a step: of each pair, turn and match."""

    names: tuple[str, ...]
    labels: tuple[str, ...]  # of the base's kernels: names with grid, phase and FLOPs
    kinds: tuple[str, ...]
    differs: tuple[str, ...]  # how the two sides differ; empty where they do not
    base_us: Floats
    head_us: Floats
    step_us: Floats  # of the base, of each pair and turn

    @cached_property
    def changed(self) -> Mask:
        """Return which kernels differ."""
        return np.array([bool(text) for text in self.differs])

    @property
    def share_pct(self) -> Floats:
        """Return each kernel's time on the base, in percent of a step."""
        share: Floats = 100 * self.base_us.mean(axis=(0, 1)) / self.step_us.mean()
        return share


@dataclass(frozen=True)
class Interval:
    """A mean with bounds; each is wrong with the chance that was asked for."""

    mean_pct: float
    low_pct: float
    high_pct: float


@dataclass(frozen=True)
class Judged:
    """What the kernels say of a change, and what the unprofiled steps say."""

    kernels: Interval
    steps: Interval

    @property
    def vetoed(self) -> bool:
        """Tell whether unprofiled steps contradict the kernels: these surely lost less."""
        return self.steps.high_pct < self.kernels.low_pct

    @property
    def slower(self) -> bool:
        """Tell whether the kernels that differ surely take longer, and no step contradicts."""
        return self.kernels.low_pct > 0 and not self.vetoed


def times_of(pairs: Sequence[LaunchPair]) -> KernelTimes:
    """Return the matched kernels of all pairs. Raises ValueError if launches have no profile, or
    not equally many.
    """
    turns = {len(launch.turns) for pair in pairs for launch in pair}
    if len(turns) != 1 or not min(turns):
        raise ValueError(f"profiles of each launch: {sorted(turns)}; one number, not 0, is needed")
    sides = [[turn for pair in pairs for turn in pair[side].turns] for side in (0, 1)]
    rows = [_all_rows(side) for side in sides]
    matches = match(*rows)
    size = len(pairs), turns.pop(), len(matches)
    base, head = (_us_of(side, matches, number) for number, side in enumerate(sides))
    return KernelTimes(
        names=tuple(one.rows[0].name for one in matches),
        labels=tuple(_label((*one.before, *one.after)[0]) for one in matches),
        kinds=tuple(one.rows[0].kind for one in matches),
        differs=tuple(map(_difference, matches)),
        base_us=base.reshape(size),
        head_us=head.reshape(size),
        step_us=np.array([turn.step_us for turn in sides[0]]).reshape(size[:2]),
    )


def _label(row: KernelRow) -> str:
    grid = "x".join(map(str, row.grid))
    return f"{row.name[:120]} {grid} {row.phase} {row.work.flops:g}"


def _all_rows(turns: Sequence[Turn]) -> list[KernelRow]:
    """Return each kernel of the turns as one row, with its launches in each step and its time in
    each turn.
    """
    by_key: dict[object, list[KernelRow | None]] = {}
    for at, turn in enumerate(turns):
        for row in turn.kernels:
            by_key.setdefault((row.key, row.code), [None] * len(turns))[at] = row
    merged = []
    for rows in by_key.values():
        first = next(row for row in rows if row)
        calls = tuple(count for row in rows for count in (row.calls if row else (0.0,)))
        us = tuple(mean(row.us) if row else 0.0 for row in rows)
        merged.append(replace(first, calls=calls, us=us))
    return merged


def _us_of(turns: Sequence[Turn], matches: Sequence[Match], side: int) -> Floats:
    """Return the us a step of each turn and match."""
    us = np.zeros((len(turns), len(matches)))
    for at, one in enumerate(matches):
        for row in (one.before, one.after)[side]:
            us[:, at] += row.us
    return us


def _difference(one: Match) -> str:
    """Return how the two sides of a match differ; empty if they do not."""
    if one.how not in (How.SAME, How.RENAMED):
        return one.how.value
    if any(count != row.calls[0] for row in one.rows for count in row.calls):
        return "launches vary"
    before, after = (sum(row.calls[0] for row in side) for side in (one.before, one.after))
    if before != after:
        return f"launches {before:g} -> {after:g}"
    shapes = [sorted((row.grid, row.block) for row in side) for side in (one.before, one.after)]
    if shapes[0] != shapes[1]:
        return "shape"
    if one.other_work:
        return "work"
    # The hash has the name, and so the compiler's number, in it.
    codes = [{(row.name, row.code) for row in side} for side in (one.before, one.after)]
    names = [{name for name, _ in side} for side in codes]
    return "code" if names[0] == names[1] and codes[0] != codes[1] else ""


def differences_pct(times: KernelTimes, changed: Mask) -> Floats:
    """Return for each pair how much longer the ``changed`` kernels of the head take, in percent of
    the base's step. Their times are divided by the pace of the other kernels, turn by turn.

    Raises ValueError if no other kernel is left to show the pace.
    """
    longer_us = np.zeros(times.step_us.shape)
    kinds = np.array(times.kinds)
    for kind in sorted({*kinds[changed]}):
        mine = changed & (kinds == kind)
        at_base_pace = times.head_us[:, :, mine].sum(axis=2) / _pace(times, changed, kinds == kind)
        longer_us += at_base_pace - times.base_us[:, :, mine].sum(axis=2)
    result: Floats = (100 * longer_us / times.step_us).mean(axis=1)
    return result


def _pace(times: KernelTimes, changed: Mask, of_kind: Mask) -> Floats:
    """Return for each pair and turn the head's time for unchanged kernels, divided by the base's.
    These are the kernels of the class, or all kernels if the class has few unchanged ones.
    """
    for mask in (of_kind & ~changed, ~changed):
        base = times.base_us[:, :, mask].sum(axis=2)
        if base.sum() > LEAST_SHARE * times.base_us.sum():
            pace: Floats = times.head_us[:, :, mask].sum(axis=2) / base
            return pace
    raise ValueError("hardly any kernel is the same on both sides: there is no pace to take out")


def step_differences_pct(pairs: Sequence[LaunchPair]) -> list[float]:
    """Return for each pair how much longer the head's unprofiled steps take, in percent."""
    return [100 * math.log(fmean(head.block_ms) / fmean(base.block_ms)) for base, head in pairs]


def interval(values_pct: Sequence[float], alpha: float, prior: Prior | None = None) -> Interval:
    """Return the mean of the pairs' values with two bounds, each wrong with the chance ``alpha``.

    Without ``prior`` the standard deviation is the sample's. Raises ValueError for a single value
    without a prior, or for a value that is not finite.
    """
    count = len(values_pct)
    if not all(map(math.isfinite, values_pct)) or count < (1 if prior else 2):
        raise ValueError(f"values {list(values_pct)!r}: two finite ones are needed")
    sample = variance(values_pct) / 1e4 if count > 1 else 0.0
    sd, degrees = prior.moderated(sample, count) if prior else (math.sqrt(sample), count - 1)
    half = float(stdtrit(degrees, 1 - alpha)) * 100 * sd / math.sqrt(count)
    middle = fmean(values_pct)
    return Interval(middle, middle - half, middle + half)


def judged(
    kernels_pct: Sequence[float],
    steps_pct: Sequence[float],
    alpha: float = ALPHA,
    prior: Prior | None = None,
) -> Judged:
    """Judge the pairs' differences of the kernels that differ, and of the unprofiled steps. The
    steps have the known scatter of pairs. Raises ValueError as interval() does.
    """
    return Judged(interval(kernels_pct, alpha, prior), interval(steps_pct, alpha, PRIOR))


def launch_of(side: dict[str, Any], kernels: dict[str, dict[str, Any]]) -> Launch:
    """Return a launch as the file of kernel_pairs has it. ``kernels`` are the file's."""
    turns = []
    for turn in side["turns"]:
        if "problem" in turn:
            continue
        steps = len(turn["step_us"])
        rows = [
            KernelRow(
                calls=tuple(calls) if isinstance(calls, list) else (calls,) * steps,
                us=tuple(us),
                **identity(kernels[key]),
            )
            for key, (calls, us) in turn["kernels"].items()
        ]
        turns.append(Turn(mean(turn["step_us"]), mean(turn["idle_us"]), tuple(rows)))
    return Launch(tuple(turns), tuple(map(fmean, side["block_step_ms"])))


def identity(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a kernel's row that identify it, from plain types."""
    shapes = {name: tuple(kept[name]) for name in ("grid", "block")}
    return {**kept, **shapes, "work": msgspec.convert(kept["work"], Work)}
