"""What the plan of looks can find, by the noise of a pair.

Not in `looks.py`: that is imported with every case, on every rank, and scipy takes a fifth as long
to import as torch does.
"""

import math
from statistics import fmean

from scipy.special import chdtri, ndtr, stdtrit

from stepguard.judge.sequential_plan import MIN_PAIRS, SEQUENTIAL_PLAN, InterimAnalysis, analysis_at
from stepguard.margins import MARGINS, PRIOR, Margins, Prior

POINTS = 200  # of the quadrature over the sample variance: good to 1 % of an error rate


def smallest_detectable_pct(
    pairs: int, sd_pct: float, margins: Margins = MARGINS, prior: Prior = PRIOR
) -> float:
    """The true slowdown in percent that is SLOWER within ``pairs`` in 95 of 100 runs, or more.

    ``sd_pct`` is the true standard deviation of 100 * d, normal. A run misses if the last look does
    not say SLOWER or an earlier one said `same`; the bound is the sum of both, so the power is at
    least what is stated. inf under MIN_PAIRS pairs. Raises ValueError for a bad ``sd_pct``.
    """
    if not 0 < sd_pct < math.inf:
        raise ValueError(f"sd_pct {sd_pct!r}: not positive and finite")
    if pairs < MIN_PAIRS:
        return math.inf
    looks = [look for look in SEQUENTIAL_PLAN if look.pairs < pairs]
    looks.append(analysis_at(pairs)._replace(pairs=pairs))
    *earlier, end = (_Reach(look, sd_pct, prior, margins) for look in looks)

    def missed(true: float) -> float:
        return sum(reach.same(true) for reach in earlier) + end.not_slower(true)

    low, high = margins.ignore, 2 * margins.matter
    while missed(high) > 0.05:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > 0.05 else (low, middle)
    return 100 * math.expm1(high)


class _Reach:
    """What the mean has to reach at one look, over what the sample variance may be.

    For normal pairs the mean and the variance are independent, and ``(n - 1) * s**2 / sd**2`` is
    chi-square on n - 1 degrees: its quantiles at POINTS midpoints stand for it.
    """

    def __init__(
        self, look: InterimAnalysis, sd_pct: float, prior: Prior, margins: Margins
    ) -> None:
        self.error = sd_pct / 100 / math.sqrt(look.pairs)
        self.slower_from: list[float] = []
        self.same_below: list[float] = []
        for point in range(POINTS):
            chi = float(chdtri(look.pairs - 1, (point + 0.5) / POINTS))
            sample = (sd_pct / 100) ** 2 * chi / (look.pairs - 1)
            sd, degrees = prior.moderated(sample, look.pairs)
            error = sd / look.pairs**0.5
            sure, reach = (
                float(stdtrit(degrees, 1 - level)) * error for level in (look.alpha, look.beta)
            )
            self.slower_from.append(max(sure, margins.ignore + reach))
            self.same_below.append(min(margins.matter - reach, margins.ignore + reach))

    def not_slower(self, true: float) -> float:
        """Chance that the mean does not reach SLOWER."""
        return fmean(float(ndtr((one - true) / self.error)) for one in self.slower_from)

    def same(self, true: float) -> float:
        """Chance that the mean lies low enough for `same`."""
        return fmean(float(ndtr((one - true) / self.error)) for one in self.same_below)
