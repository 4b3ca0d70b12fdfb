"""A pattern of slow steps that HEAD's launches have, and the other tree's launches do not.

The launches of one tree scatter less than pairs do. So HEAD's launches can show a pattern that a
search in the pairs would miss. The pairs then only have to confirm the size of this pattern.
"""

from stepguard.core.comparison import Comparison
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.sequential_plan import MOST_PAIRS
from stepguard.judge.slow_step_patterns import LEAST_PAIRS, REASONS, of_head_alone


def rule(comparison: Comparison) -> Decision | None:
    """Say SLOWER if HEAD alone has a pattern, the pairs confirm its size, and HEAD's mean step is
    slower by more than the ignore margin. If HEAD alone has a pattern but the rest fails, say
    INCONCLUSIVE.

    Return None without such a pattern. Also return None if the plan says SLOWER or FASTER, or
    `same` with an upper bound within the ignore margin.
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
