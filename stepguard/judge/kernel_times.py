"""Kernels against kernels: how much longer do the kernels that differ take? Pure functions.

Kernels of both sides are matched. Some differ, by name, grid, launches, work or code. The others
are equal on both sides, so they show the pace of each side. The pace is taken out. Then the kernels
that differ give one difference for each pair of launches, in percent of a step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from stepguard.core.margins import Prior
from stepguard.core.profile import KernelRow, Profile, mean
from stepguard.explain.match_kernels import How, Match, match
from stepguard.trace.kernel_classes import OTHER

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
# A class of kernels has a pace of its own if its equal kernels take at least this share of all
# kernels' time: at a power cap products and copies do not slow down alike.
LEAST_SHARE = 0.02
# The standard deviation of a kernel's time between two launches, as a share of that time, by class.
# It was measured with a profile of six steps a launch (2026-11-26): 18 launches of a train step on
# two H200s and 8 on two H100s, each profiled twice and paired anew. Root mean squares in percent,
# of kernels that take 0.3 % of a step or more, on H200s and H100s: Triton 0.58, 0.40; GEMM 0.54,
# 0.59; attention 0.68, 0.70; reduction 1.03, 1.02; optimizer 0.51, 0.59.
#
# The rule of choice: a share is the smallest tenth of a percent that meets two conditions. It is
# not below either figure of its class. No kernel's first profile scatters by more than 1.5 times
# what Times.scatter() expects. With larger shares fewer slowdowns of 0.1 % of a step are found.
# With smaller ones fewer of 0.2 % are found: more pairs exceed what is expected, and
# Prior.moderated() then trusts them alone. A class that is not in the table has the largest share,
# that of reductions, since only short kernels of it were measured, or none.
SCATTER_SHARES = {"Triton": 0.006, "GEMM": 0.007, "attention": 0.007, OTHER: 0.011}
# What is added to the scatter of even the shortest kernels, in percent of a step. 95 % of 351
# kernels scatter by less than the two together. The one with the largest excess scatters by 1.4
# times as much in its first profile; one scatters by 2.5 times as much in its second. With profiles
# of three steps the scatter is nearly twice as large, and a profile takes a fifth less time.
LEAST_SCATTER_PCT = 0.004
# Weight of this expectation in degrees of freedom. A rule with three analyses errs in at most
# 0.015 % of cases if a kernel scatters as expected, in 0.11 % if twice as much, and in 0.45 % if
# 2.5 times as much. For GELU the ignore margin lowers the last figure to 0.09 %.
# The analysis of a single pair adds 0.02 % to the second figure and 0.22 % to the third, if the
# kernels that differ take two fifths of the step or more; if a quarter, hardly anything.
SCATTER_DEGREES = 8.0
# At a power cap a kernel that draws less power than the cap lets the rest of the step run faster.
# If it takes longer, the step takes longer by a share of that: the kernel's power divided by the
# cap. For GELU on an H100 the share was 0.6 to 0.8, in three verdicts (2026-11-26). A choice: no
# share is below half.
POWER_SHARE = 0.5


@dataclass(frozen=True)
class Matched:
    """Kernels of two sides, matched."""

    base: tuple[KernelRow, ...]
    head: tuple[KernelRow, ...]
    matches: tuple[Match, ...]
    differs: tuple[str, ...]  # how the two sides of each match differ; "" if they do not

    @staticmethod
    @lru_cache(maxsize=16)  # a verdict asks for it several times
    def of(base: tuple[KernelRow, ...], head: tuple[KernelRow, ...]) -> "Matched":
        """Match the kernels of two sides."""
        matches = tuple(match(base, head))
        return Matched(base, head, matches, tuple(map(_difference, matches)))

    @cached_property
    def changed(self) -> Mask:
        """Return which kernels differ."""
        return np.array([bool(text) for text in self.differs], bool)

    @cached_property
    def kinds(self) -> NDArray[np.str_]:
        """Return the class of each match's kernels."""
        return np.array([one.rows[0].kind for one in self.matches], np.str_)

    def times(self, base_us: Floats, head_us: Floats) -> "Times":
        """Return the times of the matches. The arrays' last axis is that of a side's kernels."""
        sides = []
        for rows, us, of_match in (
            (self.base, base_us, [one.before for one in self.matches]),
            (self.head, head_us, [one.after for one in self.matches]),
        ):
            places = {id(row): at for at, row in enumerate(rows)}
            sums = [us[..., [places[id(row)] for row in its]].sum(axis=-1) for its in of_match]
            sides.append(np.stack(sums, axis=-1))
        return Times(self.kinds, sides[0], sides[1])


