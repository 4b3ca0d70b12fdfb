"""Search for slow steps within launches: from some step on, periodic, or slower with each step.

A search looks at all launches of a tree together, or at the log-ratios of all pairs together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy

from stepguard.core.reason_sentences import SlowSteps
from stepguard.judge.noise_limits import pooled_variance

Numbers = npt.NDArray[Any]
LEAST_STEPS = 3  # before and after the begin of a late slowdown; a block has at least 3 + 1 steps
LEAST_RETURNS = 4  # how many slow steps a periodic pattern needs
# Fewer are enough if they are longer by FAR_SLOWER (a log-ratio) and two launches have the same.
# Of 3,080 steps of unchanged code on H200s none was longer by that much (studies/judge_power). So
# two of one number come by chance in under 0.01 %.
FEW_RETURNS, FAR_SLOWER = 2, 0.4
LEAST_OTHERS = 12  # how many steps that are not slow it needs, since they show the scatter
# Neighbouring steps are alike, so the variance of their mean is taken to be at least this many
# times that of independent steps.
LEAST_CORRELATED = 6.0
PRIOR_WEIGHT = 8.0  # weight of the known scatter of rises, in degrees of freedom
LONGEST_PERIOD = 64
PERIODIC_T = 8.0  # standard errors; so many, since some 2,000 periods and phases are tried
SAME_SIZE = 0.5  # each launch must have at least this share of the mean slowdown
# A periodic slowdown of a launch may be smaller, if it is at least so many sd of the other steps. A
# busy GPU hides a part of a host's pause, and another part in each launch.
CLEAR_SDS = 3.0
RETURNS = 0.8  # share of the due steps that must be slow
# One-sided level of each search. There is a search after each pair, and it tries all steps at which
# a slowdown may begin. All 24 searches together report one of unchanged code in under 0.1 % of
# cases (tests/judge/test_slowdowns_in_series.py).
ALPHA = 0.00005
LEAST_MEAN = 0.002  # a periodic slowdown that adds less to the mean step (log-ratio) is ignored
LEAST_OF_LINE = 8  # how many steps of a launch show how fast they grow
# Steps grow, and do not jump, if a straight line leaves less than this share of the squared
# residuals that a jump leaves.
LINE = 0.9

# All phases of all periods, one after the other.
_PERIODS = np.arange(2, LONGEST_PERIOD + 1)
_FIRST_BINS = np.cumsum(_PERIODS) - _PERIODS
_BINS = int(_PERIODS.sum())


@dataclass(frozen=True)
class Pattern:
    """A slowdown within launches. All launches have it at the same steps."""

    kind: Literal["late", "periodic", "growing"]
    begin: int  # the first slow step that was timed, counted like ``Block.ran``
    # If it is late, the last timed step before ``begin``: it begins between the two. If it grows,
    # the last timed step.
    after: int
    period: int  # steps between two slow steps; 0 if it is not periodic, or was seen only once
    slower: (
        float  # log-ratio of slow steps to the others; if it grows, of the last step to the first
    )
    adds: float  # log-ratio by which it raises the mean step; if it is late, only from its begin on
    ms: float  # by how much a slow step is longer
    p_value: float = 1.0

    def holds(self, steps: Numbers) -> Numbers:
        """Return an array that is true for the ``steps`` (numbers) that this pattern slows down."""
        apart = steps - self.begin
        slow: Numbers = apart >= 0
        if self.kind == "periodic":
            slow = apart % self.period == 0 if self.period else apart == 0
        return slow

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
class Series:
    """The timed steps of a launch, or of a pair. Each array has an item for each step."""

    steps: Numbers  # the step's number in its launch
    block: Numbers  # the number of its block
    log: Numbers  # log of its time in ms; for a pair log(head / base)
    ms: float  # the time of a usual step; for a pair the base's

    @cached_property
    def clipped(self) -> Numbers:
        """Return ``log`` within its 5 % and 95 % quantiles: a few extreme steps make no level, and
        no slope.
        """
        kept: Numbers = np.clip(self.log, *np.quantile(self.log, (0.05, 0.95)))
        return kept

    @cached_property
    def levelled(self) -> Numbers:
        """Return ``log``, less the median of the step's block: blocks differ in level."""
        return np.concatenate([block - np.median(block) for block in self.by_block(self.log)])

    def by_block(self, values: Numbers) -> list[Numbers]:
        """Split values, one for each step, into an array for each block."""
        return np.split(values, np.flatnonzero(np.diff(self.block)) + 1)

    def without(self, pattern: Pattern) -> "Series":
        """Return the series without the slow steps of a periodic pattern."""
        kept = ~pattern.holds(self.steps)
        return replace(self, steps=self.steps[kept], block=self.block[kept], log=self.log[kept])


