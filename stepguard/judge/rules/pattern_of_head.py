"""A pattern that HEAD's launches have and the other tree's have not: never `same`.

What is late or periodic in HEAD alone is the code's doing, although steps scatter by too much for
pairs to prove it. This rule can only ask for more pairs, so it adds no SLOWER.
"""

from stepguard.core.comparison import Comparison
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.sequential_plan import MOST_PAIRS
from stepguard.judge.slow_step_patterns import of_head_alone


def rule(comparison: Comparison) -> Decision | None:
    """Say INCONCLUSIVE where HEAD alone has a pattern that adds more than the ignore margin, until
    its own rule or the plan says SLOWER, or the plan says that HEAD as a whole is none the slower.
    """
    if of_head_alone(comparison) is None:
        return None
    plan = mean_of_pairs.rule(comparison)
    passes = plan.status is Status.SAME and plan.high_pct <= comparison.margins.ignore_pct
    if passes or plan.status in (Status.SLOWER, Status.FASTER):
        return None
    last = comparison.out_of_time or comparison.pairs >= MOST_PAIRS
    return mean_of_pairs.measured(comparison).say(Status.INCONCLUSIVE, final=last)
