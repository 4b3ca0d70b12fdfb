"""The kernels that differ: how much longer they take, measured against the kernels that are equal.

A kernel's time scatters by half a percent of itself, a step's by half a percent of the step. So a
small change shows in the kernels long before it shows in the steps. The first pairs end with a
profile of each launch, if the counted profiles show kernels that differ. This rule compares them.
It asks the counted profiles what copies and gaps changed, and the steps for what no profile shows.

Usually it decides after LEAST_PAIRS to PROFILED_PAIRS pairs. A card may drift between the two
profiles of a pair. So one pair is enough only for a slowdown far beyond any drift (LARGE_PCT), and
never for FASTER or `same`.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import msgspec
import numpy as np

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts
from stepguard.core.margins import ALPHA, MARGINS, PRIOR, Margins, Prior
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.profile import Profile, less, mean
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.explain.match_kernels import Match, communicates, rows_of
from stepguard.judge.kernel_times import (
    POWER_SHARE,
    Floats,
    Mask,
    Matched,
    Times,
    range_in_step,
)
from stepguard.judge.pair_statistics import Bounds, Figures, bounds
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.rules.identical_step import why_not_identical
from stepguard.judge.sequential_plan import BETA
from stepguard.judge.unchanged_pairs import (
    PAIR_SDS,
    ahead,
    uneven,
    unexplained_sds,
    unusual,
    why_not_bound,
)

LEAST_PAIRS, PROFILED_PAIRS = 2, 4
# In percent of a step, for kernels that differ. A choice: an eighth and a quarter of a step's
# margins. In the mean of two pairs, a kernel that takes a tenth of a step scatters by 0.05 % of the
# step.
KERNEL_MARGINS = Margins(0.025, 0.125)
# With one pair the interval has to begin beyond this, in percent of a step. In single pairs of
# unchanged code it began at 0.03 % at most, whichever kernels were said to differ, and at 0.07 % if
# the sides ran on two cards: launches of two H200s and two H100s, paired anew (`single_pairs` in
# benchmarks/kernel_pairs.md). What the kernels take longer says less: in these pairs it was up to
# 0.84 % of a step, for a part of one class.
LARGE_PCT = 0.25
# The steps of a single pair may lie so many standard deviations below the kernels' range. Those of
# more pairs may be PAIR_SDS below it.
# Suppose that kernels take 1 % longer but the step does not, and that pairs scatter by 0.24 %. The
# steps then allow SLOWER in 11 % of cases after one pair, as after two to four, and in 17 % over
# all. With PAIR_SDS it would be 36 % over all.
LONE_SDS = 1.0
EQUAL_SHARE = 0.5  # of the kernels' time on each side, at least: only these show the pace
# If kernels overlap, they can take longer although the step does not. The sum of their times may be
# at most so many times the time in which the GPU computes. Of kernels that follow each other it is
# 1.0001 (H200s, 2026-11-26; with two ranks 1.00002, without communication).
OVERLAP = 1.005
# The idle time of a profile differs from launch to launch, by 0.05 % of a step (a standard
# deviation; 16 launches of one code on H200s, 2026-11-26). A larger difference counts. Copies and
# overlap differ by 0.004 %, so all of their difference counts.
IDLE_LIMIT = 0.001
# A kernel that differs is a cause of what this rule said if its own time moved by so many standard
# deviations.
NAMED_SDS = 2.0
# An equal kernel may be off its class's pace by so many standard deviations. If it is further off,
# the change may reach kernels that do not differ. Then the rule says nothing, or, if the kernel got
# shorter, only SLOWER.
# In launches on H200s and H100s that were paired anew by two, the farthest of 93 kernels was at 3.8
# by the first profile of each launch. By the second one, a kernel of the loss was beyond five in
# 1.5 % of the H200s' verdicts: it was off by 1 and 2 % in two launches. On an H100 it was 3 %
# shorter, while other kernels took 1.2 % of the step longer (2026-11-27).
MOVED_SDS = 5.0


def rule(comparison: Comparison) -> Decision | None:
    """Say SLOWER, FASTER or `same` by the kernels that differ, if the steps do not contradict it.
    For FASTER and `same`, the other kernels must keep pace, what is left of the pairs must look
    like pairs of unchanged code, and the steps must exclude a slowdown. With one pair only a large
    slowdown is SLOWER. If ranks exchange, that is all that it says, with any number of pairs.
    """
    if not 1 <= comparison.pairs <= PROFILED_PAIRS or why_not_judged(comparison):
        return None
    found = _Kernels.of(comparison)
    kernels = found and found.at_steady_pace()
    if kernels is None:
        return None
    measured = _figures(comparison, kernels)
    status = measured.bounds.status(measured.margins)
    if _exchanges(comparison) and measured.bounds.fewest > 1:  # it is no large slowdown
        return None
    if status is not Status.SLOWER and kernels is not found:
        return None
    if status is Status.INCONCLUSIVE or _contradicted(comparison, status, kernels.log_ratios()):
        return None
    longer, high = _in_step(measured.bounds, comparison.log_ratios())
    said = measured.say(status, Reason.CHANGED_KERNELS)
    pcts = {"estimate_pct": 100 * math.expm1(longer), "high_pct": 100 * math.expm1(high)}
    return msgspec.structs.replace(said, **pcts)


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
    """Tell whether the next pair should end with a profile of each launch: this rule may decide
    then, or after one of the pairs that follow.
    """
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
    if comparison.again:
        return "an earlier pair was disturbed"
    if comparison.files is None:
        # The plan's interval has to exclude what recordings say of the whole step.
        return "an alarm of recordings is judged by whole steps"
    for counts in (head.counted, base.counted):
        if why := why_not_bound(counts):
            return why
        if _kernels_us(counts) > OVERLAP * mean(_profile(counts).parts.compute_us):
            return "kernels overlap"
    # Of the same step, too, a kernel may seem to differ: its launches may vary in one profile.
    if not why_not_identical(comparison):
        return "the steps are the same"
    if _matched(comparison, communicating=True).changed.any():
        return "communication differs"
    matched = _matched(comparison)
    if not matched.changed.any():
        return "no kernel differs"
    times = _counted_times(matched, mean)
    return "" if _most_are(~matched.changed, times) else "most kernels differ"


def _most_are(steady: Mask, times: Times) -> bool:
    """Tell whether these kernels take EQUAL_SHARE of the kernels' time on each side."""
    sides = (times.base_us, times.head_us)
    return not any(us[..., steady].sum() < EQUAL_SHARE * us.sum() for us in sides)


