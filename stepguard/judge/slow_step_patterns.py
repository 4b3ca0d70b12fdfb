"""Step times within launches: slowdowns that begin late, or return at a fixed number of steps.

A launch's mean hides both. Example: 15 % from step 150 on is 3 % of the mean if a fifth of the
timed steps come later. Steps are counted from the launch's first. So what the code does is at the
same steps in every launch, and what the machine does is not. Two revisions are compared step by
step, so what both do is not reported.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from stepguard.core.comparison import Comparison
from stepguard.core.device import CPU, GPU
from stepguard.core.evidence import Launch
from stepguard.core.margins import PRIOR
from stepguard.core.reason_sentences import SlowSteps
from stepguard.core.reasons import Reason
from stepguard.judge.noise_limits import pooled_variance
from stepguard.judge.sequential_plan import MIN_PAIRS, level_share

Numbers = npt.NDArray[Any]
# A pattern in a single launch may be the machine's. On a CPU other work slows down a pair or two.
LEAST_PAIRS = {GPU: 2, CPU: MIN_PAIRS}
LEAST_STEPS = 3  # on each side of where it begins; the shortest block has so many after its first
LEAST_RETURNS = 4  # slow steps of a periodic pattern
LEAST_OTHERS = 12  # steps that are not slow, to know the scatter
LEAST_CORRELATED = 6.0  # the variance of a mean is at least so many times that of independent steps
PRIOR_WEIGHT = 8.0  # degrees of freedom that the known scatter of rises counts for
LONGEST_PERIOD = 64
PERIODIC_T = 8.0  # in standard errors; some 2,000 periods and phases are tried
SAME_SIZE = 0.5  # each launch must have this share of the mean slowdown
RETURNS = 0.8  # share of the due steps that must be slow
# One-sided level of each look; there is a look after each pair. With the search for where a
# slowdown begins, 24 looks at unchanged code report one in under 0.1 % of cases
# (tests/judge/test_slowdowns_in_series.py).
ALPHA = 0.00005
# How much the two halves of a launch differ without a cause in the code. Blocks of a pair: 0.5 %,
# two and a half times the scatter of pairs. A launch alone still warms up by a percent.
PAIR_SDS, LONE_SD_PCT = 2.5, 1.0
REASONS = {"late": Reason.LATE_SLOWDOWN, "periodic": Reason.PERIODIC_SLOWDOWN}
LEAST_MEAN = 0.002  # log-ratio of the mean step, below which a periodic slowdown is not reported


@dataclass(frozen=True)
class Pattern:
    """A slowdown within launches, the same in all of them."""

    kind: Literal["late", "periodic"]
    begin: int  # the first slow step that was timed, counted like ``Block.ran``
    after: int  # for a late one the last step timed before: it begins in between
    period: int  # steps between two slow steps; 0 if it is late, or returned only once
    slower: float  # log-ratio of slow steps to the others
    adds: float  # log-ratio of the mean step, after to before; of a late one's steps from there on
    ms: float  # so much longer is a slow step
    p_value: float = 1.0

    def figures(self) -> SlowSteps:
        """Return the pattern as figures of a metric's verdict."""
        return SlowSteps(
            kind=self.kind,
            begin=int(self.begin),
            after=int(self.after),
            period=int(self.period),
            slower_pct=100 * math.expm1(self.slower),
            slower_ms=float(self.ms),
        )


@dataclass(frozen=True)
class _Series:
    """The timed steps of a launch: their numbers, their blocks, and the logs of their times, or
    ratios.
    """

    steps: Numbers
    block: Numbers
    log: Numbers
    ms: float  # of a usual step

    def by_block(self, values: Numbers) -> list[Numbers]:
        """Return the values of its steps, one array for each block."""
        return np.split(values, np.flatnonzero(np.diff(self.block)) + 1)

    def without(self, pattern: Pattern) -> "_Series":
        """Return the series without the slow steps of a periodic pattern."""
        apart = self.steps - pattern.begin
        kept = apart % pattern.period != 0 if pattern.period else apart != 0
        return replace(self, steps=self.steps[kept], block=self.block[kept], log=self.log[kept])


@lru_cache(maxsize=64)  # a verdict and its report ask a dozen times
def of_launches(launches: tuple[Launch, ...]) -> Pattern | None:
    """Return the slowdown that all launches of one tree have; None for fewer than two launches."""
    series = [timed for launch in launches if (timed := _of_launch(launch))]
    if len(series) < 2 or len(series) < len(launches):
        return None
    return _found(series, _periodic(_without_places(series)), LONE_SD_PCT, ALPHA)


