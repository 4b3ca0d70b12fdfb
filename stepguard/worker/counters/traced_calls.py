"""Counts of the calls in a trace of the step as it is timed: operators, collectives, and those of a
GPU's API.
"""

from collections.abc import Callable, Mapping

from stepguard.core.metrics import COLLECTIVE_BYTES, COLLECTIVES, COMPILED_OPERATORS, COPIES
from stepguard.trace.host_steps import StepCalls
from stepguard.worker.counters.own_thread import refuse_work_elsewhere
from stepguard.worker.counters.profiled_steps import TRIES, trace_steps
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally
from stepguard.worker.torch_device import on_gpu

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


COUNTER = StepCounter("profiled steps", (*_PARTS, _MEMSETS), count_traced)