def _profile(counts: Counts) -> Profile:
    assert counts.profile is not None  # why_not_bound() has asked
    return counts.profile


def _exchanges(comparison: Comparison) -> bool:
    """Tell whether ranks exchange beside kernels that compute. Then the mean over ranks may hide
    what one of them does. An exchange may also move from beside some kernels to beside others.
    Those get longer, and the step does not.
    """
    sides = comparison.head, comparison.base
    return any(
        side.world_size > 1 or any(map(communicates, _profile(side.counted).kernels))
        for side in sides
    )


def _kernels_us(counts: Counts) -> float:
    return sum(mean(row.us) for row in rows_of(_profile(counts)))


def _matched(comparison: Comparison, communicating: bool = False) -> Matched:
    """Return the counted kernels of both sides that compute, or those that communicate."""
    sides = comparison.base, comparison.head
    return Matched.of(*(rows_of(_profile(side.counted), communicating) for side in sides))


def _counted_times(matched: Matched, of: Callable[[Sequence[float]], float]) -> Times:
    """Return what the kernels of the counted profiles take. ``of`` makes one figure of the steps of
    a profile.
    """
    rows = matched.base, matched.head
    return matched.times(*(np.array([of(row.us) for row in side]) for side in rows))


@dataclass(frozen=True)
class _Kernels:
    """The kernels of all pairs: which differ, which show the pace, and what each took."""

    changed: Mask
    steady: Mask
    times: Times
    step_us: Floats  # of the base, a value a pair

    @staticmethod
    def of(comparison: Comparison) -> "_Kernels | None":
        """Return the kernels; None if a launch has no profile of the counted kernels."""
        matched, us = _matched(comparison), []
        for side in (comparison.base, comparison.head):
            computes = [not communicates(row) for row in _profile(side.counted).kernels]
            each = [launch.kernels_us for launch in side.launches[: comparison.pairs]]
            if any(len(one) != len(computes) or not all(us > 0 for us in one) for one in each):
                return None
            us.append(np.array(each)[:, computes])
        launches = comparison.base.launches[: comparison.pairs]
        unprofiled_us = np.array([1e3 * launch.step_ms for launch in launches])
        # A profiled step is longer if a kernel stalled in it.
        step_us = np.maximum(unprofiled_us, us[0].sum(axis=-1))
        times = matched.times(*us, exchange=_exchanges(comparison))
        return _Kernels(matched.changed, ~matched.changed, times, step_us)

    def log_ratios(self) -> list[float]:
        """Return for each pair what the kernels that differ do to the step, as a log-ratio."""
        longer = self.times.longer_us(self.changed, self.steady) / self.step_us
        return [math.log1p(share) for share in longer.tolist()]

    def at_steady_pace(self) -> "_Kernels | None":
        """Return the kernels, where an equal kernel that got shorter than the pace counts as one
        that differs. It then shows no pace either. Each of the two lowers what the kernels that
        differ take longer. None if an equal kernel got longer, since nobody knows whether it or
        the others show the pace, or if too few are left to show it.
        """
        off_sds = self._off_pace(self.steady)
        if not (off_sds <= MOVED_SDS).all():
            return None
        shorter = off_sds < -MOVED_SDS
        if not shorter.any():
            return self
        steady = self.steady & ~shorter
        if not _most_are(steady, self.times):
            return None
        left = replace(self, changed=self.changed | shorter, steady=steady)
        return left if (abs(left._off_pace(steady)) <= MOVED_SDS).all() else None

    def named(self) -> Mask:
        """Return which of the kernels that differ moved by more than NAMED_SDS, in the direction in
        which all of them together moved.
        """
        off_sds = self._off_pace(self.changed) * np.sign(fmean(self.log_ratios()))
        return np.asarray(off_sds > NAMED_SDS)

    def _off_pace(self, kernels: Mask) -> Floats:
        """Return by how much each of these kernels is off the pace that the other steady kernels
        show, in standard deviations and in the mean of the pairs; infinite if none shows it. For
        all other kernels it is 0.
        """
        pairs, step_us = len(self.step_us), float(self.step_us.mean())
        off_sds = np.zeros(len(kernels))
        for place in np.flatnonzero(kernels):
            mine = np.arange(len(kernels)) == place
            others = self.steady & ~mine
            try:
                longer = self.times.longer_us(mine, others)
                known = self.times.scatter(mine, others, step_us)
            except ValueError:
                off_sds[place] = math.inf
                continue
            sd_pct = known.sd_pct / math.sqrt(pairs)
            off_sds[place] = float((100 * longer / self.step_us).mean()) / sd_pct
        return off_sds


