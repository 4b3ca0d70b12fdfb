"""The mean on a CPU, of a case that gates no time: only a slowdown beyond doubt fails.

This rule can only say `same`, so it adds no false alarm. It needs at least LEAST_PAIRS: with fewer,
every slowdown is still in doubt. Pairs that scatter by more than what matters say little, so then
it needs MOST_PAIRS.
"""

import math
from statistics import stdev

from stepguard.core.comparison import Comparison
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs

# Two pairs that show no slowdown on average end the comparison, unless they scatter. Eight pairs
# end it, too, where they leave a slowdown in doubt.
LEAST_PAIRS, MOST_PAIRS = 2, 8


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
    enough = LEAST_PAIRS if own_sd_pct(comparison) <= margins.matter_pct else MOST_PAIRS
    if pairs >= enough and slower_pct <= margins.ignore_pct:
        return figures.say(Status.SAME, Reason.NO_SLOWDOWN)
    if pairs >= MOST_PAIRS and slower_pct <= margins.matter_pct:
        return figures.say(Status.SAME, Reason.MAYBE_SLOWER)
    return None


def own_sd_pct(comparison: Comparison) -> float:
    """Return the standard deviation of the pairs alone, of 100 * log(head / base); without the
    prior, which is that of a quiet machine. inf with fewer than two pairs.
    """
    ratios = comparison.log_ratios()
    return 100 * stdev(ratios) if len(ratios) > 1 else math.inf
