"""Memory of a step: programs whose peaks and leaks are known in bytes."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.metrics import BETWEEN_STEPS as BETWEEN
from stepguard.core.metrics import DEVICE_ALLOCATIONS, GARBAGE, GRAPH_NODES, LEAK, PEAK
from stepguard.worker import torch_device
from stepguard.worker.counters.kept_memory import live_tensor_bytes
from stepguard.worker.counters.memory_counters import _PHASE, count_memory, running_peaks
from stepguard.worker.counters.tally import ACTIVE_STEPS, LEAK_STEPS, PERIOD, RankStep, Tally
from stepguard.worker.rank_position import Phases

ROOT = Path(__file__).resolve().parents[2]
CPU, GPU = torch.device("cpu"), torch.device("cuda")
N = 1 << 14
UNIT = 4 * N  # bytes of an empty(N)
OUTSIDE = "before any phase"

pytestmark = pytest.mark.usefixtures("own_heap")


def empty(units):
    """A tensor of so many UNITs."""
    return torch.empty(units * N)


@pytest.fixture
def counted():
    """Counts a step made by ``make(phases)``: (tally, its values and detail in units of UNIT).

    What the rest of this process holds is taken off the peaks, and off what lives between steps.
    """

    def count(make):
        held = live_tensor_bytes()
        tally, phases = Tally(), Phases()
        step = make(phases)
        step()
        count_memory(tally, RankStep(step, CPU, phases))
        assert phases.listener is None
        peak = (tally.values[PEAK] - held) / UNIT if PEAK in tally.values else None
        detail = {name: (peak - held) / UNIT for name, peak in tally.detail.get(PEAK, {}).items()}
        return SimpleNamespace(
            peak=peak,
            by_phase=detail,
            leak=tally.values[LEAK],
            between=(tally.values[BETWEEN] - held) / UNIT,
            unstable=tally.unstable,
        )

    return count


def test_a_peak_is_the_most_that_lives_at_once(counted):
    """1 + 2 units, 1 freed, 4 more: 3 in the forward, 6 in the backward, where the peak is."""

    def make(phases):
        def step():
            phases("forward")
            a, b = empty(1), empty(2)
            del a
            phases("backward")
            c = empty(4)
            del b, c

        return step

    found = counted(make)
    assert found.peak == 6
    assert found.by_phase == {OUTSIDE: 0, "forward": 3, "backward": 6}
    assert (found.leak, found.unstable) == (0, {})


def test_a_phase_that_comes_back_has_its_highest_peak(counted):
    """Two micro-steps of 1 and 4 units: the forward's peak is 4, not the last one's or the sum."""

    def make(phases):
        def step():
            for units in (4, 1):
                phases("forward")
                empty(units)
                phases("backward")
                empty(2)

        return step

    assert counted(make).by_phase == {OUTSIDE: 0, "forward": 4, "backward": 2}


def test_gradients_are_counted_while_they_live(counted):
    """Weight and ones: 2 units. The old gradient, the result and the new gradient: 1 each."""

    def make(phases):
        weight = torch.ones(N, requires_grad=True)
        ones = torch.ones(N)

        def step():
            weight.grad = None
            phases("forward")
            result = weight.exp()  # kept for the backward
            phases("backward")
            result.backward(ones)

        return step

    found = counted(make)
    assert found.by_phase == {OUTSIDE: 3, "forward": 3, "backward": 4}
    assert (found.leak, found.unstable) == (0, {})


@pytest.mark.parametrize("units", [1, 3])
def test_a_leak_is_reported_in_bytes_a_step(counted, units):
    """A list that grows by some units a step is that leak, and the peak is no unstable count."""

    def make(phases):
        kept = []

        def step():
            kept.append(empty(units))
            empty(2)

        return step

    found = counted(make)
    assert (found.leak, found.unstable) == (units * UNIT, {})
    assert found.peak is not None


def test_what_a_step_keeps_lives_between_steps(counted):
    """3 units of weights and the newest 5 units of each step, that are replaced: 8, and no leak; a
    step that keeps nothing has its weights.
    """

    def make(phases, keeps):
        weights, module = empty(3), SimpleNamespace()

        def step():
            logits = weights[:1] + empty(5)[:1]
            logits = empty(5)
            if keeps:
                module.logits = logits

        return step

    found = counted(lambda phases: make(phases, keeps=True))
    assert (found.between, found.leak, found.unstable) == (8, 0, {})
    assert counted(lambda phases: make(phases, keeps=False)).between == 3


def test_what_only_a_graph_holds_lives_between_steps(counted):
    """A kept node of autograd has the unit that its backward pass would read, and no tensor."""

    def make(phases):
        weight, holder = torch.ones(N, requires_grad=True), SimpleNamespace()

        def step():
            holder.node = (weight * torch.ones(N)).grad_fn

        return step

    assert counted(make).between == 2


@pytest.mark.parametrize("dropped", ["first", "last", "never"])
def test_gradients_do_not_count(counted, dropped):
    """A weight of 1 unit is all, whether its gradient is dropped before a step's backward pass,
    after it, or is added to: the order of lines that costs nothing must not count.
    """

    def make(phases):
        weight = torch.ones(N, requires_grad=True)

        def step():
            if dropped == "first":
                weight.grad = None
            weight.sum().backward()
            if dropped == "last":
                weight.grad = None

        return step

    assert counted(make).between == 1


@pytest.mark.parametrize(("layout", "block", "size_bytes"), [
    (torch.sparse_coo, None, 10 * UNIT),  # row and column of each value, in int64
    (torch.sparse_csr, None, 6 * UNIT + 24),
    (torch.sparse_csc, None, 8 * UNIT + 8),
    (torch.sparse_bsr, (1, N), 2 * UNIT + 40),
    (torch.sparse_bsc, (2, N), 2 * UNIT + 24),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_sparse_constant_lives_between_steps(counted, layout, block, size_bytes):
    """2 units of values, and their indices: what a step reads, whatever layout it has."""
    matrix = torch.ones(2, N).to_sparse(layout=layout, blocksize=block)

    def make(phases):
        kept = matrix.clone()
        return lambda: kept.dim()

    assert counted(make).between == size_bytes / UNIT


class _Quantized(torch.nn.Parameter):
    """A parameter of a library's own class."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise TypeError("not before it is loaded")


