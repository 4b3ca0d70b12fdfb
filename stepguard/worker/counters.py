"""The counting pass: what a step does, counted exactly, never inside a timed block.

The compiled step is counted from a profiler trace (API calls, since GPU-side records get lost), by
the allocator's peak, and by the compiler's own counters. FLOPs and operators are counted on the
same workload with the compiler told to step aside (``torch.compiler.set_stance``), because a
compiled region is opaque to dispatch modes.
"""

import gc
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from stepguard.site import Site
from stepguard.worker import compiler
from stepguard.worker.clock import Step

ACTIVE_STEPS = 2  # a count is taken when this many steps agree
_MARK = "stepguard.step"
LAUNCH_CALLS = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaLaunchCooperativeKernel",
    "cuLaunchCooperativeKernel",
    "cudaGraphLaunch",
)


class OperatorCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts every ATen operator that reaches the dispatcher's Python key, backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Tally:
    """Collects counts: a value that differs between two steps is unstable, not averaged."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.unstable: dict[str, str] = {}
        self.detail: dict[str, dict[str, int]] = {}

    def add(self, metric: str, seen: list[int], detail: dict[str, int] | None = None) -> None:
        """Take the value if all of ``seen`` agree, else note what was seen."""
        if len(set(seen)) == 1:
            self.values[metric] = seen[0]
        else:
            self.unstable[metric] = f"steps differ: {', '.join(str(value) for value in seen)}"
        if detail is not None:
            self.detail[metric] = dict(sorted(detail.items()))

    def as_dict(self) -> dict[str, Any]:
        """The fields of evidence.Counts."""
        return {"values": self.values, "unstable": self.unstable, "detail": self.detail}


def count(step: Step, device: torch.device, progress: Callable[[str], None]) -> dict[str, Any]:
    """Every counter of a workload whose step has run at least once."""
    tally = Tally()
    progress("count: compiler")
    count_compiler(tally)
    progress("count: peak memory")
    peak_allocated_bytes(step, device)  # frees of what was made before profiling go unseen once
    peaks = [peak_allocated_bytes(step, device) for _ in range(ACTIVE_STEPS)]
    tally.add("peak_allocated_bytes", peaks)
    progress("count: profiled steps")
    count_profiled(tally, step, device)
    progress("count: eager operators")
    count_eager(tally, step, device)
    return tally.as_dict()


def compiled_graphs() -> int:
    """Graphs compiled in this process so far; the compiler is not imported just to be asked."""
    return compiler.unique_graphs()


def count_compiler(tally: Tally) -> list[Site]:
    """Graphs, unique graph breaks and generated kernels of this process so far.

    Returns where the compiler broke a graph or gave a function up, for evidence.
    """
    breaks = compiler.graph_breaks()
    reasons = Counter(site.what.removeprefix("graph break: ") for site in breaks)
    tally.add("graph_breaks", [len(breaks)], reasons)
    tally.add("unique_graphs", [compiler.unique_graphs()])
    tally.add("generated_kernels", [compiler.generated_kernels()])
    return breaks + compiler.recompile_limits()


def peak_allocated_bytes(step: Step, device: torch.device) -> int:
    """Peak of live tensor bytes within one step.

    On a GPU the caching allocator keeps the figure. On a CPU it is what lives when the step begins
    (storages that Python can reach) plus the highest running sum of the step's allocation events.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated())
    live = live_tensor_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    running = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        running += event.nbytes()
        peak = max(peak, running)
    return live + peak


