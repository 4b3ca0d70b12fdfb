"""The mean on a CPU, of a case that gates no time: only a slowdown beyond doubt fails.

This rule can only say `same`, so it adds no false alarm. It needs at least LEAST_PAIRS: with fewer,
every slowdown is still in doubt.
"""

from stepguard.core.comparison import Comparison
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs

# Two pairs that show no slowdown on average end the comparison, so do eight that leave it in doubt.
LEAST_PAIRS, DOUBTED_PAIRS = 2, 8


def rule(comparison: Comparison) -> Decision | None:
    """End early what only a slowdown decides: as soon as the pairs' mean shows none, and where it
    is in doubt after a few, unless the mean itself would matter.
    """
    if not comparison.glance:
        return None
    if mean_of_pairs.rule(comparison).status is not Status.INCONCLUSIVE:
        return None
    figures = mean_of_pairs.measured(comparison)
    margins, slower_pct, pairs = comparison.margins, figures.estimate_pct, comparison.pairs
    if pairs >= LEAST_PAIRS and slower_pct <= margins.ignore_pct:
        return figures.say(Status.SAME, Reason.NO_SLOWDOWN)
    if pairs >= DOUBTED_PAIRS and slower_pct <= margins.matter_pct:
        return figures.say(Status.SAME, Reason.MAYBE_SLOWER)
    return None
