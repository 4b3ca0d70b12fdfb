"""Warm a launch up until it is steady, and say how long launches warm up and run, by device.

Steady means: enough load for the clocks to settle, no recompilation, no new device allocation, and
two neighbouring stretches of windows that agree (docs/method.md). A fixed number of warm-up steps
would measure a slope.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from stepguard.core.case import Case
from stepguard.core.comparison import gates_times
from stepguard.core.device import CPU, GPU
from stepguard.core.replies import TimedBlock


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
    lead_s: float = 0.0  # untimed, before each block: memory is allocated again, and clocks settle
    ahead: int = 1  # how many launches or pairs import while one is built

    @property
    def timed_s(self) -> float:
        """Return about how many seconds a launch's warm-up and blocks take."""
        return 2 * self.warmup_min_s + self.blocks * self.block_s


PROTOCOLS = {
    # At its power cap a card's clock dips about once a second, and single steps by 5 %. Medians of
    # windows of a second then scatter twice as much as means (96e72680:studies/warm_up).
    GPU: Protocol(4.0, 60.0, 1.0, 0.004, blocks=3, block_s=2.0, share=1 / 3, of_means=True),
    CPU: Protocol(0.5, 3.0, 0.25, 0.1, blocks=3, block_s=0.5, segment_s=0.3, settling_segments=1),
}
# On an H200 at its power cap the steps scatter, not the launches, so only timed seconds help. More
# pairs are better than longer ones, since they also show the scatter. A pair has 13.5 s of load, of
# which 8 s are timed: 8 pairs take two minutes of GPU time, 22 take five. A profile of a launch
# takes 5 s more. The warm-up is short, since both sides run in turns and drift alike.
PAIR_PROTOCOLS = {
    GPU: Protocol(1.5, 20.0, 0.5, 0.02, blocks=2, block_s=2.0, lead_s=0.5, ahead=2),
    CPU: Protocol(0.5, 2.0, 0.25, 0.1, blocks=2, block_s=0.5, lead_s=0.1),  # few cores
}
# Shorter durations for times that are only shown. On a CPU they save 0.9 s a launch in blocks and
# up to 2 s in the warm-up. On a GPU that waits for its host they save up to a minute.
UNGATED_BLOCK_S = 0.2  # of a block
UNGATED_WARMUP_S = 1.0  # the most that a warm-up takes, unless its least is longer
# So many windows after the least load in which something was compiled or allocated end the warm-up:
# the step will not stop doing so, and more time would not help.
RESTARTS = 6


def protocol_of(case: Case, in_pairs: bool = False) -> Protocol:
    """Return the durations of a case's launches. Alone they are shorter without a gated time."""
    usual = (PAIR_PROTOCOLS if in_pairs else PROTOCOLS)[case.device]
    if in_pairs or gates_times(case):
        return usual
    return replace(
        usual,
        warmup_cap_s=max(usual.warmup_min_s, UNGATED_WARMUP_S),
        block_s=min(usual.block_s, UNGATED_BLOCK_S),
    )


class WarmUp:
    """Collects the windows of a warm-up, and decides when it is over."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.windows: list[int] = []  # steps of each window
        self.seconds = 0.0
        self.step_s = 0.0
        self.problem = ""  # why the launch is not steady; see done()
        self._window_ms: list[float] = []
        self._window_s: list[float] = []
        self._settled: tuple[int, int] | None = None  # graphs, device allocations
        self._restarts = 0  # of the series, once the least load is over

    @property
    def steps(self) -> int:
        """Return how many steps ran."""
        return sum(self.windows)

    def next_steps(self) -> int:
        """Return the steps of the next window: one at first, then as many as fill ``window_s``."""
        return max(1, round(self.protocol.window_s / self.step_s)) if self.step_s else 1

    def add(self, ranks: Sequence[TimedBlock]) -> None:
        """Add the answers for one window. If the step compiled in it, all so far are dropped."""
        steps = len(ranks[0].step_ms)
        wall_s = max(rank.wall_ms for rank in ranks) / 1e3
        self.windows.append(steps)
        self.seconds += wall_s
        self.step_s = wall_s / steps
        settled = (
            sum(rank.compiled_graphs for rank in ranks),
            sum(rank.device_allocations for rank in ranks),
        )
        if settled != self._settled:
            # This window does not count either: its times include that compilation or allocation.
            self._restarts += self.seconds > self.protocol.warmup_min_s
            self._settled = settled
            self._window_ms, self._window_s = [], []
            return
        slowest = max(ranks, key=lambda rank: rank.wall_ms)
        # Medians count on a CPU and in pairs, so that one slow step in ten is no drift.
        middle = fmean if self.protocol.of_means else median
        self._window_ms.append(middle(slowest.step_ms))
        self._window_s.append(wall_s)

    def done(self) -> bool:
        """Tell whether the launch is steady, or out of time: then ``problem`` says why."""
        if self.seconds >= self.protocol.warmup_min_s and steady(
            self._window_ms, self._window_s, self.protocol.tolerance, self.protocol.share
        ):
            # done() is asked again if the warm-up goes on until another launch has imported.
            self.problem = ""
            return True
        if self._restarts >= RESTARTS:
            self.problem = (
                f"not steady after {self.seconds:.0f} s: it compiles or takes device memory anew "
                f"again and again, {self._restarts} times since second "
                f"{self.protocol.warmup_min_s:g}"
            )
            return True
        if self.seconds < self.protocol.warmup_cap_s:
            return False
        last = ", ".join(f"{ms:.2f}" for ms in self._window_ms[-4:]) or "none without allocation"
        self.problem = f"not steady after {self.seconds:.0f} s; last windows: {last} ms per step"
        return True


def steady(
    window_ms: Sequence[float], window_s: Sequence[float], tolerance: float, share: float = 0.25
) -> bool:
    """Tell whether the last two neighbouring stretches of windows agree in step time, within the
    relative ``tolerance``.

    ``window_ms`` are step times of consecutive windows, ``window_s`` how long each took. Each
    stretch is a ``share`` of the load so far, and at least one window. The stretches grow with the
    load, so noise averages out and drift does not.
    """
    least_s = share * sum(window_s)
    newer, taken = _tail_mean(window_ms, window_s, least_s)
    older, taken_older = _tail_mean(window_ms[: len(window_ms) - taken], window_s, least_s)
    if not taken or not taken_older:
        return False
    return abs(math.log(newer / older)) <= tolerance


def _tail_mean(
    values: Sequence[float], seconds: Sequence[float], at_least_s: float
) -> tuple[float, int]:
    """Return the time-weighted mean of the last windows that together last ``at_least_s``, and the
    number of these windows. Both are 0 if all windows together are too short.
    """
    weight = total = 0.0
    for taken, index in enumerate(range(len(values) - 1, -1, -1), start=1):
        weight += seconds[index]
        total += seconds[index] * values[index]
        if weight >= at_least_s:
            return total / weight, taken
    return 0.0, 0
