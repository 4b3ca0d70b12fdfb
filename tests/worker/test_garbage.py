"""Garbage of steps: programs that leave a known number of objects to the collector."""

import gc
import threading
import tracemalloc

import pytest
import torch

from stepguard.core.metrics import GARBAGE, GRAPH_NODES
from stepguard.worker.counters.garbage import locate_garbage
from stepguard.worker.counters.memory_counters import count_left
from stepguard.worker.counters.tally import RankStep, Tally

pytestmark = pytest.mark.usefixtures("own_heap")


def counted(step, frozen=-1):
    """A tally of a program's garbage, with its places: (count, what, source)."""
    tally, program = Tally(), RankStep(step, torch.device("cpu"), frozen=frozen)
    step()
    program.run_period()
    count_left(tally, program)
    tally.values.pop(GRAPH_NODES)
    locate_garbage(tally, program)
    places = [(site.count, site.what, site.text) for site in tally.sites.get(GARBAGE, ())]
    return tally, places


def load(samples):
    """A loader whose samples refer to themselves."""
    for _ in range(samples):
        sample = {"ids": [1, 2, 3]}
        sample["self"] = sample


def test_objects_that_refer_to_themselves_have_their_line():
    """A dictionary and its list, 64 times a step; and the pauses are measured beside them."""
    tally, places = counted(lambda: load(64))
    assert tally.values == {GARBAGE: 128}
    assert places == [
        (128, "dict for the collector, list for the collector", 'sample = {"ids": [1, 2, 3]}')
    ]
    assert [site.function for site in tally.sites[GARBAGE]] == ["load"]
    assert tally.information["gc_pause_ms_per_step"] >= 0


def test_classes_that_have_no_hash_are_counted():
    """A metaclass that compares classes takes their hash from them."""

    class ByName(type):
        def __eq__(cls, other):
            return cls.__name__ == getattr(other, "__name__", None)

    class Handle(metaclass=ByName):
        __slots__ = ("itself",)

        def __del__(self):
            pass

    def step():
        for _ in range(16):
            handle = Handle()
            handle.itself = handle

    tally, places = counted(step)
    assert tally.values == {GARBAGE: 16}
    assert places == [(16, "Handle for the collector", "handle = Handle()")]


def test_a_training_step_leaves_none():
    """A model, its backward pass and AdamW: no garbage, no place, nothing measured."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    tally, places = counted(step)
    assert (tally.values, tally.information, places) == ({GARBAGE: 0}, {}, [])


def test_garbage_of_what_counts_bytes_is_not_the_steps():
    """On a GPU the border's torch.cuda.memory_stats() leaves objects that refer to themselves."""
    tally, nothing = Tally(), RankStep(lambda: None, torch.device("cpu"), frozen=-1)
    count_left(tally, nothing, lambda: load(64))
    assert tally.values[GARBAGE] == 0


class Rows:
    """An object that keeps its own generator, as loaders do."""

    def __init__(self):
        self.rows = self.each()

    def each(self):
        """The rows."""
        yield self


def test_what_a_finalizer_frees_is_garbage(monkeypatch):
    """Python's collector ends a suspended generator, and does not count what that frees."""
    # Another test of this process may have left a thread.
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    tally, places = counted(lambda: [Rows() for _ in range(64)].clear())
    assert tally.values == {GARBAGE: 64}
    assert places == [(64, "generator for the collector", "self.rows = self.each()")]


def test_what_another_thread_frees_is_not_the_steps():
    """A thread that prepares batches begins and ends generators while a step's garbage is counted:
    none of them is the step's.
    """
    ends = threading.Event()

    def prepare():
        while not ends.is_set():
            kept = [iter(value for value in range(3)) for _ in range(100)]
            kept.clear()

    thread = threading.Thread(target=prepare)
    thread.start()
    try:
        assert counted(lambda: None)[0].values == {GARBAGE: 0}
    finally:
        ends.set()
        thread.join()


@pytest.mark.parametrize("freezes", [0, 1, -1], ids=["before", "once", "in each step"])
def test_garbage_that_is_frozen_counts(freezes):
    """Python's collector never frees what gc.freeze() hides. Each step replaces the state of the
    step before it.
    """
    kept = []

    def step():
        kept.clear()
        state = {"ids": [1, 2, 3]}
        state["self"] = state
        kept.append(state)
        if freezes < 0:
            gc.freeze()

    gc.freeze()
    if freezes == 1:
        step()
        gc.freeze()
    try:
        tally, places = counted(step, frozen=1)
        assert (tally.values, tally.unstable) == ({GARBAGE: 2}, {})
        assert [place[2] for place in places] == ['state = {"ids": [1, 2, 3]}']
    finally:
        gc.unfreeze()


def test_what_a_step_collects_itself_is_garbage():
    """The search takes the same time, whoever asks for it."""

    def step():
        load(64)
        gc.collect()

    tally, places = counted(step)
    assert tally.values == {GARBAGE: 128}
    assert [place[2] for place in places] == ['sample = {"ids": [1, 2, 3]}']


def test_every_other_step_has_half_of_it():
    """Rounded up: two objects in two steps are one in each."""
    steps = []

    def step():
        steps.append(0)
        if len(steps) % 2:
            load(1)

    assert counted(step)[0].values == {GARBAGE: 1}


def test_a_number_that_differs_is_a_list():
    """More in each step."""
    steps = []

    def step():
        steps.append(0)
        load(len(steps))

    tally, places = counted(step)
    first, second = tally.lists[GARBAGE]
    assert second > first and tally.values == {GARBAGE: first + second}
    assert places[0][2] == 'sample = {"ids": [1, 2, 3]}'


@pytest.mark.parametrize("collects", [True, False])
def test_the_collector_is_left_as_it_was(collects):
    """On or off, with its flags; and nothing traces allocations afterwards."""
    if not collects:
        gc.disable()
    try:
        counted(lambda: load(1))
        assert gc.isenabled() is collects
        assert (gc.get_debug(), gc.garbage, tracemalloc.is_tracing()) == (0, [], False)
    finally:
        gc.enable()
