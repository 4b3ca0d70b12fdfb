"""The sequential plan: at how many pairs an A/B comparison may decide, and with which error.

Pairs are measured until they decide, or until the plan has no more. Every interim analysis adds to
the error; SEQUENTIAL_PLAN says how much, and the errors add up (Bonferroni). `docs/judge.md` has
the error of the whole plan at any standard deviation.
"""

from typing import NamedTuple

from stepguard.core.margins import ALPHA

RUN_ALPHA = 0.01  # the chance that any case of a run is SLOWER although nothing changed
# The levels of the analyses are scaled by a case's share of ALPHA to this power. Scaled in
# proportion, they would err more often than promised: by 26 % with 50 cases and by 43 % with 100,
# if pairs are three to four times as noisy as the prior says.
LEVEL_POWER = 1.25
# For all analyses together: the chance of SLOWER although the true change is only the ignore
# margin, and of `same` although it is the matter margin.
BETA = 0.05

# If launches have two modes, a pair is above zero by chance at most one time in four, however far
# apart the modes are. Six pairs then agree by chance in 0.02 % of cases, four in 0.4 %.
MIN_PAIRS = 6
# Four pairs are enough if the profiles of both sides agree that other kernels make the time.
# Unchanged code has unchanged kernels, so this does not raise the error of the plan.
EXPLAINED_PAIRS = 4


class InterimAnalysis(NamedTuple):
    """A number of pairs at which the plan may decide, with one-sided nominal levels."""

    pairs: int
    alpha: float  # chance of SLOWER, and of FASTER, although nothing changed
    beta: float  # chance that a bound misses the true value, on each side


# Each analysis has about 1.4 times the pairs of the one before. The levels are nominal: where the
# true standard deviation is two to three times the prior's, the actual rates are higher, most of
# all with few pairs. The levels are chosen so that ALPHA and BETA still hold there, which is why
# their sums are below them. ALPHA is much smaller than BETA because it is much worse to fail code
# that did not change than to fail code that changed by just the ignore margin. With ALPHA for both,
# noise of 0.27 % would hide 0.5 %.
SEQUENTIAL_PLAN = (
    InterimAnalysis(4, 0.00005, 0.0055),  # its alpha is for changes that other kernels explain
    InterimAnalysis(6, 0.00005, 0.0055),
    InterimAnalysis(8, 0.00008, 0.0055),
    InterimAnalysis(12, 0.0001, 0.0055),
    InterimAnalysis(17, 0.00012, 0.0055),
    InterimAnalysis(24, 0.00014, 0.0055),
)
MOST_PAIRS = SEQUENTIAL_PLAN[-1].pairs


def level_of(cases: int) -> float:
    """Return the level of each case of a run that judges so many in pairs: ALPHA, or an equal share
    of RUN_ALPHA if that is smaller. It is known before anything is measured, so nothing is
    withdrawn afterwards.
    """
    return min(ALPHA, RUN_ALPHA / max(1, cases))


def level_share(alpha: float) -> float:
    """Return the factor by which the analyses' levels are scaled so that together they err by
    ``alpha``.
    """
    return float((alpha / ALPHA) ** LEVEL_POWER)


def may_decide(pairs: int, last: bool) -> bool:
    """Tell whether so many pairs may decide: at an analysis of the plan, or if time is up
    (``last``), which uses the error of the next analysis.
    """
    return last or any(analysis.pairs == pairs for analysis in SEQUENTIAL_PLAN)


def analysis_at(pairs: int) -> InterimAnalysis:
    """Return the latest analysis that ``pairs`` have reached; the first before it is reached."""
    reached = (analysis for analysis in SEQUENTIAL_PLAN if analysis.pairs <= pairs)
    return max(reached, default=SEQUENTIAL_PLAN[0])
