"""Warm a launch up until it is steady.

Steady means: enough load for the clocks to settle, no recompilation, no new device allocation, and
two neighbouring stretches of windows that agree (docs/method.md). A fixed number of warm-up steps
would measure a slope.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from stepguard.measure.launch_durations import Protocol

# After the least load, so many windows in which something was compiled or allocated end the
# warm-up: it will not stop, and more time would not help.
RESTARTS = 6


class WarmUp:
    """Collects the windows of a warm-up, and decides when it is over."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.windows: list[int] = []  # steps of each window
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
            # This window does not count either: its times contain what was compiled or allocated.
            self._restarts += self.seconds > self.protocol.warmup_min_s
            self._settled = settled
            self._window_ms, self._window_s = [], []
            return
        slowest = max(ranks, key=lambda rank: rank["wall_ms"])
        # Medians on a CPU, and for pairs: one slow step in ten is no drift.
        middle = fmean if self.protocol.of_means else median
        self._window_ms.append(middle(slowest["step_ms"]))
        self._window_s.append(wall_s)

    def done(self) -> bool:
        """Tell whether it is steady, or out of time. ``problem`` then says why it is not steady."""
        if self.seconds >= self.protocol.warmup_min_s and steady(
            self._window_ms, self._window_s, self.protocol.tolerance, self.protocol.share
        ):
            self.problem = ""  # it may go on after its time, until another launch has imported
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
    number of these windows.
    """
    weight = total = 0.0
    for taken, index in enumerate(range(len(values) - 1, -1, -1), start=1):
        weight += seconds[index]
        total += seconds[index] * values[index]
        if weight >= at_least_s:
            return total / weight, taken
    return 0.0, 0