def of_pairs(comparison: Comparison, least: int = 0) -> Pattern | None:
    """Return the slowdown that HEAD's steps have in all pairs, and the other tree's steps do not
    have. None if it costs HEAD no more than the ignore margin, or if there are fewer than ``least``
    pairs. ``least`` 0 stands for as many pairs as a verdict needs.
    """
    both = zip(comparison.head.launches, comparison.base.launches, strict=False)
    series = [timed for head, base in both if (timed := _of_pair(head, base))]
    if len(series) < (least or LEAST_PAIRS[comparison.head.case["device"]]):
        return None
    margins = comparison.margins
    sd_pct = max(PAIR_SDS * PRIOR.sd_pct, margins.matter_pct / 2)
    pattern = _found(series, _periodic(series), sd_pct, ALPHA * level_share(comparison.alpha))
    if pattern is None:
        return None
    # A late slowdown is measured from its begin on: before it HEAD may have been faster.
    after = pattern.begin if pattern.kind == "late" else 0
    lasting = [
        timed.log[timed.steps >= after].mean() for timed in series if timed.steps[-1] >= after
    ]
    return pattern if min(float(np.mean(lasting)), pattern.adds) > margins.ignore else None


def _found(
    series: Sequence[_Series], periodic: Pattern | None, sd_pct: float, alpha: float
) -> Pattern | None:
    late = _late(series, sd_pct, alpha)
    if late is None or periodic is None:
        return late or periodic
    # Both were found: slow steps may happen to lie late, or some of the late steps may be equally
    # far apart. It is late if it still is without the periodic ones.
    others = [timed.without(periodic) for timed in series]
    return late if _late(others, sd_pct, alpha) else periodic


def lasting_ms(launch: Launch, begin: int) -> float:
    """Return the mean of a launch's timed steps from ``begin`` on, in ms; of all steps if none is
    that late.
    """
    times = [
        ms
        for block in launch.blocks
        for step, ms in zip(block.timed_steps, block.step_ms, strict=False)
        if step >= begin
    ]
    return math.fsum(times) / len(times) if times else launch.step_ms


def _of_launch(launch: Launch) -> _Series | None:
    """Return a launch's series; None if its blocks do not say which steps they timed.

    The first step of each block is left out. A GPU waits there for its host, so that step also
    shows host delays that are hidden in all other steps.
    """
    blocks = [block for block in launch.blocks if block.steps > 1]
    if not (blocks and launch.has_times()) or any(block.ran is None for block in blocks):
        return None
    ms = np.array([ms for block in blocks for ms in block.step_ms[1:]])
    steps = np.concatenate([np.array(block.timed_steps[1:]) for block in blocks])
    number = np.repeat(np.arange(len(blocks)), [block.steps - 1 for block in blocks])
    return _Series(steps, number, np.log(ms), float(np.median(ms)))


def _of_pair(head: Launch, base: Launch) -> _Series | None:
    """Return the log-ratios of the steps that both launches timed; None if there are none."""
    own, other = _of_launch(head), _of_launch(base)
    if own is None or other is None:
        return None
    steps, mine, its = np.intersect1d(own.steps, other.steps, return_indices=True)
    if not len(steps):
        return None
    return _Series(steps, own.block[mine], own.log[mine] - other.log[its], other.ms)


def _late(series: Sequence[_Series], sd_pct: float, alpha: float) -> Pattern | None:
    """Return a level that is higher from some step on, in all launches that reach that step."""
    at = np.unique(np.concatenate([timed.steps for timed in series]))
    # The clipping keeps a few extreme steps from making a level.
    sums = [_both_sides(timed, at) for timed in series]
    weight = np.array([weights for _, weights in sums])
    moved = np.array([rises for rises, _ in sums])
    reached = weight > 0
    # If only one of several launches got that far, nothing shows that it repeats.
    returned = reached.sum(axis=0) >= min(2, len(series))
    explained = np.where(returned, (weight * moved).sum(axis=0), 0.0)
    best = int(np.argmax(explained**2 / np.maximum(weight.sum(axis=0), 1e-12)))
    if explained[best] <= 0:
        return None
    rises = moved[reached[:, best], best]
    slower = float(rises.mean())
    if rises.min() < SAME_SIZE * slower:
        return None
    begin = int(at[best])
    its = [
        _variance_of_rise(timed, begin)
        for timed, reach in zip(series, reached[:, best], strict=True)
        if reach
    ]
    pooled, degrees = pooled_variance(rises.tolist(), sd_pct, PRIOR_WEIGHT)
    distance = slower / math.sqrt((pooled + float(np.mean(its))) / len(rises))
    if distance < float(scipy.special.stdtrit(degrees, 1 - alpha)):
        return None
    usual = float(np.mean([timed.ms for timed in series]))
    p_value = min(1.0, float(scipy.special.stdtr(degrees, -distance)) / ALPHA * 0.001)
    ms = usual * math.expm1(slower)
    after = int(at[best - 1])
    return Pattern("late", begin, after, 0, slower, slower, ms, p_value)


