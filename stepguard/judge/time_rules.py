"""Rules for a step time that pairs of two trees measured. They are asked in order, and the first
decision counts. docs/judge.md says what each may say.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, geometric_mean

import numpy as np
from msgspec.structs import replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts, Launch
from stepguard.core.margins import ALPHA, MARGINS, PRIOR, Margins, Prior
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.profile import Profile, mean
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision, MetricVerdict
from stepguard.explain.match_kernels import Match, communicates, rows_of
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.kernel_times import POWER_SHARE, Floats, Mask, Matched, Times, range_in_step
from stepguard.judge.pair_statistics import (
    MOST_PAIRS,
    Bounds,
    bounds,
    by_plan,
    decision_of,
    measured,
)


def decision(comparison: Comparison) -> Decision | None:
    """Decide the step time by the pairs so far; None if it is not judged, or not known."""
    launches = (*comparison.head.launches, *comparison.base.launches)
    if not (comparison.pairs and all(launch.has_times() for launch in launches)):
        return None
    if JUDGED_TIME not in comparison.head.gates:
        return None if comparison.head.on_gpu else by_fastest_blocks(comparison)
    decided = by_same_step(comparison) or by_kernels(comparison) or by_plan(comparison)
    return _with_replaced(comparison, decided)


def _with_replaced(comparison: Comparison, decided: Decision) -> Decision:
    """Return the decision; INCONCLUSIVE if HEAD only passes without the replaced pairs."""
    all_pct = decided.with_replaced_pct
    passes = decided.status in (Status.SAME, Status.FASTER)
    if all_pct is None or not passes or all_pct <= comparison.margins.matter_pct:
        return decided
    last = comparison.out_of_time or comparison.pairs >= MOST_PAIRS
    return replace(decided, status=Status.INCONCLUSIVE, reason=Reason.UNDECIDED, final=last)


# The time of a case on a CPU that gates no time: only a slowdown beyond doubt fails. The fastest
# block of each side counts: other work on a machine makes blocks slower, never faster.
SLOWER_TIMES = 1.5  # as long as the other tree's fastest block
SLOWER_PAIRS = 3  # that have to show it, all of them
CPU_LIMIT_PCT = 100 * (SLOWER_TIMES - 1)


def by_fastest_blocks(comparison: Comparison) -> Decision:
    """Say `same` after a pair that shows no slowdown, SLOWER after SLOWER_PAIRS that do."""
    ratios = [_fastest_ms(head) / _fastest_ms(base) for head, base in comparison.paired_launches()]
    # What is shown is what is judged: not the means of all steps.
    found, mean_pct = measured(comparison), _pct(geometric_mean(ratios))
    said = partial(decision_of, comparison, found, estimate_pct=mean_pct)
    if min(ratios) < SLOWER_TIMES:
        return said(Status.SAME, Reason.NO_SLOWDOWN)
    if len(ratios) < SLOWER_PAIRS:
        return said(Status.INCONCLUSIVE, final=comparison.out_of_time)
    # Unchanged code looks like this if a disturbance spares a block of the base in each pair and
    # none of HEAD's: with two blocks of a side at most one time in four a pair, were it even odds.
    low_pct, high_pct = _pct(min(ratios)), _pct(max(ratios))
    return said(Status.SLOWER, p_value=0.25 ** len(ratios), low_pct=low_pct, high_pct=high_pct)


def _pct(ratio: float) -> float:
    return 100 * (ratio - 1)


def decided_on_cpu(metric: MetricVerdict) -> bool:
    """Tell whether the rule for CPUs decided a time that was too long."""
    return metric.status is Status.SLOWER and metric.limit_pct == CPU_LIMIT_PCT


def _fastest_ms(launch: Launch) -> float:
    return min(block.mean_ms for block in launch.blocks)


# The same step: the identities of both steps are equal on every rank, and the GPU bounds the step.
# So one pair is enough, or a few. No counter's detail takes part: each counter has its own rule.
#
# One pair may be so far from zero, the mean of n pairs by this divided by the root of n. Of 29
# pairs of unchanged code, which scatter by 0.45 %, 15 are within it (forward on H100s, 2026-11-27).
# A slowdown of 0.5 % that no identity shows passes in 32 % of cases; in 48 % if pairs scatter by
# 0.45 % (`alike` in benchmarks/judge_rates.py).
WITHIN_PCT = 0.4
MOST_ALIKE = 4  # pairs; with more the other rules decide


def by_same_step(comparison: Comparison) -> Decision | None:
    """Say `same` if the steps are the same and the pairs' mean is close to zero."""
    few = comparison.together and comparison.pairs <= MOST_ALIKE
    if not few or why_not_same(comparison) or not _within(comparison):
        return None
    return decision_of(comparison, measured(comparison), Status.SAME, Reason.IDENTICAL_STEP)


