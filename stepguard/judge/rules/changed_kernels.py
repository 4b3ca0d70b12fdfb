"""The kernels that differ: how much longer they take, measured against the kernels that are equal.

A kernel's time scatters by half a percent of itself, a step's by half a percent of the step. So a
small change shows in the kernels long before it shows in the steps. The first pairs end with a
profile of each launch, if the counted profiles show kernels that differ. This rule compares them.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec
import numpy as np

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts
from stepguard.core.margins import ALPHA, MARGINS, PRIOR, Margins, Prior
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.profile import Profile, mean
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.explain.match_kernels import Match, communicates, rows_of
from stepguard.judge.kernel_times import POWER_SHARE, Floats, Mask, Matched, Times, range_in_step
from stepguard.judge.pair_statistics import Bounds, Figures, bounds, measured
from stepguard.judge.rules.same_step import why_not_bound, why_not_same

LEAST_PAIRS, PROFILED_PAIRS = 2, 4
SAME_PAIRS = 3  # with two, a step that is 0.5 % slower beside its kernels passes in 6 to 29 %
# In percent of a step, for kernels that differ. A choice: an eighth and a quarter of a step's
# margins. In the mean of two pairs, a kernel that takes a tenth of a step scatters by 0.05 % of the
# step.
KERNEL_MARGINS = Margins(0.025, 0.125)
# A card may drift between the two profiles of a pair. So with one pair the interval has to begin
# beyond this, in percent of a step. In single pairs of unchanged code it began at 0.03 % at most,
# and at 0.07 % if the sides ran on two cards (`single_pairs` in benchmarks/kernel_pairs.md).
LARGE_PCT = 0.25
EQUAL_SHARE = 0.5  # of the kernels' time on each side, at least: only these show the pace
# If kernels overlap, they can take longer although the step does not. The sum of their times may be
# at most so many times the time in which the GPU computes. Of kernels that follow each other it is
# 1.0001 (H200s, 2026-11-26).
OVERLAP = 1.005
STEP_SDS = 2.0  # how far the steps' mean may be from what the kernels explain
NAMED_SDS = 2.0  # a kernel whose own time moved by so much is named as a cause


def rule(comparison: Comparison) -> Decision | None:
    """Say SLOWER, FASTER or `same` by the kernels that differ. None if the steps contradict it."""
    if not 1 <= comparison.pairs <= PROFILED_PAIRS or why_not_judged(comparison):
        return None
    kernels = _Kernels.of(comparison)
    if kernels is None:
        return None
    figures = _figures(comparison, kernels)
    status = figures.bounds.status(figures.margins)
    unexplained = unexplained_sds(comparison.log_ratios(), kernels.log_ratios())
    contradicted = unexplained < -STEP_SDS
    if status is not Status.SLOWER:
        contradicted = abs(unexplained) > STEP_SDS
    early = status is Status.SAME and comparison.pairs < SAME_PAIRS
    if status is Status.INCONCLUSIVE or contradicted or early:
        return None
    longer, high = (
        100 * math.expm1(one) for one in _in_step(figures.bounds, comparison.log_ratios())
    )
    return figures.say(status, Reason.CHANGED_KERNELS, estimate_pct=longer, high_pct=high)


def margins_of(comparison: Comparison, decided: Decision) -> Margins:
    """Return the margins by which the time was decided: this rule's, or the case's."""
    return _margins(comparison) if decided.reason is Reason.CHANGED_KERNELS else comparison.margins


def judged_kernels(comparison: Comparison, decided: Decision | None) -> Collection[Match]:
    """Return the kernels whose times made this rule decide; none if another rule did."""
    if decided is None or decided.reason is not Reason.CHANGED_KERNELS:
        return ()
    kernels = _Kernels.of(comparison)
    assert kernels is not None  # by which this rule decided
    matches = zip(_matched(comparison).matches, kernels.named(), strict=True)
    return frozenset(one for one, is_named in matches if is_named)


def wants_profiles(comparison: Comparison) -> bool:
    """Tell whether the next pair should end with profiles, by which this rule may decide."""
    if comparison.pairs >= PROFILED_PAIRS or JUDGED_TIME not in comparison.head.gates:
        return False
    launches = (*comparison.head.launches, *comparison.base.launches)
    whole = all(launch.kernels_us for launch in launches)
    return whole and not why_not_judged(comparison)


def why_not_judged(comparison: Comparison) -> str:
    """Return why kernels cannot be judged, whatever they take; empty if they can be."""
    head, base = comparison.head, comparison.base
    if not head.on_gpu or not comparison.together:
        return "it is no pair of launches in turns on a GPU"
    for counts in (head.counted, base.counted):
        if why := why_not_bound(counts):
            return why
        kernels_us = sum(mean(row.us) for row in rows_of(_profile(counts)))
        if kernels_us > OVERLAP * mean(_profile(counts).parts.compute_us):
            return "kernels overlap"
    if _exchanges(comparison):
        return "ranks exchange"
    if _copies_differ(head.counted, base.counted):
        return "copies differ"
    # Of the same step, too, a kernel may seem to differ: its launches may vary in one profile.
    if not why_not_same(comparison):
        return "the steps are the same"
    matched = _matched(comparison)
    if not matched.changed.any():
        return "no kernel differs"
    counted = (np.array([mean(row.us) for row in side]) for side in (matched.base, matched.head))
    times = matched.times(*counted)
    sides, steady = (times.base_us, times.head_us), ~matched.changed
    few = any(us[..., steady].sum() < EQUAL_SHARE * us.sum() for us in sides)
    return "most kernels differ" if few else ""


def unexplained_sds(steps: Sequence[float], explained: Sequence[float]) -> float:
    """Return the mean that the kernels do not explain, in standard deviations of one."""
    longer = fmean(steps)
    least, most = range_in_step(fmean(explained))
    rest = longer - min(max(longer, least), most)
    return rest * math.sqrt(len(steps)) / (PRIOR.sd_pct / 100)


def _profile(counts: Counts) -> Profile:
    assert counts.profile is not None  # why_not_bound() has asked
    return counts.profile


def _exchanges(comparison: Comparison) -> bool:
    """Tell whether ranks exchange, beside kernels that compute. An exchange may move from beside
    some kernels to beside others: those get longer, and the step does not. The mean over ranks may
    also hide what one of them does.
    """
    sides = comparison.head, comparison.base
    return any(
        side.world_size > 1 or any(map(communicates, _profile(side.counted).kernels))
        for side in sides
    )


def _copies_differ(head: Counts, base: Counts) -> bool:
    """Tell whether copies that no kernel hides differ: a kernel may do a copy's work."""
    sides = [_profile(counts).parts for counts in (head, base)]
    moved_us = abs(mean(sides[0].exposed_copies_us) - mean(sides[1].exposed_copies_us))
    return 100 * moved_us > KERNEL_MARGINS.ignore_pct * mean(sides[1].step_us)