def _beside_kernels(comparison: Comparison) -> float:
    """Return how much longer the step takes by copies, communication, gaps and kernels that no
    longer overlap, as a log-ratio. The counted profiles show it.
    """
    head, base = comparison.head.counted, comparison.base.counted
    step_us = mean(_profile(base).parts.step_us)
    # Copies and communication that no kernel hides, without the time in which kernels overlap.
    exposed_us = _exposed_us(head) - _exposed_us(base)
    idle_us = mean(_profile(head).parts.idle_us) - mean(_profile(base).parts.idle_us)
    if abs(idle_us) <= IDLE_LIMIT * step_us:
        idle_us = 0.0
    return math.log1p((exposed_us + idle_us) / step_us)


def _exposed_us(counts: Counts) -> float:
    parts = _profile(counts).parts
    return mean(less(parts.step_us, parts.idle_us)) - _kernels_us(counts)


def _in_step(kernels: Bounds, steps: Sequence[float]) -> tuple[float, float]:
    """Return how much longer the step takes, and at most, as log-ratios.

    It is a mean of two figures, weighted by their variances. One is the middle of the range that
    the kernels allow, in which every value counts as equally likely. The other is the mean of the
    steps. If the steps are slower than the kernels explain, only the steps count: otherwise a
    waiver would allow what no kernel shows.
    """
    if unexplained_sds(steps, [kernels.mean]) > PAIR_SDS:
        by_steps = bounds(steps)
        return by_steps.mean, max(kernels.high, by_steps.high)
    least, most = range_in_step(kernels.mean)
    middle, allowed = (least + most) / 2, (most - least) ** 2 / 12
    noise = (PRIOR.sd_pct / 100) ** 2 / len(steps)
    longer = middle + (fmean(steps) - middle) * allowed / (allowed + noise)
    return min(max(longer, least), most), kernels.high


