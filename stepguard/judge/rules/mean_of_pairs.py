"""The sequential plan: the mean of all pairs, compared with the margins at the plan's analyses.

This rule always returns a decision: INCONCLUSIVE while it wants more pairs. SLOWER and FASTER need
six pairs, or four if the profiles of both sides explain the change.
"""

import math
from collections.abc import Collection
from statistics import fmean

from stepguard.core.comparison import Comparison
from stepguard.core.explanation import Explanation
from stepguard.core.verdict import Decision
from stepguard.explain.causes import explain
from stepguard.explain.match_kernels import Match
from stepguard.judge.compare_profiles import other_kernels
from stepguard.judge.pair_statistics import Figures, decide, figures
from stepguard.judge.sequential_plan import EXPLAINED_PAIRS, MIN_PAIRS


def rule(comparison: Comparison) -> Decision:
    """Decide by the sequential plan."""
    return decide(measured(comparison), last=comparison.out_of_time)


def measured(comparison: Comparison) -> Figures:
    """Return what the pairs say of the mean step. All rules use these figures."""
    ratios = comparison.log_ratios()
    few = EXPLAINED_PAIRS <= len(ratios) < MIN_PAIRS
    explained = few and other_kernels(explanation(comparison), math.expm1(fmean(ratios)))
    return figures(
        ratios,
        comparison.margins,
        replaced=[pair.log_ratio for pair in comparison.again if not pair.compiled],
        fewest=EXPLAINED_PAIRS if explained else MIN_PAIRS,
        alpha=comparison.alpha,
    )


def explanation(comparison: Comparison, judged: Collection[Match] = ()) -> Explanation | None:
    """Return what the two sides' profiles say about the change; None if a side has no profile.
    ``judged`` is as in ``explain``.
    """
    before, after = comparison.base.counted.profile, comparison.head.counted.profile
    return explain(before, after, judged) if before and after else None
