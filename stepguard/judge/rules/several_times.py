"""A step that takes several times as long: decided after the fewest pairs.

Every block of HEAD takes at least SEVERAL_TIMES as long as every block of the other tree, although
blocks of both sides took turns. No noise of a machine looks like this.
"""

import math

from msgspec.structs import replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs

SEVERAL_TIMES = 3.0  # a busy machine of two cores runs a step at half its pace
# Two pairs are too few: if a disturbance hits each block by chance, unchanged code looks like this
# in more than ALPHA of comparisons.
LEAST_PAIRS = 3


def rule(comparison: Comparison) -> Decision | None:
    """Say SLOWER if HEAD's fastest block takes several times as long as the other's slowest."""
    head, base = (_blocks_ms(side) for side in (comparison.head, comparison.base))
    closest, farthest = min(head) / max(base), max(head) / min(base)
    beyond = closest >= max(SEVERAL_TIMES, math.exp(comparison.margins.matter))
    p_value = chance(len(head) + len(base))
    # If launches ran one after the other, one disturbance may have hit all blocks of a launch.
    few = comparison.pairs < LEAST_PAIRS or not comparison.together
    if few or not beyond or p_value > comparison.alpha:
        return None
    decided = mean_of_pairs.measured(comparison).say(Status.SLOWER, p_value=p_value)
    # With few pairs the plan's bounds say nothing. So the bounds are the smallest and the largest
    # ratio of two blocks.
    return replace(decided, low_pct=100 * (closest - 1), high_pct=100 * (farthest - 1))


def chance(blocks: int) -> float:
    """Return the probability that unchanged code looks like this. It assumes that a disturbance of
    such size hits each block independently with probability 1/2. Any other probability gives less.
    """
    return 0.5**blocks


def _blocks_ms(side: Evidence) -> list[float]:
    return [block.mean_ms for launch in side.launches for block in launch.blocks]