def _matched(comparison: Comparison) -> Matched:
    """Return the counted kernels of both sides that compute."""
    sides = comparison.base, comparison.head
    return Matched.of(*(rows_of(_profile(side.counted)) for side in sides))


@dataclass(frozen=True)
class _Kernels:
    changed: Mask
    steady: Mask
    times: Times
    step_us: Floats  # of the base, a value a pair

    @staticmethod
    def of(comparison: Comparison) -> "_Kernels | None":
        """Return the kernels; None if a launch has no profile of the counted kernels."""
        matched, us = _matched(comparison), []
        for side in (comparison.base, comparison.head):
            counted = len(_profile(side.counted).kernels)
            each = [launch.kernels_us for launch in side.launches[: comparison.pairs]]
            if any(len(one) != counted or not all(us > 0 for us in one) for one in each):
                return None
            us.append(np.array(each))
        launches = comparison.base.launches[: comparison.pairs]
        unprofiled_us = np.array([1e3 * launch.step_ms for launch in launches])
        # A profiled step is longer if a kernel stalled in it.
        step_us = np.maximum(unprofiled_us, us[0].sum(axis=-1))
        return _Kernels(matched.changed, ~matched.changed, matched.times(*us), step_us)

    def log_ratios(self) -> list[float]:
        """Return for each pair what the kernels that differ do to the step, as a log-ratio."""
        longer = self.times.longer_us(self.changed, self.steady) / self.step_us
        return [math.log1p(share) for share in longer.tolist()]

    def named(self) -> Mask:
        """Return which kernels moved by more than NAMED_SDS, as all of them together did."""
        pairs, step_us = len(self.step_us), float(self.step_us.mean())
        direction, moved = math.copysign(1.0, fmean(self.log_ratios())), self.changed.copy()
        for place in np.flatnonzero(self.changed):
            mine = np.arange(len(moved)) == place
            longer_pct = 100 * self.times.longer_us(mine, self.steady) / self.step_us
            sd_pct = self.times.scatter(mine, self.steady, step_us).sd_pct / math.sqrt(pairs)
            moved[place] = direction * float(longer_pct.mean()) > NAMED_SDS * sd_pct
        return moved


