"""Clocks: how one block of steps is timed on a GPU and on a CPU.

On a GPU a step's end is known only to the device, so CUDA events are recorded at step borders and
read after the block; the host clock brackets the block, synchronize to synchronize. Neither is
touched inside the block. Timestamps are time.perf_counter_ns (CLOCK_MONOTONIC on Linux), which the
host shares: it finds the telemetry of a block by them.

Several ranks line up as the last thing before a block. What one of them still did after that, its
garbage collection say, the others would wait for in their first exchange: on two H200s up to 83 ms
in a block of 2.1 s, 4 %.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

Step = Callable[[], object]


@contextmanager
def quiet_gc() -> Iterator[None]:
    """Garbage collected, frozen and off: a full collection can take longer than a step."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def alternate(
    ways: Sequence[Step],
    order: Sequence[int],
    steps: int,
    synchronize: Callable[[], None],
    line_up: Callable[[], None] = lambda: None,
) -> list[float]:
    """Mean step time in ms of each segment of ``steps`` steps, run the way that ``order`` says.

    Segments follow each other with nothing but a synchronization between them: a card under its
    power cap answers even a short pause with seconds of other clocks. Several ranks ``line_up``
    before each: after steps without exchange a fast rank is ahead, and would wait for the others in
    the next segment's time. On one rank that is nothing.
    """
    segments_ms = []
    with quiet_gc():
        synchronize()
        for which in order:
            step = ways[which]
            line_up()
            began = time.perf_counter_ns()
            for _ in range(steps):
                step()
            synchronize()
            ended = time.perf_counter_ns()
            segments_ms.append((ended - began) / 1e6 / steps)
    return segments_ms


class CudaClock:
    """Times blocks with CUDA events on the current stream. Events are made once and reused."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def block(
        self,
        step: Step,
        steps: int,
        before_step: Callable[[int], None],
        line_up: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Run ``steps`` steps; their times in ms, by events and by the host's clock."""
        while len(self._events) < steps + 1:
            self._events.append(torch.cuda.Event(enable_timing=True))
        events = self._events[: steps + 1]
        with quiet_gc():
            torch.cuda.synchronize()
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
            torch.cuda.synchronize()
            ended = time.perf_counter_ns()
        step_ms = [a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)]
        return {
            "began_ns": began,
            "ended_ns": ended,
            "wall_ms": (ended - began) / 1e6,
            "events_ms": events[0].elapsed_time(events[-1]),
            "step_ms": step_ms,
            "enqueue_ms": (first_enqueued - began) / 1e6,
        }


class HostClock:
    """Times blocks on a CPU, where a step has ended when it returns."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def block(
        self,
        step: Step,
        steps: int,
        before_step: Callable[[int], None],
        line_up: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Run ``steps`` steps; their times in ms."""
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
