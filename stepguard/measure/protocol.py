"""Warms a launch up until it is steady.

That is: enough load for the clocks to settle, no recompilation, no new device allocation, and
two neighbouring stretches of windows that agree. A fixed number of warm-up steps measures a slope
instead: an H200 gets 4 % slower within three seconds and stays so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

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


# Windows after the least load in which something was compiled or allocated: that does not end, and
# the rest of the warm-up's time would say no more.
RESTARTS = 6


class WarmUp:
    """Collects the windows of a warm-up, and decides when it is over."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.windows: list[int] = []  # steps of each
        self.seconds = 0.0
        self.step_s = 0.0
        self.problem = ""
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

    def add(self, ranks: Sequence[dict[str, Any]]) -> None:
        """Take a window's figures. A recompilation or a new allocation starts the series anew."""
        steps = len(ranks[0]["step_ms"])
        wall_s = max(rank["wall_ms"] for rank in ranks) / 1e3
        self.windows.append(steps)
        self.seconds += wall_s
        self.step_s = wall_s / steps
        settled = (
            sum(rank["compiled_graphs"] for rank in ranks),
            sum(rank.get("device_allocations", 0) for rank in ranks),
        )
        if settled != self._settled:
            # This window does not count either: what was compiled or allocated is in its times.
            self._restarts += self.seconds > self.protocol.warmup_min_s
            self._settled = settled
            self._window_ms, self._window_s = [], []
            return
        slowest = max(ranks, key=lambda rank: rank["wall_ms"])
        # Medians on a CPU, and of pairs: one slow step in ten is not drift.
        middle = fmean if self.protocol.of_means else median
        self._window_ms.append(middle(slowest["step_ms"]))
        self._window_s.append(wall_s)

    def done(self) -> bool:
        """Tell whether it is steady, or out of time (then ``problem`` says so)."""
        if self.seconds >= self.protocol.warmup_min_s and steady(
            self._window_ms, self._window_s, self.protocol.tolerance, self.protocol.share
        ):
            self.problem = ""  # it may go on after its time, until another launch's import is over
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
    """Tell whether a warm-up has ended: two neighbouring stretches of windows agree in step time.

    ``window_ms`` are step times of consecutive windows, ``window_s`` how long each took. The
    stretches are each a ``share`` of the load so far, and at least one window: they grow with the
    load, so that noise averages out while drift does not.
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
    """Return the time-weighted mean of the last windows that together last ``at_least_s``, and
    how many these are.
    """
    weight = total = 0.0
    for taken, index in enumerate(range(len(values) - 1, -1, -1), start=1):
        weight += seconds[index]
        total += seconds[index] * values[index]
        if weight >= at_least_s:
            return total / weight, taken
    return 0.0, 0