def _in_step(kernels: Bounds, steps: Sequence[float]) -> tuple[float, float]:
    """Return how much longer the step takes, and at most, as log-ratios.

    It is a mean of two figures, weighted by their variances. One is the middle of the range that
    the kernels allow, in which every value counts as equally likely. The other is the mean of the
    steps. If the steps are slower than the kernels explain, only the steps count: otherwise a
    waiver would allow what no kernel shows.
    """
    if unexplained_sds(steps, [kernels.mean]) > STEP_SDS:
        by_steps = bounds(steps)
        return by_steps.mean, max(kernels.high, by_steps.high)
    least, most = range_in_step(kernels.mean)
    middle, allowed = (least + most) / 2, (most - least) ** 2 / 12
    noise = (PRIOR.sd_pct / 100) ** 2 / len(steps)
    longer = middle + (fmean(steps) - middle) * allowed / (allowed + noise)
    return min(max(longer, least), most), kernels.high


def bounds_of(
    log_ratios: Sequence[float],
    known: Prior,
    alpha: float = ALPHA,
    margins: Margins = KERNEL_MARGINS,
) -> Bounds:
    """Return the bounds on how much longer a step takes, as a log-ratio: from POWER_SHARE of what
    its kernels take longer (``log_ratios``, which scatter as ``known``) to all of it.
    """
    found = bounds(log_ratios, known, LEAST_PAIRS, alpha)
    low = min(found.low, POWER_SHARE * found.low)
    high = max(found.high, POWER_SHARE * found.high)
    # Beyond the ignore margin no status but SLOWER is possible.
    large = low > max(math.log1p(LARGE_PCT / 100), margins.ignore)
    return msgspec.structs.replace(found, low=low, high=high, fewest=1 if large else LEAST_PAIRS)


def _figures(comparison: Comparison, kernels: _Kernels) -> Figures:
    step_us = float(kernels.step_us.mean())
    known = kernels.times.scatter(kernels.changed, kernels.steady, step_us)
    margins = _margins(comparison)
    found = bounds_of(kernels.log_ratios(), known, comparison.alpha, margins)
    steps = measured(comparison)
    return Figures(found, margins, steps.smallest_detectable_pct, steps.with_replaced_pct)


def _margins(comparison: Comparison) -> Margins:
    """Return the rule's margins, or the case's if these are wider or finer."""
    wanted = comparison.margins
    finer = KERNEL_MARGINS.ignore_pct < wanted.ignore_pct <= MARGINS.ignore_pct
    return KERNEL_MARGINS if finer else wanted
