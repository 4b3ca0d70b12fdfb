"""How noisy pairs of the same code are on a machine, and where that noise comes from. Pure.

    log of a block's step time = level of its pair + its launch's own + its own
    variance of a pair's d     = 2 * (launch**2 + block**2 / BLOCKS) = 2 * launch**2 + block**2

d is ``log(head / base)``, of the same code on both sides. Longer blocks lower the second part only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from scipy.special import chdtri, stdtrit

from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.evidence import Launch
from stepguard.judge.power import smallest_detectable_pct
from stepguard.judge.sequential_plan import MIN_PAIRS, SEQUENTIAL_PLAN
from stepguard.margins import PRIOR, Margins, Prior

BLOCKS = 2  # of a launch
LONGER = (0.5, 1.0, 2.0, 4.0)  # blocks so many times as long as those measured are thought through


@dataclass(frozen=True)
class Noise:
    """What pairs of the same code say of a machine; standard deviations of 100 * a logarithm."""

    pairs: int
    sd_pct: float  # of a pair's d
    sd_low_pct: float  # 95 % interval of that, if pairs are normal
    sd_high_pct: float
    mean_pct: float  # of d, which is zero in truth
    mean_half_pct: float  # of its 95 % interval
    launch_sd_pct: float  # between the launches of one side, the drift of the run included
    block_sd_pct: float  # of one block, without drift
    drift_pct: float  # of the pairs' level from the first to the last, by a straight line
    block_s: float  # how long a block was
    wildest: int  # the pair that lies furthest from the mean, from 1 on
    without_wildest_pct: float  # sd_pct of the others

    @property
    def own_sd_pct(self) -> float:
        """Of a launch, less its blocks' noise and all that a pair shares: what no block mends."""
        return math.sqrt((self.sd_pct**2 - self._of_blocks**2) / 2)

    @property
    def _of_blocks(self) -> float:
        """What blocks add to the pair's standard deviation, which is known better than theirs."""
        return min(self.sd_pct, self.block_sd_pct)

    def sd_with_pct(self, block_s: float) -> float:
        """The pair's standard deviation if blocks were so long, their noise being white."""
        return math.sqrt(2 * self.own_sd_pct**2 + self._of_blocks**2 * self.block_s / block_s)


def noise_of(comparison: Comparison) -> Noise:
    """The noise of a comparison of the same code with itself.

    Raises ValueError with fewer than three pairs, for a launch that has not BLOCKS blocks, and for
    pairs that do not differ at all: a clock that tells no noise told no time.
    """
    ratios = [100 * d for d in comparison.log_ratios()]
    count = len(ratios)
    if count < 3:
        raise ValueError(f"{count} pairs: their spread takes 3")
    sides = (comparison.head.launches[:count], comparison.base.launches[:count])
    if odd := [launch for side in sides for launch in side if len(launch.blocks) != BLOCKS]:
        raise ValueError(f"launch {odd[0].index} has {len(odd[0].blocks)} blocks, not {BLOCKS}")
    sd = stdev(ratios)
    if not sd > 0:
        raise ValueError(f"{count} pairs and all of them {ratios[0]:+.3f} %: no clock is that even")
    logs = [[100 * math.log(getattr(x, JUDGED_TIME)) for x in side] for side in sides]
    mean = fmean(ratios)
    wildest = max(range(count), key=lambda index: abs(ratios[index] - mean))
    blocks = [block for side in sides for launch in side for block in launch.blocks]
    return Noise(
        pairs=count,
        sd_pct=sd,
        sd_low_pct=sd * math.sqrt((count - 1) / float(chdtri(count - 1, 0.025))),
        sd_high_pct=sd * math.sqrt((count - 1) / float(chdtri(count - 1, 0.975))),
        mean_pct=mean,
        mean_half_pct=float(stdtrit(count - 1, 0.975)) * sd / math.sqrt(count),
        launch_sd_pct=math.sqrt(fmean(variance(side) for side in logs)),
        block_sd_pct=_block_sd_pct(comparison, count),
        drift_pct=_drift([fmean(pair) for pair in zip(*logs, strict=True)]),
        block_s=fmean(max(block.wall_ms) for block in blocks) / 1e3,
        wildest=wildest + 1,
        without_wildest_pct=stdev(ratios[:wildest] + ratios[wildest + 1 :]),
    )


