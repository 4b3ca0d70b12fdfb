"""Counts of the calls in a trace of the step as it is timed: operators, collectives, and those of a
GPU's API.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from stepguard.core.metrics import COLLECTIVE_BYTES, COLLECTIVES, COMPILED_OPERATORS, COPIES
from stepguard.trace.host_steps import StepCalls
from stepguard.worker.counters.profiled_steps import TRIES, trace_steps
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally
from stepguard.worker.torch_device import on_gpu
from stepguard.worker.workload import BadWorkload

_MARK = "stepguard.own_thread"
_BACKWARD = "autograd::engine::evaluate_function"
# Operators with nearly all FLOPs of a step. A thread that prepares batches calls none of them.
_PRODUCT = re.compile(r"^aten::(\w*mm\w*|linear|matmul|\w*convolution\w*|_?scaled_dot_product\w*)$")
_COPIED_BYTES, _PAGEABLE = "copied_bytes_per_step", "pageable_copies_per_step"
_MEMSETS = "memsets_per_step"
_PARTS: dict[str, Callable[[StepCalls], Mapping[str, int]]] = {
    COMPILED_OPERATORS: lambda calls: calls.operators,
    COLLECTIVES: lambda calls: calls.collectives,
    COLLECTIVE_BYTES: lambda calls: calls.collective_bytes,
    "launches_per_step": lambda calls: calls.launches,
    COPIES: lambda calls: calls.copies,
    _COPIED_BYTES: lambda calls: calls.copy_bytes,
    _PAGEABLE: lambda calls: {name: n for name, n in calls.copies.items() if "Pageable" in name},
}


def count_traced(tally: Tally, counted: RankStep) -> None:
    """Trace steps, and count their calls. Refuse a step that works in other threads, which a trace
    does not show.
    """
    refuse_work_elsewhere(counted)
    trace_steps(tally, counted)
    count_calls(tally, counted)


def count_calls(tally: Tally, counted: RankStep) -> None:
    """Count the calls of the traced steps. Keep the share of the time in CUDA calls that the host
    waits.
    """
    steps, unknown = tally.calls, dict[str, str]()
    if lost := sum(calls.lost_copies for calls in steps):
        reason = f"copies without the GPU's record, also after {TRIES} profiles: {lost}"
        unknown = dict.fromkeys((COPIES, _COPIED_BYTES, _PAGEABLE), reason)
    if unsized := {name for calls in steps for name in calls.unsized_collectives}:
        unknown[COLLECTIVE_BYTES] = (
            f"the trace has no size of {', '.join(sorted(unsized))} (gloo: if messages of several "
            "types have one length); take the metric out of the case's gates, or use another "
            "length"
        )
    for metric, parts in _PARTS.items():
        if metric in unknown:
            tally.missing(unknown[metric], metric)
        elif counted.has(metric):
            tally.add_parts(metric, [parts(calls) for calls in steps])
    if on_gpu(counted.device):
        tally.add(_MEMSETS, [calls.memsets for calls in steps])
        if api_us := sum(calls.api_us for calls in steps):
            share = 100 * sum(calls.sync_us for calls in steps) / api_us
            tally.information["sync_api_share_pct"] = share


def refuse_work_elsewhere(counted: RankStep) -> None:
    """Run a step. Raises BadWorkload if other threads call products, or if the step's own thread
    calls no operator on a CPU.

    The counters of operators, FLOPs, waits and bytes see only the step's thread, as torch's modes
    and profiler do. All counters of other threads' work would be zero, and only the time would show
    it.
    """
    config = _ExperimentalConfig(profile_all_threads=True)
    host = [ProfilerActivity.CPU]
    with (
        profile(activities=host, experimental_config=config) as profiled,
        record_function(_MARK),
    ):
        counted.step()
    events = list(profiled.profiler.kineto_results.events())
    if problem := _elsewhere(events, on_gpu(counted.device)):
        raise BadWorkload(
            f"{problem}, and no counter sees other threads: let step() do the work in the thread "
            "that calls it"
        )


def _elsewhere(events: Iterable[Any], gpu: bool) -> str:
    """Return what a step does in other threads than its own, as the beginning of a sentence; "" if
    nothing is wrong.
    """
    seen = list(events)
    own = next(event.start_thread_id() for event in seen if event.name() == _MARK)
    calls = [(e.start_thread_id(), e.name()) for e in seen if not e.is_user_annotation()]
    # On a GPU a step that replays a graph calls no operator. Launches of all threads are counted.
    if not gpu and all(thread != own for thread, _ in calls):
        return "step() takes time, but calls no operator of torch's in its own thread"
    # On a GPU backward passes run in a thread of autograd's, and are counted.
    counted = {own} | {t for t, name in calls if gpu and name.startswith(_BACKWARD)}
    products = Counter(thread in counted for thread, name in calls if _PRODUCT.match(name))
    if not products[False]:
        return ""
    return f"step() calls {products[False]} of {products.total()} products in another thread"


COUNTER = StepCounter("profiled steps", (*_PARTS, _MEMSETS), count_traced)
