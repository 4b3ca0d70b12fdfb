"""Clocks: a block's steps in order, a time for each, and nothing else inside."""

import gc
import itertools
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from forks import in_a_fork

from stepguard.worker import torch_device as rank_device
from stepguard.worker.block_timer import ALL, YOUNG, Clock, Collector
from stepguard.worker.rank_session import Session
from stepguard.worker.step_variants import alternate

CPU = torch.device("cpu")


@pytest.mark.parametrize("steps", [1, 7])
def test_a_block_runs_its_steps_in_order(steps):
    """As many steps as asked for, each announced before it; a time for each, which add up."""
    seen = []
    block = Clock(CPU).block(lambda: seen.append("step"), steps, seen.append)
    assert seen == [item for index in range(steps) for item in (index, "step")]
    assert len(block["step_ms"]) == steps
    assert all(ms > 0 for ms in block["step_ms"])
    assert 0 < sum(block["step_ms"]) <= block["wall_ms"]
    assert block["wall_ms"] == (block["ended_ns"] - block["began_ns"]) / 1e6
    assert block["events_ms"] == block["wall_ms"] and block["enqueue_ms"] is None


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
    assert found["wall_ms"] > 0 and len(found["step_ms"]) == 3
    assert len(alternate([lambda: None] * 2, [0, 1], 3, CPU, lambda: None, Collector())) == 2
    assert replaced not in bound


@pytest.mark.parametrize("device", [CPU, torch.device("cuda")])
def test_ranks_line_up_as_the_last_thing_before_a_block(device, monkeypatch):
    """What takes one rank longer than the other before a block is in neither's time."""
    seen = []
    monkeypatch.setattr(gc, "collect", lambda generation: seen.append("collect") or 0)
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
        with pytest.raises(ZeroDivisionError), Collector().quiet(1):
            raise ZeroDivisionError
        assert gc.isenabled() and gc.get_freeze_count() == 0
        gc.freeze()
        gc.disable()
        frozen = gc.get_freeze_count()
        with Collector().quiet(1):
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


class Held:
    """A cycle that a step holds until the next step."""

    def __init__(self):
        self.itself = self


def searched_and_kept(step, steps, blocks, clock):
    """Return which generations are searched before so many blocks, and the most ``Held`` that were
    alive after one of them.
    """
    searched, most = [], 0

    def note(phase, info):
        if phase == "start":
            searched.append(info["generation"])

    gc.callbacks.append(note)
    for _ in range(blocks):
        clock.block(step, steps, lambda index: None)
        most = max(most, len(ALIVE))
    gc.callbacks.remove(note)
    return searched, most


ALIVE = weakref.WeakSet()


@pytest.mark.parametrize(("steps", "expected"), [(2, [ALL, ALL, YOUNG, YOUNG]), (1, [ALL] * 4)])
def test_only_the_blocks_of_a_clean_step_are_searched_for_young_garbage_alone(steps, expected):
    """A step is clean if a search after two or more of its steps found nothing."""

    def blocks():
        gc.collect()
        return searched_and_kept(lambda: None, steps, 4, Clock(CPU))

    assert in_a_fork(blocks) == {"is": [expected, 0]}


def test_what_steps_leave_does_not_pile_up():
    """Neither of a step that leaves garbage from the start, nor of one that begins to, whatever the
    length of its blocks: at most that of one block, and what the block before still held.
    """

    def step():
        held[:] = [Held()]
        ALIVE.add(held[0])

    def blocks(steps, clean):
        gc.collect()
        clock = Clock(CPU)
        searched_and_kept(lambda: None, 2, clean, clock)
        return searched_and_kept(step, steps, 12, clock)

    held = []
    for steps, clean in itertools.product((1, 2, 7), (0, 4)):
        searched, most = in_a_fork(lambda n=steps, c=clean: blocks(n, c))["is"]
        assert most <= steps + 2, (steps, clean)
        assert YOUNG not in searched[2:], (steps, clean)


def test_what_ages_inside_a_block_does_not_pile_up():
    """If the collector stays on in blocks, it ages what steps still hold. So what they drop later
    is not young, even if nothing young is left behind.
    """

    def step():
        held.append(Held())
        ALIVE.add(held[-1])
        kept[:] = [{n} for n in range(120)]
        del held[:-3]

    def blocks():
        gc.collect()
        gc.set_threshold(20, 0, 1000)
        return searched_and_kept(step, 4, 12, Clock(CPU))

    held, kept = [], []
    searched, most = in_a_fork(blocks)["is"]
    assert most <= 10 and {0, YOUNG} < {*searched}


def test_all_objects_are_searched_after_other_commands_than_blocks(monkeypatch):
    """A counting pass, for example, may leave garbage that is no longer young. Parking leaves
    none.
    """
    session = object.__new__(Session)
    session.note, session.machine = Notes(), SimpleNamespace(since=dict)
    session.clock = SimpleNamespace(collector=Collector())
    seen = []

    def block():
        seen.append(session.clock.collector.clean)
        session.clock.collector.clean = True
        return {}

    monkeypatch.setattr(session, "do_block", block)
    for name in ("park", "count"):
        monkeypatch.setattr(session, f"do_{name}", dict)
    asked = ["block", "block", "park", "block", "count", "block", "block", "exit"]
    session.channel = SimpleNamespace(
        receive=lambda: {"command": asked.pop(0)}, gather=lambda one: [one], reply=lambda one: None
    )
    session.serve()
    assert seen == [False, True, True, False, True]


class Notes:
    """Takes a rank's notes, and keeps none."""

    def command(self, text):
        """Take what a rank does."""