def search(
    series: Sequence[Series], regular: Sequence[Series], sd_pct: float, alpha: float
) -> Pattern | None:
    """Return the slowdown that all series have; None if there is none. Only ``regular`` are
    searched for a periodic one. ``sd_pct`` is the known standard deviation between the halves of a
    series, ``alpha`` the one-sided level.
    """
    periodic, lasting = _periodic(regular), _lasting(series, sd_pct, alpha)
    if lasting is None or periodic is None:
        return lasting or periodic
    # Both were found. Periodic slow steps may happen to lie late, or some late steps may happen to
    # be equally far apart. It is a lasting slowdown if it remains without the periodic steps.
    others = [timed.without(periodic) for timed in series]
    return lasting if _lasting(others, sd_pct, alpha) else periodic


def _lasting(series: Sequence[Series], sd_pct: float, alpha: float) -> Pattern | None:
    """Return a slowdown that does not end: steps that grow, or a higher level from some step on.
    Growth counts if a straight line fits clearly better than a higher level (LINE).
    """
    late, growing = _late(series, sd_pct, alpha), _growing(series, sd_pct, alpha)
    if growing is None or late is None:
        return growing or late
    of_level = sum(_squares(timed, timed.steps >= late.begin) for timed in series)
    of_line = sum(_squares(timed, timed.steps) for timed in series)
    return growing if of_line < LINE * of_level else late


def _squares(timed: Series, by: Numbers) -> float:
    """Return the sum of squared residuals of a series from its straight line over ``by``."""
    return float(np.sum((timed.log - timed.log.mean() - _slope(timed, by) * (by - by.mean())) ** 2))


def _slope(timed: Series, by: Numbers) -> float:
    apart = by - by.mean()
    return float(apart @ timed.clipped / max(1e-12, float(apart @ apart)))


def growth(timed: Series, steps: int) -> float:
    """Return by how much steps grow over so many steps, as a log-ratio."""
    return _slope(timed, timed.steps) * steps


def _late(series: Sequence[Series], sd_pct: float, alpha: float) -> Pattern | None:
    """Return a level that is higher from some step on, in all launches that reach that step."""
    at = np.unique(np.concatenate([timed.steps for timed in series]))
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


def _both_sides(timed: Series, at: Numbers) -> tuple[Numbers, Numbers]:
    """Return, for each step of ``at``, the rise there: how much higher the mean from that step on
    is than before it. Also return each rise's weight. Both are 0 with fewer than LEAST_STEPS steps
    before or after.
    """
    order = np.argsort(timed.steps, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(timed.clipped[order])])
    before = np.searchsorted(timed.steps[order], at)
    after = len(timed.steps) - before
    enough = (before >= LEAST_STEPS) & (after >= LEAST_STEPS)
    first, second = np.maximum(before, 1), np.maximum(after, 1)
    rise = (total[-1] - total[before]) / second - total[before] / first
    weight = np.where(enough, before * after / len(timed.steps), 0.0)
    return np.where(enough, rise, 0.0), weight


def _variance_of_rise(timed: Series, begin: int) -> float:
    """Return the variance of a rise at ``begin``, by the scatter of the steps. It allows for
    correlated neighbours: a dip of the card's clock slows several steps.
    """
    later = timed.steps >= begin
    rest = timed.log - np.where(later, timed.log[later].mean(), timed.log[~later].mean())
    spread = float(np.mean(rest**2)) + 1e-12
    follows = float(np.mean(rest[1:] * rest[:-1])) / spread
    correlated = (1 + follows) / (1 - follows) if follows < 0.9 else 19.0
    steps = 1 / int(later.sum()) + 1 / int((~later).sum())
    return spread * max(LEAST_CORRELATED, correlated) * steps


def far_slower_steps(series: Sequence[Series]) -> Pattern | None:
    """Return a slowdown of a few steps that are far slower than all others. Each of them is slow in
    every launch that times it, and at least two launches do. The series include the first steps of
    blocks. If only such steps are slow, three launches are needed: they wait for the host, and
    scatter more. None if there is none, or if the first steps of all blocks are slow.
    """
    pattern = _periodic(series, FEW_RETURNS)
    if pattern is None or pattern.slower < FAR_SLOWER:
        return None
    both = [(timed, pattern.holds(timed.steps)) for timed in series]
    farthest = max(float(np.abs(timed.levelled[~slow]).max()) for timed, slow in both)
    blocks = [block for timed, slow in both for block in timed.by_block(slow)]
    numbers = np.concatenate([timed.steps[slow] for timed, slow in both])
    seen = np.unique(numbers, return_counts=True)[1].min()
    enough = seen >= FEW_RETURNS + (not any(block[1:].any() for block in blocks))
    all_first = all(block[0] for block in blocks)
    return pattern if enough and farthest < SAME_SIZE * pattern.slower and not all_first else None


