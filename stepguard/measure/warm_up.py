"""Warm a launch up until it is steady.

Steady means: enough load for the clocks to settle, no recompilation, no new device allocation, and
two neighbouring stretches of windows that agree (docs/method.md). A fixed number of warm-up steps
would measure a slope.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median

from stepguard.core.replies import TimedBlock
from stepguard.measure.launch_durations import Protocol

# So many windows after the least load in which something was compiled or allocated end the warm-up:
# the step will not stop doing so, and more time would not help.
RESTARTS = 6


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
        """Add the ranks' answers for one window. If the step compiled or took memory from the
        device in it, all windows so far are dropped.
        """
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
        """Tell whether the launch is steady, or the warm-up is out of time. In the second case
        ``problem`` says why the launch is not steady.
        """
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
