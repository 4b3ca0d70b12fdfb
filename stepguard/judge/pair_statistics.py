"""The arithmetic of A/B comparisons: from pairs of launches to a decision.

Every pair gives one log-ratio ``d = log(head / base)``. Bounds on the mean of d are compared with
two margins. While pairs are few, the standard deviation is steadied by the known noise of machines.
Sources: Smyth 2004 (moderated t), Schuirmann 1987 (two one-sided tests). `sequential_plan.py` says
when pairs may decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np
import scipy  # .special is imported at its first use: it takes a third of a short command's time

from stepguard.core.evidence import Launch
from stepguard.core.margins import ALPHA, MARGINS, PRIOR, Margins, Prior
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.sequential_plan import (
    MIN_PAIRS,
    MOST_PAIRS,
    SEQUENTIAL_PLAN,
    InterimAnalysis,
    analysis_at,
    level_share,
    may_decide,
)

POINTS = 200  # of the quadrature over the sample variance: error rates are right to 1 % of them


# A pair is out of line if its blocks differ by so many standard deviations of pairs: 1.1 % with the
# default. Of 73 pairs on H200s the most was 0.97 %. A block that is 3 % slow gives 2.1 %.
OUT_OF_LINE_SDS = 5.5


def out_of_line(head: Launch, base: Launch) -> bool:
    """Tell whether a pair's blocks differ within a side by more than they do on a quiet machine.

    The log-ratio of a pair is one contrast of its four blocks. This takes the two contrasts that
    are orthogonal to it and to the mean (for A B B A the linear and the cubic one), and compares
    the root of their sum of squares with a limit. That root is the root of the sum of squares of
    the two differences within a side, over the square root of two. It does not depend on which side
    is slower, so leaving out such a pair shifts no estimate.
    """
    if not (head.has_times() and base.has_times()):
        return False
    within = [math.log(side.blocks[0].mean_ms / side.blocks[-1].mean_ms) for side in (head, base)]
    return math.hypot(*within) / math.sqrt(2) > OUT_OF_LINE_SDS * PRIOR.sd_pct / 100


@dataclass(frozen=True)
class Bounds:
    """Bounds on the true log-ratio at one interim analysis of the plan."""

    analysis: InterimAnalysis
    pairs: int  # may lie between two analyses of the plan
    mean: float
    low: float
    high: float
    surely: bool  # there surely is a change, in the direction of the mean
    sd: float  # of d, moderated
    degrees: float
    fewest: int = MIN_PAIRS  # pairs that SLOWER or FASTER needs

    def status(self, margins: Margins) -> Status:
        """Return what the plan says: INCONCLUSIVE while it does not decide."""
        enough = self.pairs >= self.fewest and self.surely
        if enough and self.low > margins.ignore:
            return Status.SLOWER
        if enough and self.high < -margins.ignore:
            return Status.FASTER
        inside = -margins.matter < self.low and self.high < margins.matter
        # If the interval lies wholly beyond the ignore margin, the answer is not `same`, however
        # far it is inside the matter margin. Otherwise four quiet pairs would pass what six of them
        # fail.
        reaches = self.low <= margins.ignore and self.high >= -margins.ignore
        said = inside and reaches and self.pairs >= SEQUENTIAL_PLAN[0].pairs
        return Status.SAME if said else Status.INCONCLUSIVE

    @property
    def p_value(self) -> float:
        """Return the one-sided p-value of "not slower at all", valid whichever analysis was the
        last.

        It is this analysis' own p-value times ALPHA / alpha. The chance that any analysis falls
        below x is at most the sum of their chances, so SLOWER always has ``p_value <= ALPHA``. With
        fewer pairs than SLOWER needs it is 1.
        """
        if self.pairs < self.fewest:
            return 1.0
        distance = -self.mean / self.sd * math.sqrt(self.pairs)
        its = float(scipy.special.stdtr(self.degrees, distance))
        return min(1.0, its * ALPHA / self.analysis.alpha)


def bounds(
    log_ratios: Sequence[float],
    prior: Prior = PRIOR,
    fewest: int = MIN_PAIRS,
    alpha: float = ALPHA,
) -> Bounds:
    """Return the mean of the log-ratios and two bounds on the true value, ``mean -+ t * sd /
    sqrt(n)``.

    The bounds are taken at the analysis' beta: over all analyses each misses the true value with
    probability BETA at most. ``surely`` uses the analysis' share of ``alpha``: that bound must
    exclude zero. Raises ValueError without a pair, with more than MOST_PAIRS, or for a ratio that
    is not finite.
    """
    count = len(log_ratios)
    if not 1 <= count <= MOST_PAIRS:
        raise ValueError(f"{count} pairs: the plan has 1 to {MOST_PAIRS}")
    if not all(map(math.isfinite, log_ratios)):
        raise ValueError(f"log-ratios {log_ratios!r}: not finite")
    mean = math.fsum(log_ratios) / count
    sample = math.fsum((d - mean) ** 2 for d in log_ratios) / max(count - 1, 1)
    sd, degrees = prior.moderated(sample, count)
    analysis, error = analysis_at(count), sd / math.sqrt(count)
    level = analysis.alpha * level_share(alpha)
    surely = abs(mean) > float(scipy.special.stdtrit(degrees, 1 - level)) * error
    reach = float(scipy.special.stdtrit(degrees, 1 - analysis.beta)) * error
    return Bounds(analysis, count, mean, mean - reach, mean + reach, surely, sd, degrees, fewest)


_REASONS = {
    Status.SLOWER: Reason.BEYOND_MARGIN,
    Status.FASTER: Reason.BEYOND_MARGIN,
    Status.SAME: Reason.WITHIN_MARGINS,
    Status.INCONCLUSIVE: Reason.UNDECIDED,
}


@dataclass(frozen=True)
class Figures:
    """What the pairs measured. All rules decide by it."""

    bounds: Bounds
    margins: Margins
    smallest_detectable_pct: float
    with_replaced_pct: float | None  # the change, if the pairs that were replaced count, too

    @property
    def estimate_pct(self) -> float:
        """Return the change of the step time in percent."""
        return 100 * math.expm1(self.bounds.mean)

    def say(
        self,
        status: Status,
        reason: Reason | None = None,
        final: bool = True,
        p_value: float = 1.0,
    ) -> Decision:
        """Return a decision. Without a ``reason`` it has the plan's for that status."""
        return Decision(
            status=status,
            reason=reason or _REASONS[status],
            estimate_pct=self.estimate_pct,
            low_pct=100 * math.expm1(self.bounds.low),
            high_pct=100 * math.expm1(self.bounds.high),
            pairs=self.bounds.pairs,
            sd_pct=100 * self.bounds.sd,
            p_value=min(self.bounds.p_value, p_value),
            smallest_detectable_pct=self.smallest_detectable_pct,
            final=final,
            with_replaced_pct=self.with_replaced_pct,
        )


