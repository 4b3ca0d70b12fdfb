"""Run a workload for a profiler that starts this process and records between CUDA's two marks.

    nsys profile --capture-range=cudaProfilerApi ... \
        python -m stepguard_lab.profilers.for_nsight '{"case": {...}, "warmup": 3, ...}'

Nothing is forked, and no host sends commands. Steps are ranges, "step_0". Phases are ranges if the
workload makes them; of a loop backward passes and optimizers are. torchrun starts several ranks.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import msgspec
import torch

from stepguard.core.case import from_dict
from stepguard.worker import torch_device
from stepguard.worker.block_timer import Step
from stepguard.worker.loops.looped import workload_of
from stepguard.worker.rank_channel import join_process_group
from stepguard.worker.workload import BadWorkload
from stepguard_lab.profilers.ranges_of_torch import ranges_of_torch


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What runs, and how many steps before and between the marks."""

    case: dict[str, Any]  # as Case.as_dict() returns it
    warmup: int
    steps: int
    one_thread: bool = False  # backward passes launch from the thread with the workload's ranges


def main() -> str:
    """Run what the first argument says. Return what went wrong; empty if nothing did."""
    wanted = msgspec.json.decode(sys.argv[1], type=Run)
    try:
        case = from_dict(wanted.case)
        where = torch_device.rank_device(case.device, int(os.environ.get("LOCAL_RANK", "0")))
        torch_device.select(where)
        if case.loop is None:
            join_process_group(torch_device.backend(where))
        workload = workload_of(case, where.type)
    except (BadWorkload, ValueError) as error:
        return f"stepguard: {error}"
    phases = ranges_of_torch(_nvtx_range) if case.loop else nullcontext()
    with torch.autograd.set_multithreading_enabled(not wanted.one_thread):
        _record(workload.step, where, wanted, phases)
    return ""


def _record(
    step: Step, where: torch.device, wanted: Run, phases: AbstractContextManager[None]
) -> None:
    """Run the steps before and between the marks. Those between have ``phases``."""
    for _ in range(wanted.warmup):
        step()
    torch_device.synchronize(where)
    if not torch_device.on_gpu(where):
        return  # there is nothing to record
    with _profiled(where), phases:
        for number in range(wanted.steps):
            with _nvtx_range(f"step_{number}"):
                step()


@contextmanager
def _profiled(where: torch.device) -> Iterator[None]:
    """Let NVIDIA's profilers record only what the GPU does inside the block."""
    torch.cuda.profiler.start()
    yield
    torch_device.synchronize(where)
    torch.cuda.profiler.stop()


def _nvtx_range(name: str) -> AbstractContextManager[object]:
    context: AbstractContextManager[object] = torch.cuda.nvtx.range(name)
    return context


if __name__ == "__main__":
    sys.exit(main() or 0)
