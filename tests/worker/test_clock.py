"""Clocks: a block's steps in order, a time for each, and nothing else inside."""

import gc
import time
import weakref

import pytest
import torch
from forks import in_a_fork

from stepguard.worker import torch_device as rank_device
from stepguard.worker.block_timer import Clock, Collector, alternate

CPU = torch.device("cpu")


@pytest.mark.parametrize("steps", [1, 7])
def test_a_block_runs_its_steps_in_order(steps):
    """As many steps as asked for, each announced before it; a time for each, which add up."""
    seen = []
    block = Clock(CPU).block(lambda: seen.append("step"), steps, seen.append)
    assert seen == [item for index in range(steps) for item in (index, "step")]
    assert len(block.step_ms) == steps
    assert all(ms > 0 for ms in block.step_ms)
    assert 0 < sum(block.step_ms) <= block.wall_ms
    assert block.wall_ms == (block.ended_ns - block.began_ns) / 1e6
    assert block.events_ms == block.wall_ms and block.enqueue_ms is None


class Event:
    """A CUDA event's stand-in, which tells when it is recorded."""

    def __init__(self, seen):
        self.record = lambda: seen.append("record")


def test_a_workload_cannot_replace_the_clock(monkeypatch):
    """Clocks that a workload puts in place of time's and torch's are not asked, in a block or in
    segments; tests/gpu has the same beside a GPU's own time.
    """
    bound = rank_device._synchronize, rank_device._record, rank_device._elapsed_time

    def replaced(*args, **kwargs):
        raise AssertionError("the engine asked a clock that was replaced")

    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns"):
        monkeypatch.setattr(time, name, replaced)
    for name in ("record", "elapsed_time", "synchronize"):
        monkeypatch.setattr(torch.cuda.Event, name, replaced)
    monkeypatch.setattr(torch.cuda, "Event", replaced)
    monkeypatch.setattr(torch.cuda, "synchronize", replaced)
    found = Clock(CPU).block(lambda: None, 3, lambda index: None)
    assert found.wall_ms > 0 and len(found.step_ms) == 3
    assert len(alternate([lambda: None] * 2, [0, 1], 3, CPU, lambda: None, Collector())) == 2
    assert replaced not in bound


@pytest.mark.parametrize("device", [CPU, torch.device("cuda")])
def test_ranks_line_up_as_the_last_thing_before_a_block(device, monkeypatch):
    """What takes one rank longer than the other before a block is in neither's time."""
    seen = []
    monkeypatch.setattr(gc, "collect", lambda: seen.append("collect"))
    monkeypatch.setattr(rank_device, "_Event", lambda enable_timing: Event(seen))
    monkeypatch.setattr(rank_device, "_record", lambda event: event.record())
    monkeypatch.setattr(rank_device, "_elapsed_time", lambda event, later: 1.0)
    monkeypatch.setattr(rank_device, "_synchronize", lambda: seen.append("synchronize"))
    Clock(device).block(
        lambda: seen.append("step"), 1, lambda index: None, lambda: seen.append("line up")
    )
    host = ["collect", "line up", "step"]
    cuda = ["collect", "synchronize", "line up", "record", "step", "record", "synchronize"]
    assert seen == (host if device is CPU else cuda)


def test_no_garbage_collection_inside_a_block():
    """The collector is off while steps run, and afterwards as the workload had it, also when a step
    raises; what was frozen stays so.
    """

    def blocks():
        states = []
        gc.unfreeze()  # what the tests have put aside
        Clock(CPU).block(lambda: states.append(gc.isenabled()), 2, lambda index: None)
        assert states == [False, False] and gc.isenabled()
        with pytest.raises(ZeroDivisionError), Collector().quiet():
            raise ZeroDivisionError
        assert gc.isenabled() and gc.get_freeze_count() == 0
        gc.freeze()
        gc.disable()
        frozen = gc.get_freeze_count()
        with Collector().quiet():
            assert not gc.isenabled()
        assert not gc.isenabled() and gc.get_freeze_count() >= frozen > 0

    assert in_a_fork(blocks) == {"is": None}


def test_steps_that_leave_garbage_are_timed_with_the_collector_on():
    """From the second block on: the first one leaves more than what sets the collector off. Steps
    that leave none are timed without it for ever.
    """

    def litter():
        for _ in range(gc.get_threshold()[0]):
            one = []
            one.append(one)

    for step, expected in ((litter, [False, True, True]), (lambda: None, [False] * 3)):
        states, clock = [], Clock(CPU)

        def run(step=step, states=states):
            states.append(gc.isenabled())
            step()

        for _ in range(3):
            clock.block(run, 2, lambda index: None)
        assert states[::2] == expected
        assert gc.isenabled()


def test_a_workload_that_never_collects_is_timed_without_the_collector():
    """Whatever it leaves: its own loop does not collect, either."""
    kept, states, clock = [], [], Clock(CPU)

    def step():
        states.append(gc.isenabled())
        kept.extend([] for _ in range(2 * gc.get_threshold()[0]))

    gc.disable()
    try:
        for _ in range(3):
            clock.block(step, 1, lambda index: None)
    finally:
        gc.enable()
    assert states == [False] * 3


class Cycle:
    """An object that only Python's collector frees."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("held", [1, 3, 10])
def test_what_steps_leave_does_not_pile_up(held):
    """However many of its cycles a step still holds when a block ends: each block begins with what
    is held, and adds one cycle a step.
    """

    def blocks():
        clock, newest, alive, most = Clock(CPU), [], weakref.WeakSet(), []

        def step():
            newest.append(Cycle())
            alive.add(newest[-1])
            del newest[:-held]

        for steps in (1, 2, 2, *[7] * 10, 1, 1):
            clock.block(step, steps, lambda index: None)
            most.append(len(alive) - steps)
        return max(most)

    assert in_a_fork(blocks)["is"] <= held
