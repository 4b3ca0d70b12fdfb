"""CudaStamp as anybody's pytest-benchmark timer, on a pretended device."""

import json

import pytest

torch = pytest.importorskip("torch")
TIMER = "--benchmark-timer=stepguard.worker.cuda_stamp.CudaStamp"
TEST = """
def test_mine(benchmark):
    benchmark.pedantic(lambda: None, rounds=5, iterations=1)
"""


class FakeEvent:
    """A CUDA event on a device where every round takes 2.5 ms, whatever the host's clock says."""

    made = 0

    def __init__(self, enable_timing=False):
        assert enable_timing
        self.at_ms = None
        self.waited = False

    def record(self):
        self.at_ms = 2.5 * FakeEvent.made
        FakeEvent.made += 1

    def synchronize(self):
        self.waited = True

    def elapsed_time(self, later):
        assert later.waited, "asked for the time of an event that nobody waited for"
        return later.at_ms - self.at_ms


@pytest.fixture
def device(monkeypatch):
    """A pretended GPU."""
    monkeypatch.setattr(FakeEvent, "made", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)


def test_rounds_last_what_the_events_say(pytester, device):
    """Each round is the difference of two events, in seconds; stepguard's plugin is not needed."""
    pytester.makepyfile(TEST)
    result = pytester.runpytest_inprocess(TIMER, "--benchmark-json=bench.json")
    result.assert_outcomes(passed=1)
    (bench,) = json.loads((pytester.path / "bench.json").read_text())["benchmarks"]
    assert bench["stats"]["data"] == pytest.approx([2.5e-3] * 5)


def test_the_later_event_is_waited_for(device):
    """a - b waits for a alone and gives seconds of device time from b to a."""
    from stepguard.worker.cuda_stamp import CudaStamp

    first, _, third = CudaStamp(), CudaStamp(), CudaStamp()
    assert third - first == pytest.approx(5e-3)
    assert not first._event.waited


def test_without_a_gpu_the_error_is_clear(pytester, monkeypatch):
    """Where torch finds no GPU the test fails and says what to leave out; nothing is timed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pytester.makepyfile(TEST)
    result = pytester.runpytest_inprocess(TIMER)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*RuntimeError: CudaStamp needs a GPU that torch can use; torch * finds none.*"]
    )
    result.stdout.fnmatch_lines(["*Leave --benchmark-timer out to use the host's clock.*"])
    result.stdout.no_fnmatch_line("*Rounds*")
