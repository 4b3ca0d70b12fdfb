"""Record what allocates in one steady step: a trace, and on a GPU the allocator's own history.

The history is a file for https://pytorch.org/memory_viz, which shows every block over time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from stepguard.worker import torch_device
from stepguard.worker.block_timer import Step
from stepguard.worker.count.memory_counters import live_tensor_bytes
from stepguard.worker.count.tally import RankStep
from stepguard.worker.profilers.nvtx_ranges import Ranges
from stepguard.worker.profilers.record_trace import write

_SETTLE = 2  # steps; gradients and optimizer state exist from the second one on


def record_memory(rank: RankStep, path: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run a step. Write its trace to ``path`` (.json.gz), and the history beside it (.pickle).

    Return both paths and figures in bytes: live before the step; on a GPU also allocated, reserved,
    and the peaks of both in the step.
    """
    where, ranges = rank.device, Ranges(record_function)
    gpu = torch_device.on_gpu(where)

    def one_step() -> None:
        rank.phases.begin_step()
        rank.step()
        ranges.end_step()

    progress("memory: settling")
    with rank.phases.heard_by(ranges):
        for _ in range(_SETTLE):
            one_step()
        torch_device.synchronize(where)
        live = torch_device.allocated_bytes() if gpu else live_tensor_bytes(rank.frozen)
        if gpu:
            torch_device.begin_history()
        progress("memory: recorded step")
        profiled = _profiled(one_step, where)
    progress("memory: writing")
    recorded: dict[str, Any] = {"live_bytes": live, "on_gpu": gpu, "trace": str(path)}
    if gpu:
        recorded["snapshot"] = str(path.with_name(path.name.replace(".json.gz", ".pickle")))
        recorded |= torch_device.end_history(recorded["snapshot"])
    write(profiled, path, gpu)
    return recorded


def _profiled(step: Step, where: torch.device) -> profile:
    kinds = torch_device.activities(where)
    with profile(activities=kinds, profile_memory=True, with_stack=True) as profiled:
        with record_function("ProfilerStep#0"):
            step()
        torch_device.synchronize(where)
    return profiled
