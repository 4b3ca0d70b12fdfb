"""Counts from the profiler: what the step calls on the device's API and in the dispatcher."""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function

from stepguard.trace.steps import StepCalls, read_steps
from stepguard.worker.clock import Step
from stepguard.worker.count.syncs import Seen, SyncListener, located
from stepguard.worker.count.tally import ACTIVE_STEPS, Tally
from stepguard.worker.device import activities, on_gpu, synchronize
from stepguard.worker.position import Phases

TRIES = 3  # profiles taken until one holds the GPU's record of every copy
MARK = "stepguard.step"


def count_profiled(
    tally: Tally,
    step: Step,
    device: torch.device,
    phases: Phases,
    world_size: int = 1,
    any_rank: Callable[[bool], bool] = bool,
) -> None:
    """Count all that a trace of ACTIVE_STEPS steps shows: operators everywhere; collectives with
    several ranks; launches, copies, memsets and host syncs on a GPU.

    All ranks profile again if ``any_rank`` has to: one that ran more steps than the others would
    wait in its exchange for ever.
    """
    listener = SyncListener(phases) if on_gpu(device) else None
    for _ in range(TRIES):
        steps, seen = profile_steps(step, device, phases, listener, world_size > 1)
        if not any_rank(any(calls.lost_copies for calls in steps)):
            break
    first = steps[0]
    tally.add(
        "compiled_operator_calls_per_step",
        [calls.operators.total() for calls in steps],
        dict(first.operators),
    )
    if world_size > 1:
        count_collectives(tally, steps)
    if listener is not None:
        count_device_calls(tally, steps)
        count_syncs(tally, steps, seen, len(phases.micro_steps))


def count_device_calls(tally: Tally, steps: list[StepCalls]) -> None:
    """Count launches_per_step, memsets_per_step and the copies with their bytes."""
    first = steps[0]
    launches = [calls.launches.total() for calls in steps]
    tally.add("launches_per_step", launches, dict(first.launches))
    tally.add("memsets_per_step", [calls.memsets for calls in steps])
    lost = sum(calls.lost_copies for calls in steps)
    if lost:
        reason = f"the trace lacks the GPU's record of {lost} copies, in {TRIES} profiles"
        names = ("copies_per_step", "copied_bytes_per_step", "pageable_copies_per_step")
        tally.missing(reason, *names)
        return
    tally.add("copies_per_step", [c.copies.total() for c in steps], dict(first.copies))
    moved = [calls.copy_bytes.total() for calls in steps]
    tally.add("copied_bytes_per_step", moved, dict(first.copy_bytes))
    pageable = [_pageable(calls.copies) for calls in steps]
    tally.add("pageable_copies_per_step", [p.total() for p in pageable], dict(pageable[0]))


def _pageable(copies: Counter[str]) -> Counter[str]:
    return Counter({name: count for name, count in copies.items() if "Pageable" in name})


def count_collectives(tally: Tally, steps: list[StepCalls]) -> None:
    """Count collectives_per_step and collective_bytes_per_step of this rank."""
    first = steps[0]
    calls = [step.collectives.total() for step in steps]
    tally.add("collectives_per_step", calls, dict(first.collective_sizes))
    if any(step.unsized_collectives for step in steps):
        unknown = sorted(name for name in first.collective_sizes if "unknown size" in name)
        tally.missing(
            f"the trace has no size of {', '.join(unknown) or 'some collectives'} (gloo: of one "
            "length and several types); take the metric out of the case's gates, or use another "
            "length",
            "collective_bytes_per_step",
        )
        return
    payload = [step.collective_bytes.total() for step in steps]
    tally.add("collective_bytes_per_step", payload, dict(first.collective_bytes))


def count_syncs(
    tally: Tally, steps: list[StepCalls], seen: list[list[Seen]], micro_steps: int = 0
) -> None:
    """Count host_syncs_per_step and keep their sites; allowed ones do not count."""
    both = zip(steps, seen, strict=True)
    sites = [located(calls.syncs, lines, micro_steps) for calls, lines in both]
    counts = [sum(site.count for site in of_step if not site.allowed) for of_step in sites]
    tally.add("host_syncs_per_step", counts, sites=sites[0])
    api_us = sum(calls.api_us for calls in steps)
    if api_us:
        share = 100 * sum(calls.sync_us for calls in steps) / api_us
        tally.information["sync_api_share_pct"] = share


def profile_steps(
    step: Step,
    device: torch.device,
    phases: Phases,
    listener: SyncListener | None = None,
    shapes: bool = False,
) -> tuple[list[StepCalls], list[list[Seen]]]:
    """Run a step, then profile ACTIVE_STEPS; return their calls and the syncs torch reported."""
    seen: list[list[Seen]] = []
    with profile(activities=activities(device), acc_events=True, record_shapes=shapes) as profiled:
        step()
        for _ in range(ACTIVE_STEPS):
            phases.begin_step()
            with record_function(MARK), listener.listen() if listener else nullcontext():
                step()
            if listener is not None:
                seen.append(listener.seen)
                listener.seen = []
        if on_gpu(device):
            synchronize()
    return read_steps(_events(profiled), MARK, ACTIVE_STEPS), seen


def _events(profiled: Any) -> list[dict[str, Any]]:
    handle, name = tempfile.mkstemp(suffix=".json")
    os.close(handle)
    try:
        profiled.export_chrome_trace(name)
        trace = json.loads(Path(name).read_text())
    finally:
        os.unlink(name)
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]
