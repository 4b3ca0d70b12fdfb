"""The mean on a CPU, for a case that gates no time: it fails only for a slowdown beyond doubt.

This rule only says `same`, so it adds no false alarm. It ends the comparison early, once more pairs
could hardly show such a slowdown.
"""

from stepguard.core.comparison import Comparison
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs

# With LEAST_PAIRS or more it ends if their mean shows no slowdown. With DOUBTED_PAIRS it ends in
# doubt, too.
LEAST_PAIRS, DOUBTED_PAIRS = 2, 8


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` if the mean of the pairs is within the ignore margin. After MOST_PAIRS say it also
    up to the matter margin. Else return None: then the sequential plan goes on.
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