def live_tensor_bytes() -> int:
    """Bytes of distinct CPU storages behind tensors that Python can reach, gradients included."""
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) not in (torch.Tensor, torch.nn.Parameter):
            continue
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            if tensor is None or tensor.device.type != "cpu" or tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def count_profiled(tally: Tally, step: Step, device: torch.device) -> None:
    """Launch calls and operators of the compiled step, from a trace of ACTIVE_STEPS steps."""
    steps = events_by_step(profile_steps(step, device))
    operators = [_count(events, "cpu_op", prefix="aten::") for events in steps]
    tally.add(
        "compiled_operator_calls_per_step",
        [sum(calls.values()) for calls in operators],
        operators[0],
    )
    if device.type != "cuda":
        return
    launches = []
    for events in steps:
        calls = _count(events, "cuda_runtime") + _count(events, "cuda_driver")
        launches.append(Counter({name: calls[name] for name in LAUNCH_CALLS if calls[name]}))
    tally.add("launches_per_step", [sum(calls.values()) for calls in launches], launches[0])


def profile_steps(step: Step, device: torch.device) -> list[dict[str, Any]]:
    """The trace events of one warm-up and ACTIVE_STEPS marked steps."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, acc_events=True) as profiled:
        step()
        for _ in range(ACTIVE_STEPS):
            with record_function(_MARK):
                step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    handle, name = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        profiled.export_chrome_trace(name)
        trace = json.loads(Path(name).read_text())
    finally:
        os.unlink(name)
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]


def events_by_step(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Host-side events inside each marked step, by time; the steps in order.

    Raises RuntimeError when the trace does not hold every marked step: a count from an incomplete
    trace would be wrong, not approximate.
    """
    marks = [e for e in events if e["name"] == _MARK and e.get("cat") == "user_annotation"]
    if len(marks) != ACTIVE_STEPS:
        raise RuntimeError(f"the trace holds {len(marks)} of {ACTIVE_STEPS} marked steps")
    marks.sort(key=lambda e: e["ts"])
    host = [e for e in events if e.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver")]
    return [[e for e in host if mark["ts"] <= e["ts"] < mark["ts"] + mark["dur"]] for mark in marks]


def _count(events: list[dict[str, Any]], category: str, prefix: str = "") -> Counter[str]:
    return Counter(
        e["name"] for e in events if e["cat"] == category and e["name"].startswith(prefix)
    )


def count_eager(tally: Tally, step: Step, device: torch.device) -> None:
    """FLOPs and operators of the step with the compiler out of the way."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    by_operator: list[dict[str, int]] = []
    calls: list[Counter[str]] = []
    try:
        with torch.compiler.set_stance("force_eager"):
            step()
            for _ in range(ACTIVE_STEPS):
                mapping = _cpu_sdpa()
                with flop_counter.FlopCounterMode(display=False, custom_mapping=mapping) as flops:
                    step()
                counted = flops.get_flop_counts().get("Global", {})  # absent without any product
                by_operator.append({str(op): int(n) for op, n in counted.items()})
            for _ in range(ACTIVE_STEPS):
                with OperatorCounter() as operators:
                    step()
                calls.append(operators.calls)
    except torch.OutOfMemoryError:
        reason = "the eager step does not fit in this GPU's memory"
        tally.unstable |= {"flops_per_step": reason, "operator_calls_per_step": reason}
        return
    tally.add("flops_per_step", [sum(step.values()) for step in by_operator], by_operator[0])
    tally.add("operator_calls_per_step", [sum(c.values()) for c in calls], dict(calls[0]))


def _cpu_sdpa() -> dict[Any, Any]:
    """Formulas for the CPU's fused attention, which torch 2.13 and older count as zero FLOPs."""
    aten = torch.ops.aten
    found: dict[Any, Any] = {}

    def forward(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(flop_counter.sdpa_flop_count(q, k, v))

    def backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
        return int(flop_counter.sdpa_backward_flop_count(grad, q, k, v))

    for name, formula in (
        ("_scaled_dot_product_flash_attention_for_cpu", forward),
        ("_scaled_dot_product_flash_attention_for_cpu_backward", backward),
    ):
        operator = getattr(aten, name, None)
        if operator is not None and operator not in flop_counter.flop_registry:
            found[operator] = formula
    return found