def _block_sd_pct(comparison: Comparison, count: int) -> float:
    """Of one block: the contrast of a pair's four blocks in which levels and drift cancel.

    In turns (A B B A) that is ``3 (b2 - b1) - (a2 - a1)``, of 20 times a block's variance; one
    launch after the other ``(b2 - b1) - (a2 - a1)``, of 4 times.
    """
    squares = []
    for index in range(count):
        head, base = (_rise(s.launches[index]) for s in (comparison.head, comparison.base))
        outer, inner = (base, head) if index % 2 == 0 else (head, base)
        contrast = 3 * inner - outer if comparison.together else inner - outer
        squares.append(contrast**2)
    return math.sqrt(fmean(squares) / (20 if comparison.together else 4))


def _rise(launch: Launch) -> float:
    first, second = (block.mean_ms for block in launch.blocks)
    return 100 * math.log(second / first)


def _drift(levels: Sequence[float]) -> float:
    """From the first to the last on the line that fits best."""
    middle, level = (len(levels) - 1) / 2, fmean(levels)
    products = ((index - middle) * (one - level) for index, one in enumerate(levels))
    squares = math.fsum((index - middle) ** 2 for index in range(len(levels)))
    return math.fsum(products) / squares * (len(levels) - 1)


@dataclass(frozen=True)
class Plan:
    """What so many pairs, of blocks so long, can find in how much time."""

    block_s: float
    pairs: int
    seconds: float
    sd_pct: float
    smallest_detectable_pct: float  # inf under MIN_PAIRS pairs


def prior_of(sd_pct: float, degrees: float) -> Prior:
    """The prior that a machine's own pairs make; never worth more than the default's degrees.

    With more, the looks would err more often than they say wherever the noise is not what it was:
    at noise 2.5 times as large, 0.094 % of false alarms at 4 degrees, 0.11 % at 5, 0.41 % at 23.
    """
    return Prior(sd_pct, min(degrees, PRIOR.degrees))


def plan_for(pairs: int, noise: Noise, pair_s: float, block_s: float, margins: Margins) -> Plan:
    """``pairs`` pairs of blocks of ``block_s``, where a pair took ``pair_s`` as it was measured."""
    sd = noise.sd_with_pct(block_s)
    seconds = pairs * (pair_s + 2 * BLOCKS * (block_s - noise.block_s))
    prior = prior_of(sd, noise.pairs - 1)
    found = smallest_detectable_pct(pairs, sd, margins, prior)
    return Plan(block_s, pairs, seconds, sd, found)


def plans_by_pairs(noise: Noise, pair_s: float, margins: Margins) -> list[Plan]:
    """What can be found at each look that may say SLOWER."""
    looks = [look.pairs for look in SEQUENTIAL_PLAN if look.pairs >= MIN_PAIRS]
    return [plan_for(pairs, noise, pair_s, noise.block_s, margins) for pairs in looks]


def plans_by_block(noise: Noise, pair_s: float, budget_s: float, margins: Margins) -> list[Plan]:
    """What fits ``budget_s``, by the length of blocks; only lengths that leave MIN_PAIRS pairs."""
    plans = []
    for factor in LONGER:
        block_s = factor * noise.block_s
        one_s = pair_s + 2 * BLOCKS * (block_s - noise.block_s)
        pairs = min(SEQUENTIAL_PLAN[-1].pairs, int(budget_s / one_s)) if one_s > 0 else 0
        if pairs >= MIN_PAIRS:
            plans.append(plan_for(pairs, noise, pair_s, block_s, margins))
    return plans
