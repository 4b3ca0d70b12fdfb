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
from stepguard.worker.counters.kept_memory import live_tensor_bytes
from stepguard.worker.counters.profiled_steps import Ranges
from stepguard.worker.counters.tally import RankStep
from stepguard_lab.profilers.record_trace import write

_HISTORY_EVENTS = 1_000_000  # the most that torch keeps; a step has some ten thousand
_SETTLE = 2  # steps; gradients and optimizer state exist from the second one on


def record_memory(
    step: RankStep, rank: int, progress: Callable[[str], None], *, folder: str
) -> dict[str, Any]:
    """Run a step. Write its trace into the folder (.json.gz), and the history beside it (.pickle).

    Return both paths and figures in bytes: live before the step; on a GPU also allocated, reserved,
    and the peaks of both in the step.
    """
    where, ranges = step.device, Ranges(record_function)
    path = Path(folder) / f"rank{rank}.json.gz"
    gpu = torch_device.on_gpu(where)

    def one_step() -> None:
        step.phases.begin_step()
        step.step()
        ranges.end_step()

    progress("memory: settling")
    with step.phases.heard_by(ranges):
        for _ in range(_SETTLE):
            one_step()
        torch_device.synchronize(where)
        live = torch.cuda.memory_allocated() if gpu else live_tensor_bytes(step.frozen)
        if gpu:
            _begin_history()
        progress("memory: recorded step")
        profiled = _profiled(one_step, where)
    progress("memory: writing")
    recorded: dict[str, Any] = {"live_bytes": live, "on_gpu": gpu, "trace": str(path)}
    if gpu:
        recorded["snapshot"] = str(path.with_name(path.name.replace(".json.gz", ".pickle")))
        recorded |= _end_history(recorded["snapshot"])
    write(profiled, path, gpu)
    return recorded


def _begin_history() -> None:
    """Note every allocation on the GPU with its stack from now on, and begin a new peak."""
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(max_entries=_HISTORY_EVENTS)


def _end_history(path: str) -> dict[str, int]:
    """Write the noted history, for memory_viz. Return the bytes allocated, reserved, and their
    peaks.
    """
    torch.cuda.memory._dump_snapshot(path)
    torch.cuda.memory._record_memory_history(enabled=None)
    now = ("memory_allocated", "memory_reserved")
    return {name: int(getattr(torch.cuda, name)()) for name in (*now, *(f"max_{x}" for x in now))}


def _profiled(step: Step, where: torch.device) -> profile:
    kinds = torch_device.activities(where)
    with profile(activities=kinds, profile_memory=True, with_stack=True) as profiled:
        with record_function("ProfilerStep#0"):
            step()
        torch_device.synchronize(where)
    return profiled
