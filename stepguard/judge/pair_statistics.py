"""The arithmetic of A/B comparisons: it decides by the log-ratios of pairs.

Every pair gives one log-ratio ``d = log(head / base)``. Bounds on the mean of d are compared with
two margins. The standard deviation is moderated: while there are few pairs, the known noise of
machines counts, too. Sources: Smyth 2004 (moderated t), Schuirmann 1987 (two one-sided tests).

Pairs are measured until they decide, or until the plan ends. Every interim analysis adds to the
error. SEQUENTIAL_PLAN says how much, and the errors are summed (Bonferroni). `docs/judge.md` has
the error of the whole plan for several standard deviations.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.polynomial import Chebyshev

from stepguard.core.comparison import Comparison
from stepguard.core.margins import ALPHA, MARGINS, PRIOR, Margins, Prior
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.student_t import t_quantile, t_tail
from stepguard.core.verdict import Decision

POINTS = 64  # of the quadrature over the sample variance; error rates are then exact to 0.1 %
RUN_ALPHA = 0.01  # the chance that any case of a run is SLOWER although nothing changed
# The levels of the analyses are scaled by (a case's level / ALPHA) to this power. With the power 1
# they would err more often than promised if pairs are three to four times as noisy as the prior
# says: by 26 % with 50 cases, and by 43 % with 100.
LEVEL_POWER = 1.25
# The chance, over all analyses, of SLOWER although the true change is only the ignore margin, and
# of `same` although it is the matter margin.
BETA = 0.05

# If launches have a fast and a slow mode, a pair of unchanged code is above zero at most one time
# in four, however far apart the modes are. By chance, six such pairs are all above zero in 0.02 %
# of cases, four in 0.4 %.
MIN_PAIRS = 6


class InterimAnalysis(NamedTuple):
    """A number of pairs after which the plan may decide, with one-sided nominal levels."""

    pairs: int
    alpha: float  # chance of SLOWER, and of FASTER, although nothing changed
    beta: float  # chance that a bound misses the true value, on each side


# Each analysis has about 1.4 times the pairs of the one before. The levels are nominal: if the true
# standard deviation is two to three times the prior's, the actual error rates are higher, most of
# all with few pairs. The sums of the levels are below ALPHA and BETA, so that both hold even then.
# ALPHA is much smaller than BETA: to fail code that did not change is much worse than to fail code
# that changed by just the ignore margin. With ALPHA in place of BETA, noise of 0.27 % would hide a
# slowdown of 0.5 %.
SEQUENTIAL_PLAN = (
    InterimAnalysis(4, 0.00005, 0.0055),  # only `same`; its alpha is spent by kernels that differ
    InterimAnalysis(6, 0.00005, 0.0055),
    InterimAnalysis(8, 0.00008, 0.0055),
    InterimAnalysis(12, 0.0001, 0.0055),
    InterimAnalysis(17, 0.00012, 0.0055),
    InterimAnalysis(24, 0.00014, 0.0055),
)
MOST_PAIRS = SEQUENTIAL_PLAN[-1].pairs


def level_of(cases: int) -> float:
    """Return each case's level in a run of so many: ALPHA, or a smaller share of RUN_ALPHA."""
    return min(ALPHA, RUN_ALPHA / max(1, cases))


def level_share(alpha: float) -> float:
    """Return by what the analyses' levels are scaled so that together they err by ``alpha``."""
    return float((alpha / ALPHA) ** LEVEL_POWER)


def analysis_at(pairs: int) -> InterimAnalysis:
    """Return the latest analysis that ``pairs`` have reached; the first if they reached none."""
    reached = (analysis for analysis in SEQUENTIAL_PLAN if analysis.pairs <= pairs)
    return max(reached, default=SEQUENTIAL_PLAN[0])


