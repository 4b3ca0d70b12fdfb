"""Record a trace of a few steps by torch.profiler: phases, flows and a counter of memory.

The file opens in Perfetto. The profiler shows each allocation only as a point. So a counter of the
memory in use is added, on a GPU with the memory that the caching allocator has reserved.
"""

import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch.profiler import profile, record_function, schedule

from stepguard.worker.counters.profiled_steps import Ranges
from stepguard.worker.counters.tally import RankStep
from stepguard.worker.torch_device import activities, on_gpu, synchronize

_MEMORY = "[memory]"


def record_trace(
    step: RankStep,
    rank: int,
    progress: Callable[[str], None],
    *,
    folder: str,
    plan: Sequence[int],
    with_stack: bool = False,
    shapes: bool = False,
) -> dict[str, Any]:
    """Run steps and record some of them. ``plan`` has three numbers of steps: unprofiled, for the
    profiler's warm-up, and recorded. Write the recorded ones into the folder (.json.gz). Return
    the file's name, its size in bytes, and its steps.
    """
    device, (wait, warmup, active) = step.device, plan
    path = Path(folder) / f"rank{rank}.json.gz"
    ranges = Ranges(record_function)
    stages = ["steps before it"] * wait + ["warm-up"] * warmup + ["recorded steps"] * active
    with (
        step.phases.heard_by(ranges),
        profile(
            activities=activities(device),
            schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=lambda profiled: write(profiled, path, on_gpu(device)),
            record_shapes=shapes,
            with_stack=with_stack,
            profile_memory=True,
        ) as profiled,
    ):
        for number, stage in enumerate(stages):
            if stage not in stages[:number]:
                progress(f"profiler: {stage}")
            step.phases.begin_step()
            step.step()
            ranges.end_step()
            if number + 1 == len(stages):
                synchronize(device)  # kernels that still run would have no record
                progress("profiler: writing")
            profiled.step()
    return {"path": str(path), "bytes": path.stat().st_size, "steps": active}


def write(profiled: Any, path: Path, gpu: bool) -> None:
    """Write the profile to ``path`` (.json.gz), with a counter of memory."""
    raw = path.with_suffix("")
    profiled.export_chrome_trace(str(raw))
    trace = msgspec.json.decode(raw.read_bytes())
    trace["traceEvents"].extend(counters(trace["traceEvents"], gpu))
    path.write_bytes(gzip.compress(msgspec.json.encode(trace), 6))
    raw.unlink()


def counters(events: list[dict[str, Any]], gpu: bool) -> Iterator[dict[str, Any]]:
    """Yield a counter event for each allocation on the GPU, or else on the CPU, in MiB."""
    name = "GPU memory [MiB]" if gpu else "CPU memory since the profiler began [MiB]"
    for event in events:
        if event.get("name") != _MEMORY or (event["args"]["Device Type"] == 1) != gpu:
            continue
        values = {"allocated": event["args"]["Total Allocated"] / 2**20}
        if gpu:
            values["reserved"] = event["args"]["Total Reserved"] / 2**20
        yield {"ph": "C", "name": name, "pid": event["pid"], "ts": event["ts"], "args": values}
