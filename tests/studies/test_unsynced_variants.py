"""The ways to run a step: pageable batches hold the same tokens, phases add up."""

import time
from itertools import count

import pytest
import torch

from model.data.loader import BatchLoader
from model.data.shards import STDLIB_SHARD, Tokens
from studies.unsynced_clock.variants import PageableLoader, PhasedLoader, PhaseTimes

CPU = torch.device("cpu")


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (1, 3)])
def test_pageable_batches_are_those_of_the_workloads_loader(rank, ranks):
    """The same inputs and targets, batch by batch, also where the shard begins anew."""
    shape = (64, 1024)
    theirs = BatchLoader(Tokens.open(STDLIB_SHARD), *shape, rank, ranks, "cpu")
    ours = PageableLoader(shape, rank, ranks, CPU)
    for _ in range(20):  # 16 batches are a shard
        for found, wanted in zip(ours.next(), theirs.next(), strict=True):
            assert torch.equal(found, wanted) and found.dtype == wanted.dtype


class FakeEvent:
    """An event that ticks once with every record; 1 ms a tick."""

    ticks = count()

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        """Now."""
        self.at = next(FakeEvent.ticks)

    def elapsed_time(self, later):
        """In ms."""
        return float(later.at - self.at)


class FakeClock:
    """The host's clock, moved by hand."""

    def __init__(self, monkeypatch):
        self.ns = 0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.ns)

    def wait_ms(self, ms):
        """So long passes."""
        self.ns += ms * 1_000_000


def test_phases_nest_and_add_up(monkeypatch):
    """A phase entered twice a step counts twice. Each opening and closing is a tick of the events:
    one within an inner phase, five within the outer one.
    """
    clock = FakeClock(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    times = PhaseTimes(gpu=True)
    for times.step in range(3):
        with times.phase("outer"):
            clock.wait_ms(1)
            for _ in range(2):
                with times.phase("inner"):
                    clock.wait_ms(3)
    assert times.means() == {
        "outer": {"host_ms": 7.0, "gpu_ms": 5.0},
        "outer > inner": {"host_ms": 6.0, "gpu_ms": 2.0},
    }
    assert list(times.means()) == ["outer", "outer > inner"]


def test_the_first_step_is_left_out(monkeypatch):
    """It begins on an empty queue, unlike the others."""
    clock, times = FakeClock(monkeypatch), PhaseTimes(gpu=False)
    for times.step in range(3):
        with times.phase("a"):
            clock.wait_ms(900 if times.step == 0 else 4)
    assert times.means() == {"a": {"host_ms": 4.0, "gpu_ms": None}}


def test_a_loader_can_be_a_phase():
    """The batch is the other loader's; the time stands under ``load``."""

    class Loader:
        def next(self):
            return "batch"

    times = PhaseTimes(gpu=False)
    for times.step in range(2):
        assert PhasedLoader(Loader(), times).next() == "batch"
    assert list(times.means()) == ["load"]
