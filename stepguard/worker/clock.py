"""Clocks: how one block of steps is timed on a GPU and on a CPU.

On a GPU a step's end is known only to the device, so events are recorded at step borders and read
after the block; the host's clock brackets the block, synchronize to synchronize. Neither is touched
inside the block. Timestamps are time.perf_counter_ns (CLOCK_MONOTONIC on Linux), which the host
shares: it finds the telemetry of a block by them.

Several ranks line up as the last thing before a block. What one of them still did after that, its
garbage collection say, the others would wait for in their first exchange: on two H200s up to 83 ms
in a block of 2.1 s, 4 %.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepguard.worker.device import synchronize, timing_event

Step = Callable[[], object]


@contextmanager
def quiet_gc() -> Iterator[None]:
    """Collect and freeze garbage, and stop collecting: a collection can outlast a step."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class CudaClock:
    """Times blocks with events on the current stream. Events are made once and reused."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize()

    def block(
        self,
        step: Step,
        steps: int,
        before_step: Callable[[int], None],
        line_up: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Run ``steps`` steps; return their times in ms, by events and by the host's clock."""
        while len(self._events) < steps + 1:
            self._events.append(timing_event())
        events = self._events[: steps + 1]
        with quiet_gc():
            synchronize()
            line_up()
            began = time.perf_counter_ns()
            events[0].record()
            first_enqueued = began
            for index in range(steps):
                before_step(index)
                step()
                events[index + 1].record()
                if index == 0:
                    first_enqueued = time.perf_counter_ns()
            synchronize()
            ended = time.perf_counter_ns()
        return {
            "began_ns": began,
            "ended_ns": ended,
            "wall_ms": (ended - began) / 1e6,
            "events_ms": events[0].elapsed_time(events[-1]),
            "step_ms": [a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)],
            "enqueue_ms": (first_enqueued - began) / 1e6,
        }


class HostClock:
    """Times blocks on a CPU, where a step has ended when it returns."""

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def block(
        self,
        step: Step,
        steps: int,
        before_step: Callable[[int], None],
        line_up: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Run ``steps`` steps; return their times in ms."""
        stamps = [0] * (steps + 1)
        with quiet_gc():
            line_up()
            stamps[0] = time.perf_counter_ns()
            for index in range(steps):
                before_step(index)
                step()
                stamps[index + 1] = time.perf_counter_ns()
        wall_ms = (stamps[-1] - stamps[0]) / 1e6
        return {
            "began_ns": stamps[0],
            "ended_ns": stamps[-1],
            "wall_ms": wall_ms,
            "events_ms": wall_ms,
            "step_ms": [(b - a) / 1e6 for a, b in zip(stamps, stamps[1:], strict=False)],
            "enqueue_ms": None,
        }