class Bounds(msgspec.Struct, frozen=True):
    """Bounds on the true log-ratio at one interim analysis of the plan."""

    analysis: InterimAnalysis
    pairs: int  # how many there are; it may lie between two analyses of the plan
    mean: float
    low: float
    high: float
    surely: bool  # there is certainly a change, in the direction of the mean
    sd: float  # of d, moderated
    degrees: float  # of freedom, of sd
    fewest: int = MIN_PAIRS  # how many pairs SLOWER or FASTER needs

    def status(self, margins: Margins) -> Status:
        """Return the plan's status: INCONCLUSIVE while the bounds do not decide."""
        enough = self.pairs >= self.fewest and self.surely
        if enough and self.low > margins.ignore:
            return Status.SLOWER
        if enough and self.high < -margins.ignore:
            return Status.FASTER
        inside = -margins.matter < self.low and self.high < margins.matter
        # `same` also needs an interval that reaches into the ignore margin. Otherwise four quiet
        # pairs would pass a change that six such pairs fail.
        reaches = self.low <= margins.ignore and self.high >= -margins.ignore
        said = inside and reaches and self.pairs >= min(self.fewest, SEQUENTIAL_PLAN[0].pairs)
        return Status.SAME if said else Status.INCONCLUSIVE

    def hopeless(self, margins: Margins) -> bool:
        """Tell whether MOST_PAIRS such pairs would decide nothing: their bounds would be more than
        three matter margins from a mean that shows no change. With a known scatter one would do.
        But four pairs may overrate it by two, and one that another process disturbed by more: with
        two margins such a pair took a tenth of the power at 2 %, with three a fiftieth.
        """
        reach = (
            t_quantile(SEQUENTIAL_PLAN[-1].beta, MOST_PAIRS - 1) * self.sd / math.sqrt(MOST_PAIRS)
        )
        return reach > 3 * margins.matter and abs(self.mean) - reach <= margins.ignore

    @property
    def p_value(self) -> float:
        """Return the one-sided p-value of "not slower at all", whichever analysis is the last: this
        analysis' own times ALPHA / (its alpha), since all alphas add up to ALPHA at most.
        """
        if self.pairs < self.fewest:
            return 1.0
        its = t_tail(self.mean / self.sd * math.sqrt(self.pairs), self.degrees)
        return min(1.0, its * ALPHA / self.analysis.alpha)


def bounds(
    log_ratios: Sequence[float],
    prior: Prior = PRIOR,
    fewest: int = MIN_PAIRS,
    alpha: float = ALPHA,
) -> Bounds:
    """Return the mean of the log-ratios and two bounds on the true value, ``mean -+ t * sd /
    sqrt(n)``.

    The bounds use the analysis' beta: over all analyses each bound misses the true value with
    probability BETA at most. A change is certain (``surely``) if a bound at the analysis' share of
    ``alpha`` excludes zero. Raises ValueError without a pair, with more than MOST_PAIRS, or for a
    log-ratio that is not finite.
    """
    count = len(log_ratios)
    if not 1 <= count <= MOST_PAIRS:
        raise ValueError(f"{count} pairs: the plan has 1 to {MOST_PAIRS}")
    if not all(map(math.isfinite, log_ratios)):
        raise ValueError(f"log-ratios {log_ratios!r}: not finite")
    mean = math.fsum(log_ratios) / count
    sample = math.fsum([(d - mean) ** 2 for d in log_ratios]) / max(count - 1, 1)
    sd, degrees = prior.moderated(sample, count)
    analysis = analysis_at(count)
    error = sd / math.sqrt(count)
    surely = abs(mean) > t_quantile(analysis.alpha * level_share(alpha), degrees) * error
    reach = t_quantile(analysis.beta, degrees) * error
    return Bounds(analysis, count, mean, mean - reach, mean + reach, surely, sd, degrees, fewest)


_REASONS = {
    Status.SLOWER: Reason.BEYOND_MARGIN,
    Status.FASTER: Reason.BEYOND_MARGIN,
    Status.SAME: Reason.WITHIN_MARGINS,
    Status.INCONCLUSIVE: Reason.UNDECIDED,
}


def measured(comparison: Comparison) -> Bounds:
    """Return the bounds on how much longer the mean step takes, by the pairs so far. Raises
    ValueError as bounds() does.
    """
    return bounds(comparison.log_ratios(), alpha=comparison.alpha)


def decision_of(
    comparison: Comparison,
    found: Bounds,
    status: Status,
    reason: Reason | None = None,
    final: bool = True,
    p_value: float = 1.0,
    **pcts: float,
) -> Decision:
    """Return a decision with this status by what a rule found, by default with the plan's reason
    and with these bounds. What the mean step can show, and what it shows with the pairs that were
    replaced, is the same by all rules.
    """
    log_ratios, sd_pct = comparison.log_ratios(), 100 * measured(comparison).sd
    replaced = [pair.log_ratio for pair in comparison.again if not pair.compiled]
    found_pcts = {
        "estimate_pct": 100 * math.expm1(found.mean),
        "low_pct": 100 * math.expm1(found.low),
        "high_pct": 100 * math.expm1(found.high),
    }
    return Decision(
        status=status,
        reason=reason or _REASONS[status],
        **(found_pcts | pcts),
        pairs=found.pairs,
        sd_pct=100 * found.sd,
        p_value=min(found.p_value, p_value),
        smallest_detectable_pct=smallest_detectable_pct(
            MOST_PAIRS, sd_pct, comparison.margins, alpha=comparison.alpha
        ),
        final=final,
        with_replaced_pct=100 * math.expm1(fmean([*log_ratios, *replaced])) if replaced else None,
    )