def test_a_subclass_of_a_parameter_lives_between_steps(counted):
    """2 units of weights that a library has a class of its own for, whatever that answers; a tensor
    that only says that it has bytes (FakeTensor) has none.
    """
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(5 * N)

    def make(phases):
        weights = _Quantized(empty(2), requires_grad=False)
        return lambda: (id(weights), id(fake))

    assert counted(make).between == 2


def test_what_vmap_wraps_lives_between_steps(counted):
    """A step that keeps the tensor which its function got keeps 2 units, and is no failure."""

    def make(phases):
        kept = [None]

        def row(values):
            kept[0] = values
            return values.sum()

        return lambda: torch.vmap(row)(empty(2).view(2, -1))

    assert counted(make).between == 2


def test_what_torch_traces_is_no_failure(counted):
    """A step that keeps tensors of a trace: vmap's of fake ones, without bytes, and a functional
    one, of 1 unit.
    """

    def make(phases):
        traced = [torch._to_functional_tensor(empty(1))]

        def row(values):
            traced.append(values)
            return values.sum()

        with torch._subclasses.FakeTensorMode() as mode:
            torch.vmap(row)(mode.from_tensor(torch.ones(2, 2)))
        return lambda: traced

    assert counted(make).between == 1


def test_both_of_two_buffers_live_between_steps(counted):
    """Two that are replaced in turns are 2 units in whichever step it is counted."""

    def make(phases):
        buffers, steps = [empty(1), empty(1)], []

        def step():
            steps.append(0)
            buffers[len(steps) % 2] = empty(1)

        return step

    assert counted(make).between == 2


def test_what_a_compiled_step_keeps_lives_between_steps(counted):
    """Its result and its weights: 1 unit each."""

    def make(phases):
        weights, module = torch.ones(N), SimpleNamespace()
        doubled = torch.compile(lambda x: x.sin() * 2, backend="aot_eager")

        def step():
            module.kept = doubled(weights)

        return step

    assert counted(make).between == 2


def test_a_cycle_is_no_leak(counted):
    """What only the garbage collector can free is not left behind by the step."""

    def make(phases):
        def step():
            holder = SimpleNamespace(tensor=empty(1))
            holder.itself = holder

        return step

    gc.disable()
    try:
        found = counted(make)
    finally:
        gc.enable()
    assert (found.leak, found.between) == (0, 0)


