"""Slow steps within launches: HEAD is SLOWER because of some of its steps, whatever the mean of all
steps says.
"""

import math

from stepguard.core.comparison import Comparison
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.slow_step_patterns import REASONS, of_pairs


def rule(comparison: Comparison) -> Decision | None:
    """Say SLOWER if HEAD's steps are slower from some step on, at every n-th step, or more with
    each step, and the other tree's are not. If the mean is slower by more than the slow steps add
    to it, the mean is the reason.
    """
    slow = of_pairs(comparison)
    if slow is None:
        return None
    by_mean = mean_of_pairs.rule(comparison)
    more = by_mean.status is Status.SLOWER and by_mean.low_pct > 100 * math.expm1(slow.adds)
    reason = by_mean.reason if more else REASONS[slow.kind]
    figures = mean_of_pairs.measured(comparison)
    return figures.say(Status.SLOWER, reason, p_value=slow.p_value)