def by_plan(comparison: Comparison) -> Decision:
    """Decide by the sequential plan. INCONCLUSIVE while more pairs are wanted.

    Pairs decide only at the analyses of SEQUENTIAL_PLAN, or if they are the last because the time
    is up. The time limit must not depend on the pairs. The last pairs use up the error of the next
    analysis, and have the levels of the analysis before. An analysis may end the plan undecided, if
    the rest of it has no hope.
    """
    found, last = measured(comparison), comparison.out_of_time
    margins, status = comparison.margins, Status.INCONCLUSIVE
    ended = last or found.pairs >= MOST_PAIRS
    if last or any(analysis.pairs == found.pairs for analysis in SEQUENTIAL_PLAN):
        status = found.status(margins)
        ended |= status is not Status.INCONCLUSIVE or found.hopeless(margins)
    return decision_of(comparison, found, status, final=ended)


@lru_cache(maxsize=64)  # the loop that measures, the verdict and its report all call it
def smallest_detectable_pct(
    pairs: int,
    sd_pct: float,
    margins: Margins = MARGINS,
    prior: Prior = PRIOR,
    alpha: float = ALPHA,
) -> float:
    """Return the smallest true slowdown, in percent, that at least 95 of 100 runs call SLOWER
    within ``pairs``. It is infinite below MIN_PAIRS pairs.

    ``sd_pct`` is the true standard deviation of 100 * d, which is assumed to be normal. A run
    misses the slowdown if the last analysis does not say SLOWER, or if an earlier one said `same`.
    The sum of both chances bounds a miss. Raises ValueError unless ``sd_pct`` is in (0, inf).
    """
    if not 0 < sd_pct < math.inf:
        raise ValueError(f"sd_pct {sd_pct!r}: not positive and finite")
    if pairs < MIN_PAIRS:
        return math.inf
    # The last analysis is at ``pairs``: the plan has it, or the time is up there.
    planned = [analysis for analysis in SEQUENTIAL_PLAN if analysis.pairs < pairs]
    planned.append(analysis_at(pairs)._replace(pairs=pairs))
    reaches = [_mean_reaches(analysis, sd_pct, prior, margins, alpha) for analysis in planned]
    missed_below = np.array([*(same for same, _ in reaches[:-1]), reaches[-1][1]])
    errors = np.array([[sd_pct / 100 / math.sqrt(analysis.pairs)] for analysis in planned])
    chances = np.concatenate([_variances(analysis.pairs - 1)[1] for analysis in planned])

    def missed(true: float) -> float:
        distances = (true - missed_below) / errors / math.sqrt(2)
        return float(chances @ list(map(math.erfc, distances.ravel().tolist()))) / 2

    # `missed` falls as the true slowdown grows: bracket the solution, then bisect.
    low, high = margins.ignore, 2 * margins.matter
    while missed(high) > 0.05:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > 0.05 else (low, middle)
    return 100 * math.expm1(high)


def deciding_margins(sd_pct: float, margins: Margins = MARGINS, alpha: float = ALPHA) -> Margins:
    """Return the margins with which MOST_PAIRS pairs of such a deviation decide in 95 of 100 runs.
    A wider matter margin is a multiple of 0.1 %.
    """
    # The ignore margin stays, since it does not depend on noise which slowdown may be ignored.
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
    """Return two arrays with a value for each of POINTS sample variances: the mean below which an
    analysis says `same`, and the mean above which it says SLOWER. For normal pairs the mean and the
    variance are independent.
    """
    count = analysis.pairs
    variances = (sd_pct / 100) ** 2 * _variances(count - 1)[0]
    sd, degrees = prior.moderated(variances, count, np.maximum)
    levels = (analysis.alpha * level_share(alpha), analysis.beta)
    quantiles = (_quantiles(level, count - 1, prior.degrees)(degrees) for level in levels)
    sure, reach = (quantile * sd / math.sqrt(count) for quantile in quantiles)
    # As in Bounds.status(): `same` lies inside the matter margin and reaches into the ignore
    # margin.
    same_below = np.minimum(margins.matter - reach, margins.ignore + reach)
    return same_below, np.maximum(sure, margins.ignore + reach)


@lru_cache
def _quantiles(tail: float, least: float, more: float) -> Chebyshev:
    """Return Student's t quantile as a function of the degrees, exact to five digits."""
    quantile = np.vectorize(lambda degrees: t_quantile(tail, degrees), otypes=[float])
    return Chebyshev.interpolate(quantile, 12, domain=[least, least + more])


@lru_cache
def _variances(degrees: int) -> tuple[Any, Any]:
    """Return POINTS sample variances over the true one, and the chance of each."""
    chi = (np.arange(POINTS) + 0.5) / POINTS * (math.sqrt(degrees) + 6)
    density = chi ** (degrees - 1) * np.exp(-(chi**2) / 2)
    return chi**2 / degrees, density / density.sum()