def _contradicted(comparison: Comparison, status: Status, explained: Sequence[float]) -> bool:
    """Tell whether the steps contradict what the kernels say. SLOWER is contradicted by steps that
    are less slow, and by a host that is hardly ahead: then longer kernels may cost nothing. Steps
    that are even slower, or that scatter, do not contradict it. If only some steps of a single pair
    are slower, a second pair has to tell whether that is another slowdown, with its own reason.
    """
    if status is Status.SLOWER:
        alone = comparison.pairs < LEAST_PAIRS
        launches = (*comparison.head.launches, *comparison.base.launches)
        limit = LONE_SDS if alone else PAIR_SDS
        as_slow = unexplained_sds(comparison.log_ratios(), explained) >= -limit
        return not (as_slow and all(map(ahead, launches))) or alone and bool(uneven(comparison))
    return bool(unusual(comparison, explained)) or not _slowdown_excluded(comparison)


def _slowdown_excluded(comparison: Comparison) -> bool:
    """Tell whether the steps by themselves exclude a slowdown as large as the matter margin. They
    also contain what no kernel shows, and their own scatter counts. All analyses together err by
    BETA.
    """
    steps = bounds(comparison.log_ratios())
    reach = steps.reach(BETA / (PROFILED_PAIRS - LEAST_PAIRS + 1))
    return steps.mean + reach < comparison.margins.matter


def bounds_of(
    log_ratios: Sequence[float],
    known: Prior,
    alpha: float = ALPHA,
    margins: Margins = KERNEL_MARGINS,
    beside: float = 0.0,
) -> Bounds:
    """Return the bounds on how much longer a step takes, as a log-ratio: from POWER_SHARE of what
    its kernels take longer, to all of it. ``log_ratios`` has what they take longer in each pair, as
    a log-ratio of the step. ``known`` is how that scatters. ``beside`` is what else changed: it may
    add to the kernels' time, or make up for it.
    """
    found = bounds(log_ratios, known, LEAST_PAIRS, alpha)
    low = min(found.low, POWER_SHARE * found.low) + min(beside, 0.0)
    high = max(found.high, POWER_SHARE * found.high) + max(beside, 0.0)
    # Beyond the ignore margin no status but SLOWER is possible.
    large = low > max(math.log1p(LARGE_PCT / 100), margins.ignore)
    return msgspec.structs.replace(found, low=low, high=high, fewest=1 if large else LEAST_PAIRS)


def _stalled(comparison: Comparison, kernels: _Kernels) -> float:
    """Return what single steps of the counted profiles add to what the kernels that differ take
    longer, as a share of the step. In one of the six steps a kernel may have stalled.
    """
    matched = _matched(comparison)
    all_steps_us, usual_us = (
        float(_counted_times(matched, of).longer_us(kernels.changed, kernels.steady))
        for of in (mean, median)
    )
    step_us = mean(_profile(comparison.base.counted).parts.step_us)
    return max(0.0, all_steps_us - usual_us) / step_us


def _figures(comparison: Comparison, kernels: _Kernels) -> Figures:
    step_us = float(kernels.step_us.mean())
    known = kernels.times.scatter(kernels.changed, kernels.steady, step_us)
    margins, beside = _margins(comparison), _beside_kernels(comparison)
    longer = kernels.log_ratios()
    if len(longer) < LEAST_PAIRS:
        longer = [each - _stalled(comparison, kernels) for each in longer]
    found = bounds_of(longer, known, comparison.alpha, margins, beside)
    by_steps = mean_of_pairs.measured(comparison)
    return Figures(found, margins, by_steps.smallest_detectable_pct, None)


def _margins(comparison: Comparison) -> Margins:
    """Return the rule's margins. A case whose own ignore margin is wider than the default, or finer
    than this rule's, has its own margins here, too.
    """
    wanted = comparison.margins
    finer = KERNEL_MARGINS.ignore_pct < wanted.ignore_pct <= MARGINS.ignore_pct
    return KERNEL_MARGINS if finer else wanted
