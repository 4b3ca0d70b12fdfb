"""The sequential plan: at how many pairs an A/B comparison may decide, and at which error.

Pairs are measured until they decide or there are no more. Every interim analysis costs error:
SEQUENTIAL_PLAN says how much. What the whole plan errs by, at any standard deviation, is in
`docs/judge.md`. The analyses' errors add up (Bonferroni).
"""

from typing import NamedTuple

from stepguard.core.margins import ALPHA

RUN_ALPHA = 0.01  # of a run: that any of its cases is SLOWER although nothing changed
# By which power of its share of ALPHA a case's level scales those of the analyses: in proportion
# they would be exceeded by 26 % with 50 cases and 43 % with 100, at pairs three and four times as
# noisy as the prior says.
LEVEL_POWER = 1.25
# Of all analyses together: SLOWER although the true change is only the ignore margin, and `same`
# although it is the matter margin.
BETA = 0.05

# Two modes of a launch put a pair above zero at most one time in four, so that six pairs agree by
# chance 0.02 % of the time, but four do 0.4 %, however far apart the modes are.
MIN_PAIRS = 6
# Where the profiles, of a fifth launch of each side, agree that other kernels make the time. What
# did not change has the same kernels, so that no error of the whole plan grows by it.
EXPLAINED_PAIRS = 4


class InterimAnalysis(NamedTuple):
    """A moment at which the pairs so far may decide; one-sided nominal levels."""

    pairs: int
    alpha: float  # of SLOWER and of FASTER, where nothing changed
    beta: float  # of a bound, on either side: what is said of a margin


# Each analysis has about 1.4 times the pairs of the one before. The levels are nominal: where the
# true standard deviation is two to three times the prior's they are exceeded, most with few pairs.
# They are chosen so that ALPHA and BETA still hold there, hence their sums are below them. To call
# a step slower that did not change is much worse than to call one slower that changed by what we
# ignore: at ALPHA for both, noise of 0.27 % would hide 0.5 %.
SEQUENTIAL_PLAN = (
    InterimAnalysis(4, 0.00005, 0.0055),  # alpha for what other kernels explain alone
    InterimAnalysis(6, 0.00005, 0.0055),
    InterimAnalysis(8, 0.00008, 0.0055),
    InterimAnalysis(12, 0.0001, 0.0055),
    InterimAnalysis(17, 0.00012, 0.0055),
    InterimAnalysis(24, 0.00014, 0.0055),
)
MOST_PAIRS = SEQUENTIAL_PLAN[-1].pairs


def level_of(cases: int) -> float:
    """Return the level of each case of a run that judges so many in pairs: ALPHA, or an equal share
    of RUN_ALPHA. It is known before anything is measured, so that nothing is withdrawn afterwards.
    """
    return min(ALPHA, RUN_ALPHA / max(1, cases))


def level_share(alpha: float) -> float:
    """Return the factor of the analyses' levels that makes them err by ``alpha`` together."""
    return float((alpha / ALPHA) ** LEVEL_POWER)


def may_decide(pairs: int, last: bool) -> bool:
    """Tell whether so many pairs may decide: at an analysis of the plan, or since time is up
    (``last``), which spends the error of the next one.
    """
    return last or any(analysis.pairs == pairs for analysis in SEQUENTIAL_PLAN)


def analysis_at(pairs: int) -> InterimAnalysis:
    """Return the latest analysis that ``pairs`` have reached; the first before it is reached."""
    reached = (analysis for analysis in SEQUENTIAL_PLAN if analysis.pairs <= pairs)
    return max(reached, default=SEQUENTIAL_PLAN[0])
