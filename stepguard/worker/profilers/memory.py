"""Records what allocates in one steady step: a trace, and on a GPU the allocator's own history.

The history is a file for https://pytorch.org/memory_viz, which shows every block over time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from stepguard.worker.count.memory import live_tensor_bytes
from stepguard.worker.device import activities, on_gpu, synchronize
from stepguard.worker.position import Phases
from stepguard.worker.profilers.ranges import Ranges
from stepguard.worker.profilers.traces import write

_SETTLE = 2  # steps; from the second one on gradients and optimizer state exist
_MOST_EVENTS = 1_000_000


def record_memory(
    step: Callable[[], object],
    device: torch.device,
    phases: Phases,
    path: Path,
    progress: Callable[[str], None],
    frozen: int = 0,
) -> dict[str, Any]:
    """Run a step; write its trace to ``path`` (.json.gz), beside it the history (.pickle).

    Return both paths, and bytes: live before the step; on a GPU allocated, reserved and the most of
    both in the step.
    """
    gpu, ranges = on_gpu(device), Ranges(record_function)
    progress("memory: settling")
    with phases.heard_by(ranges):
        for _ in range(_SETTLE):
            phases.begin_step()
            step()
            ranges.end_step()
        synchronize(device)
        live = torch.cuda.memory_allocated() if gpu else live_tensor_bytes(frozen)
        if gpu:
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS)
        progress("memory: recorded step")
        profiled = profile(activities=activities(device), profile_memory=True, with_stack=True)
        with profiled:
            phases.begin_step()
            with record_function("ProfilerStep#0"):
                step()
                ranges.end_step()
            synchronize(device)
    progress("memory: writing")
    found: dict[str, Any] = {"live_bytes": live, "on_gpu": gpu, "trace": str(path)}
    if gpu:
        found["snapshot"] = str(path.with_name(path.name.replace(".json.gz", ".pickle")))
        torch.cuda.memory._dump_snapshot(found["snapshot"])
        torch.cuda.memory._record_memory_history(enabled=None)
        for name in ("memory_allocated", "memory_reserved"):
            found[name] = int(getattr(torch.cuda, name)())
            found[f"max_{name}"] = int(getattr(torch.cuda, f"max_{name}")())
    write(profiled, path, gpu)
    return found