def figures(
    log_ratios: Sequence[float],
    margins: Margins = MARGINS,
    *,
    replaced: Sequence[float] = (),
    fewest: int = MIN_PAIRS,
    alpha: float = ALPHA,
) -> Figures:
    """Return what the pairs so far say. Each is a log(head / base) of the step time; their order
    does not matter. SLOWER and FASTER need ``fewest`` pairs. Raises ValueError as bounds() does.
    """
    known = bounds(log_ratios, fewest=fewest, alpha=alpha)
    smallest = smallest_detectable_pct(MOST_PAIRS, 100 * known.sd, margins, alpha=alpha)
    all_pct = 100 * math.expm1(fmean([*log_ratios, *replaced])) if replaced else None
    return Figures(known, margins, smallest, all_pct)


def decide(measured: Figures, *, last: bool = False) -> Decision:
    """Judge pairs by the sequential plan.

    Pairs decide only at the analyses of SEQUENTIAL_PLAN. The exception is ``last``: time is up, for
    a reason that does not depend on the pairs. It uses the next analysis' error, at the level of
    the one before. If HEAD is slower by more than the matter margin once the replaced pairs count,
    nothing passes: something may disturb HEAD alone, in one pair after another.
    """
    count, status = measured.bounds.pairs, Status.INCONCLUSIVE
    if may_decide(count, last):
        status = measured.bounds.status(measured.margins)
    all_pct = measured.with_replaced_pct
    if (
        all_pct is not None
        and all_pct > measured.margins.matter_pct
        and status is not Status.SLOWER
    ):
        status = Status.INCONCLUSIVE
    return measured.say(
        status, final=last or status is not Status.INCONCLUSIVE or count >= MOST_PAIRS
    )


