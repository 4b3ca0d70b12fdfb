"""The sequential plan: the mean of all pairs, compared with the margins at the plan's analyses.

This rule always returns a decision: INCONCLUSIVE while it wants more pairs.
"""

from stepguard.core.comparison import Comparison
from stepguard.core.verdict import Decision
from stepguard.judge.pair_statistics import Figures, decide, figures


def rule(comparison: Comparison) -> Decision:
    """Decide by the sequential plan."""
    return decide(measured(comparison), last=comparison.out_of_time)


def measured(comparison: Comparison) -> Figures:
    """Return what the pairs say of the mean step. All rules use these figures."""
    return figures(
        comparison.log_ratios(),
        comparison.margins,
        replaced=[pair.log_ratio for pair in comparison.again if not pair.compiled],
        alpha=comparison.alpha,
    )
