"""How long a launch warms up, and how many timed blocks of which length it has, by device."""

from dataclasses import dataclass, replace

from stepguard.core.case import Case
from stepguard.core.comparison import gates_times
from stepguard.core.device import CPU, GPU


@dataclass(frozen=True)
class Protocol:
    """Sets a launch's durations. A GPU's clocks settle in seconds; a CPU is not judged."""

    warmup_min_s: float
    warmup_cap_s: float
    window_s: float
    tolerance: float  # two windows of a steady state agree within this
    blocks: int
    block_s: float
    retries: int = 3  # disturbed blocks that are measured again, per launch
    # Two variants of the step alternate in such segments. On an H200 at its power cap pairs of
    # them differ by 0.25 % of a step (sd), since the clocks move: six pairs say 0.25 % either way.
    segment_s: float = 2.0
    pairs_in_a_series: int = 6  # even: a series is P S S P ... without a pause
    settling_segments: int = 3  # before the first series, one before each other
    # Of the load so far, in each of the two stretches that are compared; and whether a window
    # counts with the mean of its steps, or with their median.
    share: float = 0.25
    of_means: bool = False

    @property
    def timed_s(self) -> float:
        """Return how long a launch's timed steps take, about: its warm-up is rarely the least."""
        return 2 * self.warmup_min_s + self.blocks * self.block_s


PROTOCOLS = {
    # At its power cap a card's clock dips about once a second, single steps by 5 %: medians of
    # windows of a second then scatter twice as much as means do (studies/warm_up).
    GPU: Protocol(4.0, 60.0, 1.0, 0.004, blocks=3, block_s=2.0, share=1 / 3, of_means=True),
    CPU: Protocol(0.5, 3.0, 0.25, 0.1, blocks=3, block_s=0.5, segment_s=0.3, settling_segments=1),
}


# Of times that are only shown: on a CPU 0.9 s a launch less in blocks and up to 2 s less in the
# warm-up, on a GPU that waits for its host up to a minute less.
GLANCE_S = 0.2  # a block
GLANCE_CAP_S = 1.0  # the warm-up, or its least where that is more


def protocol_of(case: Case) -> Protocol:
    """Return the durations of a case's launches; shorter ones where its times only inform."""
    usual = PROTOCOLS[case.device]
    if gates_times(case):
        return usual
    return replace(
        usual,
        warmup_cap_s=max(usual.warmup_min_s, GLANCE_CAP_S),
        block_s=min(usual.block_s, GLANCE_S),
    )
