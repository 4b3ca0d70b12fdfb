"""Find who makes the objects that steps leave to Python's garbage collector.

Only the collector frees objects that refer to each other. The collector stops the step while it
searches. Most timed blocks run without it (worker/block_timer.py), so no time shows this cost.
"""

import gc
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import torch
from greenlet import greenlet

from stepguard.core.metrics import GARBAGE
from stepguard.core.profile import summed
from stepguard.core.site import Site
from stepguard.worker.counters.collector import (
    hides_more,
    live_objects,
    own_collections,
    with_finalizer,
)
from stepguard.worker.counters.locate import Place, is_machinery, locate, qualified, site_at
from stepguard.worker.counters.syncs import by_place
from stepguard.worker.counters.tally import RankStep, Tally

# Enough for one full collection, which comes after some 70,000 new objects, at 1,400 a step.
PAUSED_STEPS = 50
PLACES = 5  # those that leave most
_FRAMES = 40  # of an allocation: a loader's line is below the lines of the loader's machinery


def locate_garbage(tally: Tally, counted: RankStep) -> None:
    """Add where counted garbage was made, without the compiler, and its pause."""
    if not counted.any_rank(tally.values.get(GARBAGE, 0) > 0):
        return
    tally.information["gc_pause_ms_per_step"] = _pause_ms(counted) / PAUSED_STEPS
    with torch.compiler.set_stance("force_eager"), own_collections(), _traced():
        # Python reuses the memory of freed objects, and memory from before the tracing has no
        # place. A step runs first to use that up.
        counted.step()
        live_objects(counted.frozen)
        traces = _traces(counted)
    # Not while allocations are traced: to look through sources would take some ten times as long.
    sites = _places(traces)
    if sites:
        tally.sites[GARBAGE] = tuple(sites)


def _pause_ms(counted: RankStep) -> float:
    """Return how many ms the collector takes in PAUSED_STEPS steps, with all objects."""
    began, pauses_ns = 0, 0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began, pauses_ns
        now = perf_counter_ns()
        if phase == "start":
            began = now
        else:
            pauses_ns += now - began

    # The engine hid objects before it forked the ranks (worker/agent.py). Without the engine the
    # collector would search them, too.
    hidden = gc.get_freeze_count() > 0 and not hides_more(counted.frozen)
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
    """Have Python remember where it allocates, unless the workload already does."""
    traces = tracemalloc.is_tracing()
    if not traces:
        tracemalloc.start(_FRAMES)
    try:
        yield
    finally:
        if not traces:
            tracemalloc.stop()


Made = tuple[str, tracemalloc.Traceback | None]  # an object's type, and the calls that made it


def _traces(counted: RankStep) -> Counter[Made]:
    flags, known = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        counted.step()  # it may collect itself
        with_one = with_finalizer()
        finalized = dict(zip(map(id, with_one), _made(with_one), strict=True))
        del with_one
        live_objects(counted.frozen)
        collected = Counter(_made(gc.garbage[known:]))
        living = {id(thing) for thing in with_finalizer()}
        # Finalizers freed these: they are not among the saved ones.
        collected.update(made for key, made in finalized.items() if key not in living)
        return collected
    finally:
        gc.set_debug(flags)
        del gc.garbage[known:]


def _made(things: Iterable[object]) -> list[Made]:
    """Return what is known of each object, asked for on a stack of its own. Python notes the calls
    around each allocation, also those of the answers: on a rank's stack that takes 2 ms an object.
    """

    def made() -> list[Made]:
        return [(type(thing).__name__, tracemalloc.get_object_traceback(thing)) for thing in things]

    return greenlet(made).switch()  # type: ignore[no-any-return]


def _places(traces: Counter[Made]) -> list[Site]:
    counts = summed(((kind, _made_at(trace)), n) for (kind, trace), n in traces.items())
    # What was made before the tracing has no place.
    sites = [
        site_at(f"{kind} for the collector", place, count=count)
        for (kind, place), count in sorted(counts.items())
        if place.file
    ]
    return sorted(by_place(sites), key=lambda site: -site.count)[:PLACES]


def _made_at(trace: tracemalloc.Traceback | None) -> Place:
    stack = ((frame.filename, frame.lineno) for frame in reversed(trace or ()))
    return locate(
        (file, line, "" if is_machinery(file) else qualified(file, line, ""))
        for file, line in stack
    )
