"""Variants of a step, by name. The difference of two variants' times is the cost of what only one
of them does.

pipelined         the step as it is
synced            the host waits for the device after every step
no_gradient_sync  ranks exchange nothing; their replicas diverge, so nothing may be measured on
                  them afterwards. The workload offers it by an attribute ``gradient_sync``,
                  which is True unless it is set to False
"""

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from stepguard.worker.block_timer import Collector, Step
from stepguard.worker.torch_device import synchronize

# Operators of torch.distributed, and of its functional collectives.
EXCHANGES = ("c10d::", "_c10d_functional::")


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
    pause with seconds of other clocks. Several ranks ``line_up`` before each segment: after steps
    without exchange a fast rank is ahead, and would wait for the others in the next segment's time.
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


def _no_gradient_sync(workload: Any, device: torch.device) -> Step:
    if getattr(workload, "gradient_sync", None) is not True:
        kind = type(workload).__name__
        raise ValueError(
            f"{kind} has no attribute gradient_sync that is True: its step cannot be run without "
            "gradient sync, so exposed_comm_pct cannot be measured"
        )

    def run() -> None:
        workload.gradient_sync = False
        try:
            workload.step()
        finally:
            workload.gradient_sync = True

    # If nothing read the attribute, the difference would be zero: FASTER, for no reason.
    if calls := _exchanges(run):
        raise ValueError(
            f"with gradient_sync False the step still calls {', '.join(calls)}: it would be "
            "compared with itself, and its exchange measured as nothing"
        )
    return run


def _exchanges(step: Step) -> list[str]:
    """Return what a step calls to exchange with other ranks, with DDP's own calls."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        step()
    return sorted({e.name for e in record.events() if e.name.startswith(EXCHANGES)})


# Each makes, from a workload, a function that runs one step. Raises ValueError if it cannot.
VARIANTS: dict[str, Callable[[Any, torch.device], Step]] = {
    "pipelined": lambda workload, device: workload.step,
    "synced": _synced,
    "no_gradient_sync": _no_gradient_sync,
}
