"""The mean on a CPU, for a case that gates no time. Such a case fails only for a slowdown beyond
doubt.

This rule only says `same`, so it adds no false alarm. It ends the comparison once more pairs would
hardly show such a slowdown. If pairs scatter by more than the matter margin, it waits for
DOUBTED_PAIRS.
"""

import math
from statistics import stdev

from stepguard.core.comparison import Comparison
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs

# From LEAST_PAIRS on the rule says `same` if the pairs agree and their mean shows no slowdown. From
# DOUBTED_PAIRS on it also does so in doubt.
LEAST_PAIRS, DOUBTED_PAIRS = 2, 8


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` if the mean of the pairs is not above the ignore margin. After DOUBTED_PAIRS also
    say it up to the matter margin. Return None otherwise, and if the sequential plan decides.
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
    """Return the standard deviation of 100 * log(head / base) over the pairs; inf with fewer than
    two. The prior does not count, since it is a quiet machine's.
    """
    ratios = comparison.log_ratios()
    return 100 * stdev(ratios) if len(ratios) > 1 else math.inf
