"""How steps can be run, by name: what two ways differ in is what a difference measures.

pipelined         as it is
synced            the host waits for the device after every step
no_gradient_sync  ranks exchange nothing; their replicas diverge, so nothing may be measured on
                  them afterwards. The workload offers it: an attribute ``gradient_sync``,
                  which is True unless it is set to False
"""

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

EXCHANGES = ("c10d::", "_c10d_functional::")

Step = Callable[[], object]
Synchronize = Callable[[], None]


def _pipelined(workload: Any, synchronize: Synchronize) -> Step:
    step: Step = workload.step
    return step


def _synced(workload: Any, synchronize: Synchronize) -> Step:
    def run() -> None:
        workload.step()
        synchronize()

    return run


def _no_gradient_sync(workload: Any, synchronize: Synchronize) -> Step:
    if getattr(workload, "gradient_sync", None) is not True:
        kind = type(workload).__name__
        raise ValueError(
            f"{kind} has no attribute gradient_sync that is True: "
            "its step cannot be run without gradient sync, and exposed_comm_pct not be measured"
        )

    def run() -> None:
        workload.gradient_sync = False
        try:
            workload.step()
        finally:
            workload.gradient_sync = True

    if calls := _exchanges(run):
        raise ValueError(
            f"with gradient_sync False the step still calls {', '.join(calls)}: it would be "
            "compared with itself, and its exchange be measured as nothing"
        )
    return run


def _exchanges(step: Step) -> list[str]:
    """What a step calls to exchange with other ranks, by its profile, DDP's own calls included."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        step()
    return sorted({e.name for e in record.events() if e.name.startswith(EXCHANGES)})


VARIANTS: dict[str, Callable[[Any, Synchronize], Step]] = {
    "pipelined": _pipelined,
    "synced": _synced,
    "no_gradient_sync": _no_gradient_sync,
}
