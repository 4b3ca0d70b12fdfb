"""How long a launch warms up, and how many timed blocks of which length it has, by device."""

from dataclasses import dataclass, replace

from stepguard.core.case import Case
from stepguard.core.comparison import gates_times
from stepguard.core.device import CPU, GPU


@dataclass(frozen=True)
class Protocol:
    """The durations of a launch. A GPU needs seconds of load until its clocks settle."""

    warmup_min_s: float
    warmup_cap_s: float
    window_s: float
    tolerance: float  # relative; in a steady state two stretches of windows agree within it
    blocks: int
    block_s: float
    retries: int = 3  # blocks of a launch that may be repeated because they were disturbed
    # Two variants of the step alternate in segments of this length. On an H200 at its power cap
    # pairs of segments scatter by 0.25 % of a step (standard deviation), since the clocks move. The
    # mean of six pairs is right to 0.25 %.
    segment_s: float = 2.0
    pairs_in_a_series: int = 6  # even: a series is P V V P ... without a pause
    settling_segments: int = 3  # before the first series; one before each other series
    share: float = 0.25  # length of each of the two stretches, as a share of the load so far
    of_means: bool = False  # a window's time is the mean of its steps, not their median

    @property
    def timed_s(self) -> float:
        """Return about how many seconds a launch's warm-up and blocks take. The warm-up is assumed
        to take twice its least.
        """
        return 2 * self.warmup_min_s + self.blocks * self.block_s


PROTOCOLS = {
    # At its power cap a card's clock dips about once a second, and single steps by 5 %. Medians of
    # windows of a second then scatter twice as much as means (studies/warm_up).
    GPU: Protocol(4.0, 60.0, 1.0, 0.004, blocks=3, block_s=2.0, share=1 / 3, of_means=True),
    CPU: Protocol(0.5, 3.0, 0.25, 0.1, blocks=3, block_s=0.5, segment_s=0.3, settling_segments=1),
}


# Shorter durations for times that are only shown. On a CPU they save 0.9 s a launch in blocks and
# up to 2 s in the warm-up. On a GPU that waits for its host they save up to a minute.
UNGATED_BLOCK_S = 0.2  # of a block
UNGATED_WARMUP_S = 1.0  # the most that a warm-up takes, unless its least is longer


def protocol_of(case: Case) -> Protocol:
    """Return the durations of a case's launches. They are shorter if the case gates no time."""
    usual = PROTOCOLS[case.device]
    if gates_times(case):
        return usual
    return replace(
        usual,
        warmup_cap_s=max(usual.warmup_min_s, UNGATED_WARMUP_S),
        block_s=min(usual.block_s, UNGATED_BLOCK_S),
    )