@lru_cache(maxsize=64)  # asked for by the loop that measures, by the verdict and by its report
def smallest_detectable_pct(
    pairs: int,
    sd_pct: float,
    margins: Margins = MARGINS,
    prior: Prior = PRIOR,
    alpha: float = ALPHA,
) -> float:
    """Return the true slowdown in percent that is SLOWER within ``pairs`` in 95 of 100 runs.

    ``sd_pct`` is the true standard deviation of 100 * d, which is taken as normal. A run misses if
    the last analysis does not say SLOWER, or an earlier one said `same`. The sum of both bounds the
    chance, so the power is at least as stated. Infinite below MIN_PAIRS pairs. Raises ValueError
    for a bad ``sd_pct``.
    """
    if not 0 < sd_pct < math.inf:
        raise ValueError(f"sd_pct {sd_pct!r}: not positive and finite")
    if pairs < MIN_PAIRS:
        return math.inf
    # The last analysis is at ``pairs``, whether it is in the plan or time is up there.
    planned = [analysis for analysis in SEQUENTIAL_PLAN if analysis.pairs < pairs]
    planned.append(analysis_at(pairs)._replace(pairs=pairs))
    reaches = [_mean_reaches(analysis, sd_pct, prior, margins, alpha) for analysis in planned]
    errors = [sd_pct / 100 / math.sqrt(analysis.pairs) for analysis in planned]

    def missed(true: float) -> float:
        earlier = zip(reaches[:-1], errors, strict=False)
        same = sum(
            scipy.special.ndtr((same_below - true) / error).mean()
            for (same_below, _), error in earlier
        )
        return float(same + scipy.special.ndtr((reaches[-1][1] - true) / errors[-1]).mean())

    # `missed` falls as the true slowdown grows: bracket the solution, then bisect.
    low, high = margins.ignore, 2 * margins.matter
    while missed(high) > 0.05:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > 0.05 else (low, middle)
    return 100 * math.expm1(high)


def deciding_margins(sd_pct: float, margins: Margins = MARGINS, alpha: float = ALPHA) -> Margins:
    """Return the margins with which MOST_PAIRS pairs of standard deviation ``sd_pct`` decide in 95
    of 100 runs. The matter margin is the smallest such one, in steps of 0.1 % from the given one
    on.
    """
    # The ignore margin stays: what counts as nothing does not depend on noise.
    smallest_pct = smallest_detectable_pct(MOST_PAIRS, sd_pct, margins, alpha=alpha)
    while smallest_pct > margins.matter_pct:
        # A wider matter margin lets more pass at the first analyses, hence the loop.
        tenths = max(math.ceil(10 * smallest_pct), math.floor(10 * margins.matter_pct) + 1)
        margins = Margins(margins.ignore_pct, tenths / 10)
        smallest_pct = smallest_detectable_pct(MOST_PAIRS, sd_pct, margins, alpha=alpha)
    return margins


def _mean_reaches(
    analysis: InterimAnalysis, sd_pct: float, prior: Prior, margins: Margins, alpha: float
) -> tuple[Any, Any]:
    """Return two arrays over all sample variances: the mean below which an analysis says `same`,
    and the mean from which on it says SLOWER.

    For normal pairs the mean and the variance are independent, and ``(n - 1) * s**2 / sd**2`` is
    chi-square with n - 1 degrees of freedom. Its quantiles at POINTS midpoints stand for it.
    """
    count = analysis.pairs
    quantiles = scipy.special.chdtri(count - 1, (np.arange(POINTS) + 0.5) / POINTS)
    variances = (sd_pct / 100) ** 2 * quantiles / (count - 1)
    sd, degrees = np.vectorize(prior.moderated)(variances, count)
    error = sd / math.sqrt(count)
    sure = scipy.special.stdtrit(degrees, 1 - analysis.alpha * level_share(alpha)) * error
    reach = scipy.special.stdtrit(degrees, 1 - analysis.beta) * error
    # As in Bounds.status(): `same` lies inside the matter margin and reaches into the ignore
    # margin.
    same_below = np.minimum(margins.matter - reach, margins.ignore + reach)
    return same_below, np.maximum(sure, margins.ignore + reach)
