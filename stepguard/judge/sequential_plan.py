"""The sequential plan: after how many pairs an A/B comparison may decide, and with which error.

Pairs are measured until they decide, or until the plan ends. Every interim analysis adds to the
error. SEQUENTIAL_PLAN says how much, and the errors are summed (Bonferroni). `docs/judge.md` has
the error of the whole plan for several standard deviations.
"""

from functools import lru_cache
from typing import NamedTuple

from stepguard.core.margins import ALPHA

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
    """Return the level of each case in a run that judges so many in pairs, known before any is
    measured: ALPHA, or an equal share of RUN_ALPHA if that is smaller.
    """
    return min(ALPHA, RUN_ALPHA / max(1, cases))


def level_share(alpha: float) -> float:
    """Return by what the analyses' levels are scaled so that together they err by ``alpha``."""
    return float((alpha / ALPHA) ** LEVEL_POWER)


def may_decide(pairs: int, last: bool) -> bool:
    """Tell whether so many pairs may decide: at an analysis of the plan, or if time is up."""
    return last or any(analysis.pairs == pairs for analysis in SEQUENTIAL_PLAN)


@lru_cache
def analysis_at(pairs: int) -> InterimAnalysis:
    """Return the latest analysis that ``pairs`` have reached; the first if they reached none."""
    reached = (analysis for analysis in SEQUENTIAL_PLAN if analysis.pairs <= pairs)
    return max(reached, default=SEQUENTIAL_PLAN[0])