def test_a_leak_in_every_other_step_is_half_of_it(counted):
    """2 units in every other step are 1 unit a step."""

    def make(phases):
        kept, steps = [], []

        def step():
            steps.append(0)
            if len(steps) % 2:
                kept.append(empty(2))

        return step

    assert counted(make).leak == UNIT


def test_alternating_buffers_are_no_leak(counted):
    """Two buffers of 1 unit replaced in turns: 3 while the new one comes, 4 with 2 more after it.

    The peak is stable, though each buffer is freed two steps after it was made.
    """

    def make(phases):
        buffers, steps = [empty(1), empty(1)], []

        def step():
            steps.append(0)
            buffers[len(steps) % 2] = empty(1)
            empty(2)

        return step

    found = counted(make)
    assert (found.peak, found.leak, found.unstable) == (4, 0, {})


def test_a_step_that_shrinks_leaks_nothing(counted):
    """Frees of older tensors are no negative leak."""

    def make(phases):
        kept = [empty(1) for _ in range(20)]
        return kept.pop

    assert counted(make).leak == 0


def test_of_peaks_that_differ_the_largest_counts(counted):
    """2 units in one step and 3 in the next are no leak."""

    def make(phases):
        steps = []

        def step():
            steps.append(0)
            empty(2 + len(steps) % 2)

        return step

    found = counted(make)
    assert (found.peak, found.leak, found.unstable) == (3, 0, {})


def test_a_leaked_graph_is_a_leak(counted):
    """A loss kept with its graph is seen. On a CPU by what Python can reach alone: at least 4 B."""

    def make(phases):
        weight, kept = torch.ones(N, requires_grad=True), []
        return lambda: kept.append(weight.exp().sum())

    found = counted(make)
    assert 4 <= found.leak <= UNIT + 4
    assert found.unstable == {}


def test_a_failing_step_leaves_no_listener():
    """The workload's error comes through, and phases are no longer listened to."""
    phases = Phases()

    def step():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        count_memory(Tally(), RankStep(step, CPU, phases))
    assert phases.listener is None


# Live storages


def test_a_storage_counts_once():
    """Views share a storage, which counts whole; gradients, parameters and buffers count."""
    held = live_tensor_bytes()
    whole = empty(8)
    part = whole[:N].view(2, -1)
    assert live_tensor_bytes() - held == 8 * UNIT
    del whole
    assert live_tensor_bytes() - held == 8 * UNIT
    del part
    assert live_tensor_bytes() == held
    network = torch.nn.Linear(N, 1, bias=False)
    network.register_buffer("extra", empty(1))
    assert live_tensor_bytes() - held == 2 * UNIT
    network(torch.ones(1, N)).sum().backward()
    assert live_tensor_bytes() - held == 3 * UNIT


# Running sums


class Event:
    """A profiler event: an allocation, a free or a phase."""

    def __init__(self, at, name="[memory]", size=0):
        self.start_ns, self.name, self.nbytes = lambda: at, lambda: name, lambda: size


def test_peaks_of_known_events():
    """100 live, then +50 -20 +30 by time, not by position, and a phase before the last one."""
    events = [Event(4, size=30), Event(1, size=50), Event(9, "aten::mm", 999), Event(2, size=-20),
              Event(3, _PHASE + "backward")]  # fmt: skip
    assert running_peaks(events, 100) == {OUTSIDE: 150, "backward": 160}


@PROPERTY
@given(
    st.lists(st.integers(-1000, 1000), max_size=30),
    st.integers(0, 10**9),
    st.integers(0, 30),
)
def test_the_highest_phase_is_the_highest_prefix(changes, live, border):
    """Wherever a phase begins, the highest peak is live plus the highest prefix sum, or live."""
    events = [Event(2 * at, size=size) for at, size in enumerate(changes)]
    events.append(Event(2 * border - 1, _PHASE + "forward"))
    prefixes = [sum(changes[: index + 1]) for index in range(len(changes))]
    assert max(running_peaks(events, live).values()) == live + max(0, *prefixes, 0)


