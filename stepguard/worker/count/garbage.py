"""Counts what steps leave to Python's garbage collector, and finds who makes it.

Objects that refer to each other are freed by the collector alone. It stops the step while it looks
for them, and it is off in most timed blocks (worker/block_timer.py), so that no time shows it.
"""

import gc
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import torch

from stepguard.core.metrics import GARBAGE
from stepguard.core.site import Site
from stepguard.worker.count.locate import Place, locate, qualified, site_at
from stepguard.worker.count.memory_counters import PERIOD
from stepguard.worker.count.syncs import by_place
from stepguard.worker.count.tally import ACTIVE_STEPS, RankStep, Tally

PAUSED_STEPS = 50  # a look at everything comes after some 70,000 new objects: of 1,400 a step, one
PLACES = 5  # that leave most
_FRAMES = 40  # of an allocation: a loader's line is below those of the loader's machinery


def count_garbage(tally: Tally, counted: RankStep) -> None:
    """Count garbage_objects_per_step: what collections return that follow each PERIOD of steps, a
    step's share, rounded up.
    """
    with _own_collections():
        counted.step()  # it may be the first to miss what an earlier part of the counting made
        gc.collect()
        left = [_left_by(PERIOD, counted) for _ in range(ACTIVE_STEPS)]
    tally.add(GARBAGE, [-(-each // PERIOD) for each in left])


def locate_garbage(tally: Tally, counted: RankStep) -> None:
    """Add where the garbage was made, if any was counted, and gc_pause_ms_per_step. Runs the step
    without the compiler.
    """
    per_step = tally.values.get(GARBAGE, 1)  # of what differs between steps there is some
    if not counted.any_rank(per_step > 0):
        return
    tally.information["gc_pause_ms_per_step"] = _pause_ms(counted) / PAUSED_STEPS
    with torch.compiler.set_stance("force_eager"), _own_collections(), _traced():
        # Python keeps the memory of freed objects, and traces none that it kept from before.
        counted.step()
        gc.collect()
        counted.step()
        sites = _places()
    if sites:
        tally.sites[GARBAGE] = tuple(sites)


@contextmanager
def _own_collections() -> Iterator[None]:
    """Let nothing but this module collect inside the block."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _left_by(steps: int, counted: RankStep) -> int:
    for _ in range(steps):
        counted.step()
    return gc.collect()


def _pause_ms(counted: RankStep) -> float:
    """Return the milliseconds that the collector stops PAUSED_STEPS steps, set as the workload has
    it, and with all objects to look at that the process has.
    """
    began, pauses_ns = 0, 0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began, pauses_ns
        now = perf_counter_ns()
        if phase == "start":
            began = now
        else:
            pauses_ns += now - began

    # A plain run has what the engine hid before the ranks were born (worker/agent.py).
    hidden = gc.get_freeze_count() == counted.frozen
    if hidden:
        gc.unfreeze()
    gc.callbacks.append(note)
    try:
        for _ in range(PAUSED_STEPS):
            counted.step()
    finally:
        gc.callbacks.remove(note)
        if hidden:
            gc.freeze()
    return pauses_ns / 1e6


@contextmanager
def _traced() -> Iterator[None]:
    """Have Python remember where it allocates inside the block, unless the workload does so."""
    traces = tracemalloc.is_tracing()
    if not traces:
        tracemalloc.start(_FRAMES)
    try:
        yield
    finally:
        if not traces:
            tracemalloc.stop()


def _places() -> list[Site]:
    """Collect; return where the objects that were found had been made."""
    flags, known = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        objects = gc.garbage[known:]
        counts = Counter((type(thing).__name__, _made_at(thing)) for thing in objects)
    finally:
        gc.set_debug(flags)
        del gc.garbage[known:]
    # What was made before, such as by what traces, has no place.
    sites = [
        site_at(f"{kind} for the collector", place, count=count)
        for (kind, place), count in sorted(counts.items())
        if place.file
    ]
    return sorted(by_place(sites), key=lambda site: -site.count)[:PLACES]


def _made_at(thing: Any) -> Place:
    trace = tracemalloc.get_object_traceback(thing) or ()
    return locate(
        (frame.filename, frame.lineno, qualified(frame.filename, frame.lineno, ""))
        for frame in reversed(trace)
    )
