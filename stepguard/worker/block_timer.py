"""Time blocks of steps.

On a GPU only the device knows when a step ends. So events are recorded at the borders of steps and
read after the block. The host's clock measures the whole block, from synchronization to
synchronization. Nothing inside the block waits for the device. Timestamps are time.perf_counter_ns
(CLOCK_MONOTONIC on Linux), which the host shares and uses to find a block's telemetry.

Clocks, events and the synchronization are bound here and in torch_device.py before a workload is
imported. A workload that replaces time.perf_counter_ns or torch.cuda.Event.elapsed_time does not
change what is read. The host times every block, too (launch/worker_group.py).

Several ranks line up as the last thing before a block. If a rank did anything after that, such as a
garbage collection, the others would wait for it in their first exchange: on two H200s up to 83 ms
in a block of 2.1 s, 4 %.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import torch

from stepguard.core.replies import TimedBlock
from stepguard.worker.torch_device import TimingEvent, on_gpu, synchronize

Step = Callable[[], object]


class Collector:
    """Keeps Python's garbage collector out of timed blocks, unless their steps need it."""

    def __init__(self) -> None:
        self.needed = False  # a block made enough new objects to start a collection

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Collect garbage, and then stop collecting, since a collection can last longer than a
        step. A workload that collects by itself, or never, finds the collector's setting unchanged.

        If an earlier block left garbage, the collector stays on, as the user's loop pays for it,
        too. Without it, the garbage of a block would take memory that the loop reuses. It would be
        collected after this clock's last reading and before the host's (5.7 s for 8,192 objects a
        step).

        All objects are searched, which takes 0.1 s on a CPU if a step was compiled. A search of
        young objects alone misses what a step holds beyond a block and drops later. It would pile
        up.
        """
        collects = gc.isenabled()
        gc.collect()
        quiet = not (collects and self.needed)
        if quiet:
            gc.disable()
        try:
            yield
        finally:
            newest, limit = gc.get_count()[0], gc.get_threshold()[0]
            self.needed = self.needed or quiet and 0 < limit < newest
            if collects:
                gc.enable()


class HostEvent:
    """A CPU's counterpart of a CUDA event. On a CPU a step has ended when it returns."""

    def record(self) -> None:
        """Note the time."""
        self._at_ns = perf_counter_ns()

    def elapsed_time(self, later: "HostEvent") -> float:
        """Return the milliseconds until ``later``."""
        return (later._at_ns - self._at_ns) / 1e6


class Clock:
    """Times blocks with events that are made once and reused."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._gpu = device, on_gpu(device)
        self._events: list[Any] = []
        self.collector = Collector()

    def block(
        self,
        step: Step,
        steps: int,
        before_step: Callable[[int], None],
        line_up: Callable[[], None] = lambda: None,
    ) -> TimedBlock:
        """Run ``steps`` steps. Return their times in ms, by events and by the host's clock."""
        while len(self._events) < steps + 1:
            self._events.append(TimingEvent() if self._gpu else HostEvent())
        events = self._events[: steps + 1]
        with self.collector.quiet():
            synchronize(self._device)
            # This must be last: the others wait in their first step for what a rank does after it.
            line_up()
            began = perf_counter_ns()
            events[0].record()
            first_enqueued = began
            for index in range(steps):
                before_step(index)
                step()
                events[index + 1].record()
                # Later steps may wait for room in the launch queue.
                if index == 0:
                    first_enqueued = perf_counter_ns()
            synchronize(self._device)
            ended = perf_counter_ns()
        wall_ms = (ended - began) / 1e6
        return TimedBlock(
            began_ns=began,
            ended_ns=ended,
            wall_ms=wall_ms,
            # On a CPU both are one clock, which cannot disagree with itself.
            events_ms=events[0].elapsed_time(events[-1]) if self._gpu else wall_ms,
            step_ms=[a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)],
            enqueue_ms=(first_enqueued - began) / 1e6 if self._gpu else None,
        )


def alternate(
    variants: Sequence[Step],
    order: Sequence[int],
    steps: int,
    device: torch.device,
    line_up: Callable[[], None],
    collector: Collector,
) -> list[float]:
    """Return the mean step time in ms of each segment: ``steps`` of one of ``variants``, in
    ``order``. A synchronization is all between segments: at its power cap a card answers a pause
    with other clocks.
    """
    segments_ms = []
    with collector.quiet():
        synchronize(device)
        for index in order:
            step = variants[index]
            line_up()
            began = perf_counter_ns()
            for _ in range(steps):
                step()
            synchronize(device)
            segments_ms.append((perf_counter_ns() - began) / 1e6 / steps)
    return segments_ms


def synced(step: Step, device: torch.device) -> Step:
    """Return the variant of a step whose host waits for the device after it."""

    def run() -> None:
        step()
        synchronize(device)

    return run