class FakeGpu:
    """An allocator of known requests in torch.cuda's place."""

    def __init__(self, monkeypatch):
        self.current = self.peak = self.mallocs = 0
        for name, function in {
            "memory_stats": self.stats,
            "reset_peak_memory_stats": self.reset,
        }.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch_device, "_synchronize", lambda: None)

    def add(self, size):
        self.current += size
        self.peak = max(self.peak, self.current)

    def reset(self):
        self.peak = self.current

    def stats(self):
        return {
            "requested_bytes.all.peak": self.peak,
            "requested_bytes.all.current": self.current,
            "num_device_alloc": self.mallocs,
            "reserved_bytes.all.peak": 12345,
        }


def test_on_a_gpu_the_allocator_is_asked(monkeypatch):
    """Peaks by phase of requested bytes, the leak, and one cudaMalloc in four steps as one."""
    gpu, phases, tally = FakeGpu(monkeypatch), Phases(), Tally()
    gpu.add(100)
    steps = []

    def step():
        steps.append(0)
        phases("forward")
        gpu.add(50)
        phases("backward")
        gpu.add(-30)
        gpu.add(5)
        gpu.mallocs += len(steps) % LEAK_STEPS == 0
        gpu.add(-25)

    count_memory(tally, RankStep(step, GPU, phases))
    left = {GRAPH_NODES: 0, GARBAGE: 0}
    assert tally.values == {BETWEEN: 100, PEAK: 150, LEAK: 0, DEVICE_ALLOCATIONS: 1} | left
    assert tally.detail[PEAK] == {OUTSIDE: 100, "forward": 150, "backward": 150}
    calls = {"cudaFree": 0, "cudaMalloc": 1, "retries": 0}
    assert tally.detail[DEVICE_ALLOCATIONS] == calls
    assert tally.information == {"peak_reserved_bytes": 12345}


def test_a_cache_that_a_step_empties_has_its_line(monkeypatch):
    """Each step, by whatever name the function was imported; afterwards nobody listens."""
    gpu, tally = FakeGpu(monkeypatch), Tally()
    empty = getattr(torch._C, "_accelerator_emptyCache", None)  # torch 2.8 has none
    monkeypatch.setattr(torch._C, "_accelerator_emptyCache", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: None, raising=False)

    def step():
        torch._C._accelerator_emptyCache()  # as torch.accelerator's does where there is one
        torch._C._cuda_emptyCache()
        gpu.mallocs += 3

    count_memory(tally, RankStep(step, GPU))
    assert tally.values[DEVICE_ALLOCATIONS] == 3
    sites = tally.sites[DEVICE_ALLOCATIONS]
    assert {site.what for site in sites} == {"torch.cuda.empty_cache()"}
    assert [(site.text.split("(")[0], site.count) for site in sites] == [
        ("torch._C._accelerator_emptyCache", 1),
        ("torch._C._cuda_emptyCache", 1),
    ]
    monkeypatch.undo()
    assert getattr(torch._C, "_accelerator_emptyCache", None) is empty


def test_a_leak_on_a_gpu_is_exact(monkeypatch):
    """7 bytes a step are 7, and the peak is the last step's."""
    gpu, tally = FakeGpu(monkeypatch), Tally()
    count_memory(tally, RankStep(lambda: gpu.add(7), GPU))
    assert tally.values == {
        BETWEEN: 7 * PERIOD,
        PEAK: 7 * (PERIOD + ACTIVE_STEPS),
        LEAK: 7,
        DEVICE_ALLOCATIONS: 0,
        GRAPH_NODES: 0,
        GARBAGE: 0,
    }
    assert tally.unstable == {}


@pytest.fixture(scope="module")
def frozen():
    """What is counted of leaks in a process that holds little else."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/worker")))
    command = [sys.executable, "-m", "frozen_leaks"]
    return json.loads(subprocess.check_output(command, env=os.environ | {"PYTHONPATH": paths}))


def test_leaks_that_python_cannot_see(frozen):
    """1000 bytes a step are a leak of 1000 bytes, held as a bare storage or by autograd alone; so
    are those of a tensor (3000) and of garbage (1000) that gc.freeze() has put out of the
    collector's sight; the collector stays as it was set.
    """
    leaks = {"held": 1000 + 1000, "frozen": 3000 + 1000}
    assert frozen["leaks"] == [leaks, False, False]


def test_what_a_workload_freezes_is_looked_at(frozen):
    """Whenever it does, and however often it was looked before."""
    assert frozen["seen"] == [[1, 2, 3, 4, 5], [1, 2]]
