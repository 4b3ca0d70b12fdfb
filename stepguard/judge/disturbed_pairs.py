"""Pairs that are measured again: something beside the code may have slowed a side down."""

import math
from dataclasses import dataclass, replace

from stepguard.core.comparison import LaunchPair
from stepguard.core.evidence import Launch
from stepguard.core.margins import PRIOR

MOST_REPLACED = 3  # pairs that may be replaced; with more the machine is noisy, and they count
# A pair is out of line if the figure of out_of_line() is above so many standard deviations of
# pairs: 1.1 % by default. The largest figure of 73 pairs on H200s was 0.97 %. A block that is slow
# by 3 % gives 2.1 %.
OUT_OF_LINE_SDS = 5.5


def out_of_line(head: Launch, base: Launch) -> bool:
    """Tell whether a pair's blocks differ within a side by more than they do on a quiet machine.

    The figure is the root of the sum of squares of both sides' differences (in logs, between a
    side's first and last block), divided by the square root of two. These differences are
    orthogonal to the pair's log-ratio. So leaving out such a pair shifts no estimate, whichever
    side is slower.
    """
    if not (head.has_times() and base.has_times()):
        return False
    within = [math.log(side.blocks[0].mean_ms / side.blocks[-1].mean_ms) for side in (head, base)]
    return math.hypot(*within) / math.sqrt(2) > OUT_OF_LINE_SDS * PRIOR.sd_pct / 100


@dataclass(frozen=True)
class Pairs:
    """The pairs that count, those that were replaced, and one that waits for the next one."""

    counted: tuple[LaunchPair, ...] = ()
    replaced: tuple[LaunchPair, ...] = ()
    waiting: LaunchPair | None = None

    def take(self, pair: LaunchPair, on_gpu: bool) -> "Pairs":
        """Return these pairs and a new one. It waits for the next one if a side compiled in a timed
        block, or, on a GPU, if it is out of line. If the next one is like that, too, both count: it
        was no accident. Else the next one replaces it, and it is kept for the record only.
        """
        odd = pair.compiled or on_gpu and out_of_line(pair.head, pair.base)
        if odd and self.waiting is None and len(self.replaced) < MOST_REPLACED:
            return replace(self, waiting=pair)
        if self.waiting is None or odd:
            return Pairs((*self.ended().counted, pair), self.replaced)
        return Pairs((*self.counted, pair), (*self.replaced, self.waiting))

    def ended(self) -> "Pairs":
        """Return these pairs if none follows: one that waits counts."""
        waits = (self.waiting,) if self.waiting else ()
        return Pairs((*self.counted, *waits), self.replaced)