def why_not_same(comparison: Comparison) -> str:
    """Return why the two steps are not known to be the same, times aside; else empty."""
    head, base = comparison.head, comparison.base
    if not head.on_gpu:
        return "there is no GPU"
    if comparison.margins.matter_pct < WITHIN_PCT:
        return "the case's matter margin is narrower"
    if head.counts is None or base.counts is None:
        return "nothing was counted"
    for counts in (head.counts, base.counts):
        identity = counts.identity
        if identity is None or identity.problem or not identity.parts:
            return f"not all of a step is known: {identity.problem if identity else 'no trace'}"
        if why := why_not_bound(counts):
            return why
    assert head.counts.identity is not None and base.counts.identity is not None
    parts = list(head.counts.identity.differs_from(base.counts.identity))
    return f"other {', '.join(parts)}" if parts else ""


def why_not_bound(counts: Counts) -> str:
    """Return why the GPU is not known to bound a step; empty if it is on every rank."""
    profile = counts.profile
    if profile is None or profile.incomplete or profile.lost_share:
        return "a profile is not whole"
    for rank in (*counts.parts_by_rank, profile.parts):
        if not mean(rank.step_us) > 0:
            return "a profile has no step"
        idle = mean(rank.idle_us) / mean(rank.step_us)
        if not 0 <= idle <= IDLE_SHARE:
            return f"a GPU is idle for {100 * idle:.1f} % of a step"
    return ""


def not_enough(comparison: Comparison) -> str:
    """Return why one pair was not enough on a GPU; empty if it was, or if all are wanted."""
    if comparison.pairs <= 1 or comparison.same_commit or not comparison.head.on_gpu:
        return ""
    if why := why_not_same(comparison):
        return why
    return "" if _within(comparison) else "the step time differs"


def _within(comparison: Comparison) -> bool:
    within_pct = WITHIN_PCT / math.sqrt(comparison.pairs)
    return abs(100 * fmean(comparison.log_ratios())) <= within_pct


# The kernels that differ: how much longer they take, measured against the kernels that are equal. A
# kernel's time scatters by half a percent of itself, a step's by half a percent of the step. So a
# small change shows in the kernels long before it shows in the steps. The first pairs end with a
# profile of each launch, if the counted profiles show kernels that differ.
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


def by_kernels(comparison: Comparison) -> Decision | None:
    """Say SLOWER, FASTER or `same` by the kernels that differ. None if the steps contradict it."""
    if not 1 <= comparison.pairs <= PROFILED_PAIRS or why_not_judged(comparison):
        return None
    kernels = _Kernels.of(comparison)
    if kernels is None:
        return None
    margins, step_us = _margins(comparison), float(kernels.step_us.mean())
    known = kernels.times.scatter(kernels.changed, kernels.steady, step_us)
    found = bounds_of(kernels.log_ratios(), known, comparison.alpha, margins)
    status = found.status(margins)
    unexplained = unexplained_sds(comparison.log_ratios(), kernels.log_ratios())
    contradicted = unexplained < -STEP_SDS
    if status is not Status.SLOWER:
        contradicted = abs(unexplained) > STEP_SDS
    early = status is Status.SAME and comparison.pairs < SAME_PAIRS
    if status is Status.INCONCLUSIVE or contradicted or early:
        return None
    longer, high = (100 * math.expm1(one) for one in _in_step(found, comparison.log_ratios()))
    return decision_of(
        comparison, found, status, Reason.CHANGED_KERNELS, estimate_pct=longer, high_pct=high
    )


def margins_of(comparison: Comparison, decided: Decision) -> Margins:
    """Return the margins by which the time was decided: those of kernels, or the case's."""
    return _margins(comparison) if decided.reason is Reason.CHANGED_KERNELS else comparison.margins


def judged_kernels(comparison: Comparison, decided: Decision | None) -> Collection[Match]:
    """Return the kernels whose times made their rule decide; none if another rule did."""
    if decided is None or decided.reason is not Reason.CHANGED_KERNELS:
        return ()
    kernels = _Kernels.of(comparison)
    assert kernels is not None  # by which it was decided
    matches = zip(_matched(comparison).matches, kernels.named(), strict=True)
    return frozenset(one for one, is_named in matches if is_named)


def wants_profiles(comparison: Comparison) -> bool:
    """Tell whether the next pair should end with profiles, by which kernels may decide."""
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
    return replace(found, low=low, high=high, fewest=1 if large else LEAST_PAIRS)


def _margins(comparison: Comparison) -> Margins:
    """Return the kernels' margins, or the case's if these are wider or finer."""
    wanted = comparison.margins
    finer = KERNEL_MARGINS.ignore_pct < wanted.ignore_pct <= MARGINS.ignore_pct
    return KERNEL_MARGINS if finer else wanted
