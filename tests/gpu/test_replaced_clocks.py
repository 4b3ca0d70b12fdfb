"""A workload that replaces the clocks of its process changes no time that is read. Needs a GPU."""

import time

import pytest
import torch

from stepguard.core.evidence import EVENTS_AGREE_MS, EVENTS_AGREE_SHARE
from stepguard.worker.block_timer import Clock

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_replaced_clocks_are_not_asked(monkeypatch):
    """Events, host clock and synchronization of a block are those of before: they agree with each
    other, and with a clock that the test kept.
    """
    matrix, kept = torch.randn(4096, 4096, device="cuda"), time.perf_counter_ns

    def replaced(*args, **kwargs):
        raise AssertionError("the engine asked a clock that was replaced")

    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
        monkeypatch.setattr(time, name, replaced)
    for name in ("record", "elapsed_time", "synchronize"):
        monkeypatch.setattr(torch.cuda.Event, name, replaced)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    clock = Clock(torch.device("cuda", 0))
    for _ in range(2):  # the first one makes the events and warms up
        began = kept()
        found = clock.block(lambda: matrix @ matrix, 50, lambda index: None)
        outside_ms = (kept() - began) / 1e6
    agree_ms = max(EVENTS_AGREE_MS, EVENTS_AGREE_SHARE * found.wall_ms)
    assert abs(found.wall_ms - found.events_ms) <= agree_ms
    assert sum(found.step_ms) == pytest.approx(found.events_ms, rel=0.01)
    assert found.wall_ms <= outside_ms
