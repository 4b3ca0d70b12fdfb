"""The time of a case on a CPU that gates no time: only a slowdown beyond doubt fails.

The fastest block of each side counts: other work on a machine makes blocks slower, never faster.
"""

from functools import partial
from statistics import geometric_mean

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Launch
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision, MetricVerdict
from stepguard.judge.pair_statistics import measured

SLOWER_TIMES = 1.5  # as long as the other tree's fastest block
SLOWER_PAIRS = 3  # that have to show it, all of them
LIMIT_PCT = 100 * (SLOWER_TIMES - 1)


def rule(comparison: Comparison) -> Decision:
    """Say `same` after a pair that shows no slowdown, SLOWER after SLOWER_PAIRS that do."""
    ratios = [_fastest_ms(head) / _fastest_ms(base) for head, base in comparison.paired_launches()]
    # What is shown is what is judged: not the means of all steps.
    said = partial(measured(comparison).say, estimate_pct=_pct(geometric_mean(ratios)))
    if min(ratios) < SLOWER_TIMES:
        return said(Status.SAME, Reason.NO_SLOWDOWN)
    if len(ratios) < SLOWER_PAIRS:
        return said(Status.INCONCLUSIVE, final=comparison.out_of_time)
    # Unchanged code looks like this if a disturbance spares a block of the base in each pair and
    # none of HEAD's: with two blocks of a side at most one time in four a pair, were it even odds.
    low_pct, high_pct = _pct(min(ratios)), _pct(max(ratios))
    return said(Status.SLOWER, p_value=0.25 ** len(ratios), low_pct=low_pct, high_pct=high_pct)


def _pct(ratio: float) -> float:
    return 100 * (ratio - 1)


def decided(metric: MetricVerdict) -> bool:
    """Tell whether this rule decided a time that was too long."""
    return metric.status is Status.SLOWER and metric.limit_pct == LIMIT_PCT


def _fastest_ms(launch: Launch) -> float:
    return min(block.mean_ms for block in launch.blocks)