def _both_sides(timed: _Series, at: Numbers) -> tuple[Numbers, Numbers]:
    """Return, for each step of ``at``, how much higher the mean from that step on is than before
    it, and the weight of that. Both are 0 with fewer than LEAST_STEPS steps on a side.
    """
    low, high = np.quantile(timed.log, (0.05, 0.95))
    order = np.argsort(timed.steps, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(np.clip(timed.log, low, high)[order])])
    before = np.searchsorted(timed.steps[order], at)
    after = len(timed.steps) - before
    enough = (before >= LEAST_STEPS) & (after >= LEAST_STEPS)
    first, second = np.maximum(before, 1), np.maximum(after, 1)
    rise = (total[-1] - total[before]) / second - total[before] / first
    weight = np.where(enough, before * after / len(timed.steps), 0.0)
    return np.where(enough, rise, 0.0), weight


def _variance_of_rise(timed: _Series, begin: int) -> float:
    """Return the variance of a rise at ``begin``, from the scatter of the steps. Neighbouring steps
    are correlated on a card whose clock dips.
    """
    later = timed.steps >= begin
    rest = timed.log - np.where(later, timed.log[later].mean(), timed.log[~later].mean())
    spread = float(np.mean(rest**2)) + 1e-12
    follows = float(np.mean(rest[1:] * rest[:-1])) / spread
    correlated = (1 + follows) / (1 - follows) if follows < 0.9 else 19.0
    steps = 1 / int(later.sum()) + 1 / int((~later).sum())
    return spread * max(LEAST_CORRELATED, correlated) * steps


def _periodic(series: Sequence[_Series]) -> Pattern | None:
    """Return a slowdown of every n-th step, at the same steps in every launch."""
    steps = np.concatenate([timed.steps for timed in series])
    rest = np.concatenate([_levelled(timed) for timed in series])
    launch = np.repeat(np.arange(len(series)), [len(timed.steps) for timed in series])
    period, phase = _best_phase(steps, rest)
    if not period:
        return None
    due = steps % period == phase
    usual = rest[~due]
    slower = float(rest[due].mean() - usual.mean())
    # The outermost steps are clipped, which leaves 0.79 of a normal spread.
    apart = float(np.clip(usual, *np.quantile(usual, (0.05, 0.95))).std()) / 0.79 + 1e-6
    its = np.array([rest[due & (launch == i)].mean() for i in np.unique(launch[due])])
    returns = float((rest[due] - usual.mean() > SAME_SIZE * slower).mean())
    distance = slower / apart * math.sqrt(int(due.sum()))
    adds = math.log1p(float(due.mean()) * math.expm1(slower))
    seen = len(its) >= min(2, len(series)) and (its - usual.mean()).min() > SAME_SIZE * slower
    enough = len(usual) >= LEAST_OTHERS
    if not (enough and seen) or returns < RETURNS or distance < PERIODIC_T or adds < LEAST_MEAN:
        return None
    ms = float(np.mean([timed.ms for timed in series])) * math.expm1(slower)
    begin = int(steps[due].min())
    period = period if (steps[due] > begin).any() else 0
    return Pattern("periodic", begin, begin, period, slower, adds, ms, 1e-6)


def _without_places(series: Sequence[_Series]) -> list[_Series]:
    """Return the series without what steps do by their place in a block, in most blocks.

    At its power cap an H200's clock dips 0.65 to 0.83 s after a block begins, and once more a
    second later (studies/warm_up): in blocks of 38 steps that is every 19th.
    """
    blocks = [block for timed in series for block in timed.by_block(_levelled(timed))]
    level = np.full((len(blocks), max(map(len, blocks))), np.nan)
    for row, block in zip(level, blocks, strict=True):
        row[: len(block)] = block
    usual = np.nanmedian(level, axis=0)
    return [
        replace(
            timed,
            log=timed.log - np.concatenate([usual[: len(b)] for b in timed.by_block(timed.log)]),
        )
        for timed in series
    ]


def _levelled(timed: _Series) -> Numbers:
    """Return the series less the median of each block, since blocks of one launch differ in
    level.
    """
    return np.concatenate([block - np.median(block) for block in timed.by_block(timed.log)])


def _best_phase(steps: Numbers, rest: Numbers) -> tuple[int, int]:
    """Return the period and the phase that explain most; (0, 0) if none returns LEAST_RETURNS
    times.
    """
    best, place = 0.0, (0, 0)
    for period in range(2, LONGEST_PERIOD + 1):
        phases = steps % period
        count = np.bincount(phases, minlength=period)
        total = np.bincount(phases, weights=rest - rest.mean(), minlength=period)
        others = np.maximum(len(steps) - count, 1)
        enough = (count >= LEAST_RETURNS) & (total > 0)
        explained = np.where(enough, total**2 * len(steps) / (np.maximum(count, 1) * others), 0.0)
        phase = int(np.argmax(explained))
        if explained[phase] > best * (1 + 1e-9):
            best, place = float(explained[phase]), (period, phase)
    return place
