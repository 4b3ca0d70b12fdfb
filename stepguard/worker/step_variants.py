"""Variants of a step that take turns. The difference of their times is the cost of what only one of
them does.
"""

from collections.abc import Callable, Sequence
from time import perf_counter_ns

import torch

from stepguard.worker.block_timer import Collector, Step
from stepguard.worker.torch_device import synchronize


def alternate(
    variants: Sequence[Step],
    order: Sequence[int],
    steps: int,
    device: torch.device,
    line_up: Callable[[], None],
    collector: Collector,
) -> list[float]:
    """Return the mean step time in ms of each segment: ``steps`` steps of one of ``variants``, in
    the ``order`` of their indices.

    Between segments there is only a synchronization: a card at its power cap answers even a short
    pause with seconds of other clocks. Several ranks ``line_up`` before each segment.
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
