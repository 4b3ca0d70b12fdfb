"""The mean on a CPU, for a case that gates no time: it fails only for a slowdown beyond doubt.

This rule only says `same`, so it adds no false alarm. It ends the comparison early, once more pairs
could hardly show such a slowdown. Pairs that scatter by more than what matters show little, so then
it waits for DOUBTED_PAIRS.
"""

import math
from statistics import stdev

from stepguard.core.comparison import Comparison
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs

# With LEAST_PAIRS or more it ends if they agree and their mean shows no slowdown. With
# DOUBTED_PAIRS it ends in doubt, too.
LEAST_PAIRS, DOUBTED_PAIRS = 2, 8


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` if the mean of the pairs is within the ignore margin. After DOUBTED_PAIRS say it
    also up to the matter margin. Else return None: then the sequential plan goes on.
    """
    if not comparison.glance:
        return None
    if mean_of_pairs.rule(comparison).status is not Status.INCONCLUSIVE:
        return None
    figures = mean_of_pairs.measured(comparison)
    margins, slower_pct, pairs = comparison.margins, figures.estimate_pct, comparison.pairs
    enough = LEAST_PAIRS if own_sd_pct(comparison) <= margins.matter_pct else DOUBTED_PAIRS
    if pairs >= enough and slower_pct <= margins.ignore_pct:
        return figures.say(Status.SAME, Reason.NO_SLOWDOWN)
    if pairs >= DOUBTED_PAIRS and slower_pct <= margins.matter_pct:
        return figures.say(Status.SAME, Reason.MAYBE_SLOWER)
    return None


def own_sd_pct(comparison: Comparison) -> float:
    """Return the standard deviation of the pairs alone, of 100 * log(head / base); without the
    prior, which is that of a quiet machine. inf with fewer than two pairs.
    """
    ratios = comparison.log_ratios()
    return 100 * stdev(ratios) if len(ratios) > 1 else math.inf