def _periodic(series: Sequence[Series], fewest: int = LEAST_RETURNS) -> Pattern | None:
    """Return a slowdown of every n-th step: ``fewest`` steps or more, the same in every launch."""
    steps = np.concatenate([timed.steps for timed in series])
    rest = np.concatenate([timed.levelled for timed in series])
    launch = np.repeat(np.arange(len(series)), [len(timed.steps) for timed in series])
    period, phase = _best_phase(steps, rest, fewest)
    if not period:
        return None
    due = steps % period == phase
    slower, apart, distance = contrast(due, rest)
    above = rest - rest[~due].mean()
    least = min(SAME_SIZE * slower, CLEAR_SDS * apart)
    its = np.array([above[due & (launch == i)].mean() for i in np.unique(launch[due])])
    returns = float((above[due] > least).mean())
    adds = math.log1p(float(due.mean()) * math.expm1(slower))
    seen = len(its) >= min(2, len(series)) and its.min() > least
    enough = int((~due).sum()) >= LEAST_OTHERS
    if not (enough and seen) or returns < RETURNS or distance < PERIODIC_T or adds < LEAST_MEAN:
        return None
    ms = float(np.mean([timed.ms for timed in series])) * math.expm1(slower)
    begin = int(steps[due].min())
    period = period if (steps[due] > begin).any() else 0
    return Pattern("periodic", begin, begin, period, slower, adds, ms, 1e-6)


def contrast(due: Numbers, rest: Numbers) -> tuple[float, float, float]:
    """Return by how much the steps that are ``due`` are slower than the others, the standard
    deviation of the others, and the slowdown in standard errors.
    """
    usual = rest[~due]
    slower = float(rest[due].mean() - usual.mean())
    # Outliers are clipped. A normal distribution keeps 0.79 of its sd then.
    apart = float(np.clip(usual, *np.quantile(usual, (0.05, 0.95))).std()) / 0.79 + 1e-6
    return slower, apart, slower / apart * math.sqrt(int(due.sum()))


def _best_phase(steps: Numbers, rest: Numbers, fewest: int) -> tuple[int, int]:
    """Return the period and the phase that explain most of the scatter. (0, 0) if no slow step
    returns ``fewest`` times.
    """
    # The launches time the same few steps: each number is divided by all periods only once.
    numbers, at = np.unique(steps, return_inverse=True)
    bins = (numbers % _PERIODS[:, None] + _FIRST_BINS[:, None]).ravel()
    count, total = (
        np.bincount(bins, weights=np.tile(of_number, len(_PERIODS)), minlength=_BINS)
        for of_number in (np.bincount(at), np.bincount(at, weights=rest - rest.mean()))
    )
    others = np.maximum(len(steps) - count, 1)
    enough = (count >= fewest) & (total > 0)
    explained = np.where(enough, total**2 * len(steps) / (np.maximum(count, 1) * others), 0.0)
    most = np.maximum.reduceat(explained, _FIRST_BINS)
    best, place = 0.0, (0, 0)
    for period, first, its in zip(
        _PERIODS.tolist(), _FIRST_BINS.tolist(), most.tolist(), strict=True
    ):
        if its > best * (1 + 1e-9):
            best, place = its, (period, int(np.argmax(explained[first : first + period])))
    return place


def _growing(series: Sequence[Series], sd_pct: float, alpha: float) -> Pattern | None:
    """Return a pattern of steps that take longer and longer, in every series and over all steps."""
    if len(series) < 2 or any(len(timed.steps) < LEAST_OF_LINE for timed in series):
        return None
    first = min(int(timed.steps.min()) for timed in series)
    last = max(int(timed.steps.max()) for timed in series)
    rises = np.array([growth(timed, last - first) for timed in series])
    grows = float(rises.mean())
    if grows <= 0 or rises.min() < SAME_SIZE * grows:
        return None
    # The two halves of a line differ by half of its rise. So a rise scatters by twice ``sd_pct``.
    pooled, degrees = pooled_variance(rises.tolist(), 2 * sd_pct, PRIOR_WEIGHT)
    own = float(np.mean([_variance_of_growth(timed, last - first) for timed in series]))
    distance = grows / math.sqrt((pooled + own) / len(rises))
    if distance < float(scipy.special.stdtrit(degrees, 1 - alpha)):
        return None
    ms = float(np.mean([timed.ms for timed in series])) * math.expm1(grows)
    p_value = min(1.0, float(scipy.special.stdtr(degrees, -distance)) / ALPHA * 0.001)
    return Pattern("growing", first, last, 0, grows, grows / 2, ms, p_value)


def _variance_of_growth(timed: Series, steps: int) -> float:
    """Return the variance of the growth over so many steps, by the scatter around the line."""
    apart = timed.steps - timed.steps.mean()
    spread = _squares(timed, timed.steps) / len(timed.steps)
    return LEAST_CORRELATED * spread * steps**2 / max(1e-12, float(apart @ apart))
