"""What the looks of the plan err by together, integrated instead of simulated."""

import numpy as np
from scipy import stats

from stepguard.core.margins import Prior
from stepguard.judge.pair_statistics import MIN_PAIRS, SEQUENTIAL_PLAN


def errors(prior: Prior, ratio: float, share: float = 1.0, points: int = 1000) -> dict[str, float]:
    """By level, the chances that a look's bound passes the truth, added up, for normal pairs whose
    sd is ``ratio`` times the prior's; over ``points`` of the sample variance. ``share`` is that of
    alpha that a case among many has.
    """
    sd, at = ratio * prior.sd_pct / 100, (np.arange(points) + 0.5) / points
    total = {"alpha": 0.0, "beta": 0.0}
    for look in SEQUENTIAL_PLAN:
        n = look.pairs
        samples = sd**2 * stats.chi2.ppf(at, n - 1) / (n - 1)
        used, degrees = prior.moderated(samples, n, np.maximum)
        for name, level in look._asdict().items():
            if name == "beta" or (name == "alpha" and n >= MIN_PAIRS):
                its = level * share if name == "alpha" else level
                reach = stats.t.ppf(1 - its, degrees) * used
                total[name] += float(stats.norm.cdf(-reach / sd).mean())
    return total
