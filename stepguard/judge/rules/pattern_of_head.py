"""A pattern that HEAD's launches have and the other tree's have not: never `same`.

HEAD's own launches scatter less than pairs do, so they can show a pattern that nobody would find in
the pairs. Where it is known, the pairs only have to confirm its size.
"""

from stepguard.core.comparison import Comparison
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.sequential_plan import MOST_PAIRS
from stepguard.judge.slow_step_patterns import LEAST_PAIRS, REASONS, of_head_alone


def rule(comparison: Comparison) -> Decision | None:
    """Say SLOWER where HEAD alone has a pattern, the pairs confirm its size and HEAD is slower on
    average, by more than the ignore margin. Else say INCONCLUSIVE, unless the plan says SLOWER,
    FASTER, or that HEAD as a whole is none the slower.
    """
    pattern = of_head_alone(comparison)
    if pattern is None:
        return None
    plan, margins = mean_of_pairs.rule(comparison), comparison.margins
    passes = plan.status is Status.SAME and plan.high_pct <= margins.ignore_pct
    if passes or plan.status in (Status.SLOWER, Status.FASTER):
        return None
    figures = mean_of_pairs.measured(comparison)
    enough = comparison.pairs >= LEAST_PAIRS[comparison.head.case["device"]]
    confirmed = enough and pattern.p_value <= comparison.alpha
    if confirmed and figures.estimate_pct > margins.ignore_pct:
        return figures.say(Status.SLOWER, REASONS[pattern.kind], p_value=pattern.p_value)
    last = comparison.out_of_time or comparison.pairs >= MOST_PAIRS
    return figures.say(Status.INCONCLUSIVE, final=last)
