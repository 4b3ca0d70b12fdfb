"""Counts from the profiler: what the step calls on the device's API and in the dispatcher."""

import json
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch.profiler import profile, record_function

from stepguard.site import Site
from stepguard.trace.steps import StepCalls, read_steps
from stepguard.worker.count.syncs import SyncListener, located
from stepguard.worker.count.tally import ACTIVE_STEPS, CountedStep, Tally
from stepguard.worker.device import activities, on_gpu, synchronize

TRIES = 3  # profiles taken until one holds the GPU's record of every copy
MARK = "stepguard.step"


def count_profiled(tally: Tally, counted: CountedStep) -> None:
    """Count all that a trace of ACTIVE_STEPS steps shows: operators everywhere; collectives with
    several ranks; launches, copies, memsets and host syncs on a GPU.

    All ranks profile again if any has to: one that ran more steps than the others would wait in its
    exchange for ever.
    """
    listener = SyncListener(counted.phases) if on_gpu(counted.device) else None
    for _ in range(TRIES):
        steps, seen = profile_steps(counted, listener)
        if not counted.any_rank(any(calls.lost_copies for calls in steps)):
            break
    tally.add_parts("compiled_operator_calls_per_step", [calls.operators for calls in steps])
    if counted.world_size > 1:
        count_collectives(tally, steps)
    if listener is not None:
        count_device_calls(tally, steps)
        count_syncs(tally, steps, seen, len(counted.phases.micro_steps))


def count_device_calls(tally: Tally, steps: list[StepCalls]) -> None:
    """Count launches_per_step, memsets_per_step and the copies with their bytes."""
    tally.add_parts("launches_per_step", [calls.launches for calls in steps])
    tally.add("memsets_per_step", [calls.memsets for calls in steps])
    copies: dict[str, list[Counter[str]]] = {
        "copies_per_step": [calls.copies for calls in steps],
        "copied_bytes_per_step": [calls.copy_bytes for calls in steps],
        "pageable_copies_per_step": [_pageable(calls.copies) for calls in steps],
    }
    if lost := sum(calls.lost_copies for calls in steps):
        reason = f"the trace lacks the GPU's record of {lost} copies, in {TRIES} profiles"
        tally.missing(reason, *copies)
        return
    for metric, by_step in copies.items():
        tally.add_parts(metric, by_step)


def _pageable(copies: Counter[str]) -> Counter[str]:
    return Counter({name: count for name, count in copies.items() if "Pageable" in name})


def count_collectives(tally: Tally, steps: list[StepCalls]) -> None:
    """Count collectives_per_step and collective_bytes_per_step of this rank."""
    tally.add_parts("collectives_per_step", [calls.collectives for calls in steps])
    if unsized := {name for calls in steps for name in calls.unsized_collectives}:
        tally.missing(
            f"the trace has no size of {', '.join(sorted(unsized))} (gloo: of one length and "
            "several types); take the metric out of the case's gates, or use another length",
            "collective_bytes_per_step",
        )
        return
    tally.add_parts("collective_bytes_per_step", [calls.collective_bytes for calls in steps])


def count_syncs(
    tally: Tally, steps: list[StepCalls], seen: list[list[Site]], micro_steps: int = 0
) -> None:
    """Count host_syncs_per_step and keep their sites; allowed ones do not count."""
    both = zip(steps, seen, strict=True)
    sites = [located(calls.syncs, lines, micro_steps) for calls, lines in both]
    counts = [sum(site.count for site in of_step if not site.allowed) for of_step in sites]
    tally.add("host_syncs_per_step", counts, sites=sites[0])
    if api_us := sum(calls.api_us for calls in steps):
        share = 100 * sum(calls.sync_us for calls in steps) / api_us
        tally.information["sync_api_share_pct"] = share


def profile_steps(
    counted: CountedStep, listener: SyncListener | None = None
) -> tuple[list[StepCalls], list[list[Site]]]:
    """Run a step, then profile ACTIVE_STEPS; return their calls and the syncs torch reported."""
    seen: list[list[Site]] = []
    shapes = counted.world_size > 1  # of messages: else their bytes are not in the trace
    with profile(
        activities=activities(counted.device), acc_events=True, record_shapes=shapes
    ) as profiled:
        counted.step()
        for _ in range(ACTIVE_STEPS):
            counted.phases.begin_step()
            reported: AbstractContextManager[list[Site]]
            reported = listener.listen() if listener else nullcontext([])
            with record_function(MARK), reported as sites:
                counted.step()
            seen.append(sites)
        synchronize(counted.device)
    return read_steps(_events(profiled), MARK, ACTIVE_STEPS), seen


def _events(profiled: Any) -> list[dict[str, Any]]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        trace = json.loads(Path(file.name).read_text())  # by name: torch may replace the file
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"]
