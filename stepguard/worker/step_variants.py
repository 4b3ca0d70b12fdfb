"""Variants of a step, by name. The difference of two variants' times is the cost of what only one
of them does.

pipelined  the step as it is
synced     the host waits for the device after every step
"""

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

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


def _synced(workload: Any, device: torch.device) -> Step:
    def run() -> None:
        workload.step()
        synchronize(device)

    return run


# Each makes, from a workload, a function that runs one step. Raises ValueError if it cannot.
VARIANTS: dict[str, Callable[[Any, torch.device], Step]] = {
    "pipelined": lambda workload, device: workload.step,
    "synced": _synced,
}