@dataclass(frozen=True)
class Times:
    """Times of matched kernels in us a step. The last axis is that of the matches."""

    kinds: NDArray[np.str_]
    base_us: Floats
    head_us: Floats

    def longer_us(self, mine: Mask, equal: Mask) -> Floats:
        """Return for each profile by how many us a step the head's kernels ``mine`` take longer, at
        the base's pace. Of the kernels ``equal`` those of the same class show the pace, or all of
        them if they take too little time in this class.

        Raises ValueError if hardly any kernel is left to show the pace.
        """
        longer: Floats = np.zeros(self.base_us.shape[:-1])
        for chosen, shown in self._by_class(mine, equal):
            base, head = (side[..., shown].sum(axis=-1) for side in (self.base_us, self.head_us))
            at_base_pace = self.head_us[..., chosen].sum(axis=-1) * base / head
            longer = longer + at_base_pace - self.base_us[..., chosen].sum(axis=-1)
        return longer

    def scatter(self, mine: Mask, equal: Mask, step_us: float) -> Prior:
        """Return how longer_us() scatters between pairs, in percent: kernels do independently."""
        pct = 100 * self._usual_us / step_us
        usual = SCATTER_SHARES[OTHER]
        its_sd = pct * [SCATTER_SHARES.get(kind, usual) for kind in self.kinds.tolist()]
        squares = 0.0
        for chosen, shown in self._by_class(mine, equal):
            squares += float(np.square(its_sd[chosen]).sum())
            pace = np.square(its_sd[shown]).sum() / pct[shown].sum() ** 2
            squares += float(pct[chosen].sum() ** 2 * pace)
        return Prior(math.hypot(LEAST_SCATTER_PCT, squares**0.5), SCATTER_DEGREES)

    @cached_property
    def _usual_us(self) -> Floats:
        """Return what each match's kernels take on the slower side, in the mean of its profiles."""
        sides = (us.reshape(-1, us.shape[-1]).mean(axis=0) for us in (self.base_us, self.head_us))
        longer: Floats = np.maximum(*sides)
        return longer

    def _by_class(self, mine: Mask, equal: Mask) -> Iterator[tuple[Mask, Mask]]:
        """Yield the kernels ``mine`` of each class, with the kernels that show their pace."""
        for kind in sorted({*self.kinds[mine].tolist()}):
            of_kind = self.kinds == kind
            for shown in (equal & of_kind, equal):
                if self.base_us[..., shown].sum() > LEAST_SHARE * self.base_us.sum():
                    yield mine & of_kind, shown
                    break
            else:
                text = "hardly any kernel is equal on both sides: there is no pace to take out"
                raise ValueError(text)


def range_in_step(kernels: float) -> tuple[float, float]:
    """Return the least and the most that a step takes longer with its kernels, as log-ratios."""
    least, most = sorted((POWER_SHARE * kernels, kernels))
    return least, most


def times_as_counted(counted: Profile, profile: Profile) -> tuple[float, ...]:
    """Return what each kernel of the counted profile takes in ``profile``, in us a step, in the
    counted order. Empty if ``profile`` is not whole, or has other kernels or numbers of launches.
    """
    if profile.incomplete or profile.lost_share:
        return ()
    known = {(row.key, row.code): row for row in profile.kernels}
    if len(known) != len(counted.kernels):
        return ()
    times = []
    for row in counted.kernels:
        its = known.get((row.key, row.code))
        if its is None or mean(its.calls) != mean(row.calls):
            return ()
        times.append(round(mean(its.us), 3))
    return tuple(times)


def with_machine_code_of(counted: Profile, profile: Profile) -> Profile:
    """Return ``profile`` with machine code: only a counting pass reads it."""
    known = {(row.key, row.code): row.machine_code for row in counted.kernels}
    rows = (replace(row, machine_code=known.get((row.key, row.code))) for row in profile.kernels)
    return replace(profile, kernels=tuple(rows))


def _difference(one: Match) -> str:
    if one.how not in (How.SAME, How.RENAMED) or one.other_names:
        return one.how.value
    if any(len({*row.calls}) > 1 for row in one.rows):
        return "launches vary"
    before, after = (sum(row.calls[0] for row in side) for side in (one.before, one.after))
    if not math.isclose(before, after):  # means over ranks, which are rounded
        return f"launches {before:g} -> {after:g}"
    shapes = [sorted((row.grid, row.block) for row in side) for side in (one.before, one.after)]
    if shapes[0] != shapes[1]:
        return "shape"
    if one.other_work:
        return "work"
    return "code" if _other_code(one) else ""


def _other_code(one: Match) -> bool:
    """Tell whether the compiler generated other code. A kernel with another number in its name has
    another hash for that alone, so then the machine code is compared.
    """
    codes = [{(row.name, row.code) for row in side} for side in (one.before, one.after)]
    names = [{name for name, _ in side} for side in codes]
    if names[0] == names[1]:
        return codes[0] != codes[1]
    machine = [{row.machine_code for row in side} for side in (one.before, one.after)]
    return None not in machine[0] | machine[1] and machine[0] != machine[1]
