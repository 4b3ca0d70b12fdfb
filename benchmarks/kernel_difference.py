"""Read what benchmarks.kernel_pairs recorded, and judge it as the gate's rule does.

The arithmetic is the judge's (stepguard/judge/kernel_times.py and judge/time_rules.py).
Here are only the recorded turns, side by side. Each turn is a profile of a launch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from stepguard.core.margins import Prior
from stepguard.core.profile import KernelRow, Work, mean
from stepguard.core.status import Status
from stepguard.judge.kernel_times import Floats, Mask, Matched, Times
from stepguard.judge.pair_statistics import Bounds
from stepguard.judge.time_rules import (
    KERNEL_MARGINS,
    STEP_SDS,
    bounds_of,
    unexplained_sds,
)


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
    """Matched kernels of pairs, with their times in us a step: of each pair, turn and match."""

    matched: Matched
    times: Times
    step_us: Floats  # of the base, of each pair and turn

    @property
    def names(self) -> list[str]:
        """Return a name for each match."""
        return [one.rows[0].name for one in self.matched.matches]

    @property
    def labels(self) -> list[str]:
        """Return the base's names with grid, phase and FLOPs."""
        return [_label((*one.before, *one.after)[0]) for one in self.matched.matches]

    @property
    def share_pct(self) -> Floats:
        """Return each kernel's time on the base, in percent of a step."""
        share: Floats = 100 * self.times.base_us.mean(axis=(0, 1)) / self.step_us.mean()
        return share

    def differences_pct(self, mine: Mask) -> Floats:
        """Return by how much the head's kernels ``mine`` take longer, of each pair and turn, in
        percent of the base's step, at the pace of all others. Raises ValueError as longer_us().
        """
        longer: Floats = 100 * self.times.longer_us(mine, ~mine) / self.step_us
        return longer

    def known(self, mine: Mask) -> Prior:
        """Return the scatter of these kernels' difference that the rule expects."""
        return self.times.scatter(mine, ~mine, float(self.step_us.mean()))


@dataclass(frozen=True)
class Judged:
    """What the kernels say of a change, and whether the unprofiled steps forbid it."""

    kernels: Bounds
    vetoed: bool

    @property
    def by_kernels(self) -> bool:
        """Tell whether the kernels alone say SLOWER."""
        return self.kernels.status(KERNEL_MARGINS) is Status.SLOWER

    @property
    def slower(self) -> bool:
        """Tell whether the kernels say SLOWER, and no step forbids it."""
        return self.by_kernels and not self.vetoed


def times_of(pairs: Sequence[LaunchPair]) -> KernelTimes:
    """Return the matched kernels of all pairs. Raises ValueError if launches have no profile, or
    not equally many.
    """
    turns = {len(launch.turns) for pair in pairs for launch in pair}
    if len(turns) != 1 or not min(turns):
        raise ValueError(f"profiles of each launch: {sorted(turns)}; one number, not 0, is needed")
    shape = len(pairs), turns.pop()
    sides = [[turn for pair in pairs for turn in pair[side].turns] for side in (0, 1)]
    rows = [_all_rows(side) for side in sides]
    us = [np.array([row.us for row in side]).T.reshape(*shape, len(side)) for side in rows]
    matched = Matched.of(*rows)
    step_us = np.array([turn.step_us for turn in sides[0]]).reshape(shape)
    return KernelTimes(matched, matched.times(*us), step_us)


def _label(row: KernelRow) -> str:
    grid = "x".join(map(str, row.grid))
    return f"{row.name[:120]} {grid} {row.phase} {row.work.flops:g}"


def _all_rows(turns: Sequence[Turn]) -> tuple[KernelRow, ...]:
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
    return tuple(merged)


def step_differences_pct(pairs: Sequence[LaunchPair]) -> list[float]:
    """Return for each pair how much longer the head's unprofiled steps take, in percent."""
    return [100 * math.log(fmean(head.block_ms) / fmean(base.block_ms)) for base, head in pairs]


def judged(kernels_pct: Sequence[float], steps_pct: Sequence[float], known: Prior) -> Judged:
    """Judge the pairs' differences of the kernels that differ as the rule does. Unprofiled steps
    forbid a slowdown if they are less slow than POWER_SHARE of it, by more than their noise.
    """
    logs = [math.log1p(pct / 100) for pct in kernels_pct]
    sds = unexplained_sds([step / 100 for step in steps_pct], logs)
    return Judged(bounds_of(logs, known), not sds >= -STEP_SDS)


def launch_of(side: dict[str, Any], known: dict[str, Any]) -> Launch:
    """Return a launch of the file ``known`` of kernel_pairs."""
    kernels = known["kernels"]
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
