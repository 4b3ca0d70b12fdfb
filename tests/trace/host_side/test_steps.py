"""What a trace says of a step: hand-made traces of known calls, and real collectives of gloo."""

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from kineto import decoded
from torch.nn.parallel import DistributedDataParallel
from training_runs import run_two_ranks

from model.workloads import train_step
from stepguard.core.metrics import COMPILED_OPERATORS
from stepguard.core.replies import Counted
from stepguard.measure.combine_ranks import counts_of
from stepguard.trace.api_calls import LAUNCH_CALLS, SYNC_CALLS
from stepguard.trace.host_steps import read_steps
from stepguard.worker.counters.profiled_steps import count_calls, trace_steps
from stepguard.worker.counters.tally import ACTIVE_STEPS, RankStep, Tally

MAIN, AUTOGRAD, GLOO = 1, 2, 3
MARK = "stepguard.step"
STEP_US = 1000.0
H2D, D2H = "HtoD (Pageable -> Device)", "DtoH (Device -> Pinned)"


class Trace:
    """A trace in the making: what is added happens one microsecond after what came before."""

    def __init__(self):
        self.events, self.now, self.correlation = [], 0.0, 0

    def add(self, cat, name, us=1.0, thread=MAIN, **args):
        """An event that lasts ``us`` and is over when the next one begins."""
        event = dict(ph="X", cat=cat, name=name, ts=self.now, dur=us, tid=thread, args=args)
        self.events.append(event)
        self.now += us
        return event

    def step(self, *calls):
        """A marked step of STEP_US in which ``calls`` are made, one after the other."""
        began = self.now
        self.add("user_annotation", MARK, 0.0)["dur"] = STEP_US
        for call in calls:
            call(self)
        assert self.now < began + STEP_US
        self.now = began + STEP_US + 1

    def steps(self, count=1):
        """What the engine reads in it."""
        return read_steps(decoded(self.events), MARK, count)


def api(name, thread=MAIN, cat="cuda_runtime", us=1.0):
    """A call of a CUDA API."""
    return lambda trace: trace.add(cat, name, us, thread)


def operator(name, *calls, thread=MAIN, **args):
    """An operator in which ``calls`` are made."""

    def add(trace):
        event = trace.add("cpu_op", name, 0.0, thread, **args)
        began = trace.now
        for call in calls:
            call(trace)
        trace.now += 1
        event["dur"] = trace.now - began

    return add


def copy(direction, size, thread=MAIN, call="cudaMemcpyAsync", recorded=True):
    """A copy's call and, unless it got lost, the GPU's record of it, later and on its stream."""

    def add(trace):
        trace.correlation += 1
        trace.add("cuda_runtime", call, 1.0, thread, correlation=trace.correlation)
        if recorded:
            record = trace.add("gpu_memcpy", f"Memcpy {direction}", 0.0, 7, bytes=size)
            record["ts"] += 5 * STEP_US  # the GPU is far behind
            record["args"]["correlation"] = trace.correlation

    return add


def nccl(name, elements, dtype):
    """A collective as NCCL's process group traces it."""
    told = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": dtype}
    return operator(f"c10d::{name}", operator("record_param_comms", **told))


def gloo(name, noted, shape, kind, thread=MAIN):
    """A collective as gloo's traces it: the type is told on gloo's own thread."""

    def add(trace):
        dims = [[shape], [], [], []]
        operator(f"c10d::{name}", thread=thread, **{"Input Dims": dims})(trace)
        args = {"Input Dims": [shape], "Input type": [kind]}
        trace.add("user_annotation", f"gloo:{noted}", 1.0, GLOO, **args)

    return add


def one_step(*calls):
    """The only step of a trace in which these calls are made."""
    trace = Trace()
    trace.step(*calls)
    return trace.steps()[0]


# Launches, copies, memsets


@pytest.mark.parametrize("call", sorted(LAUNCH_CALLS))
def test_k_launches_are_k_launches(call):
    """Launches are counted by call, of runtime and driver, on any thread and in any operator."""
    calls = [api(call), api(call, cat="cuda_driver"), operator("aten::mm", api(call))]
    found = one_step(*calls, operator("autograd::x", api(call, AUTOGRAD), thread=AUTOGRAD))
    assert found.launches == {call: 4}
    assert (found.copies, found.memsets, found.syncs) == ({}, 0, ())


@PROPERTY
@given(
    st.lists(
        st.tuples(st.sampled_from([H2D, D2H, "DtoD", "HtoD (Pinned -> Device)"]), st.integers(0)),
        max_size=20,
    )
)
def test_copies_add_up_by_direction(made):
    """Copies and bytes by direction are those that were made, though the GPU is steps behind."""
    found = one_step(*[copy(direction, size) for direction, size in made])
    assert found.copies == Counter(direction for direction, _ in made)
    expected = Counter()
    for direction, size in made:
        expected[direction] += size
    assert found.copy_bytes == expected
    assert found.lost_copies == 0


def counted(calls, device, ranks=1):
    """A tally of traced steps' calls, without the operators."""
    tally = Tally(calls=calls)
    count_calls(tally, RankStep(calls.copy, torch.device(device), world_size=ranks))
    del tally.values[COMPILED_OPERATORS]
    return tally


@pytest.mark.parametrize("size", [None, "many"])
def test_a_record_without_bytes_is_refused(size):
    """A sum without it would be wrong, and look right."""
    with pytest.raises(RuntimeError, match="an event of the trace is malformed"):
        one_step(copy(H2D, size))


def test_lost_records_leave_the_copies_uncounted():
    """A step with a lost record has no number of copies and no bytes; its launches it has."""
    trace = Trace()
    trace.step(api("cudaLaunchKernel"), copy(H2D, 8), api("cudaMemsetAsync"))
    trace.step(api("cudaLaunchKernel"), copy(H2D, 8, recorded=False), api("cudaMemsetAsync"))
    tally = counted(trace.steps(2), "cuda")
    assert tally.values == {"launches_per_step": 1, "memsets_per_step": 1}
    names = {"copies_per_step", "copied_bytes_per_step", "pageable_copies_per_step"}
    assert tally.unstable.keys() == names
    reason = tally.unstable["copies_per_step"]
    assert reason == "copies without the GPU's record, also after 3 profiles: 1"


def test_device_calls_by_name():
    """2 pageable copies of 5 B and a pinned one of 3 B back: 3 copies, 13 B, 2 pageable."""
    trace = Trace()
    for _ in range(2):
        trace.step(copy(H2D, 5), copy(H2D, 5), copy(D2H, 3), api("cuLaunchKernel"))
    tally = counted(trace.steps(2), "cuda")
    assert tally.values == {
        "launches_per_step": 1,
        "memsets_per_step": 0,
        "copies_per_step": 3,
        "copied_bytes_per_step": 13,
        "pageable_copies_per_step": 2,
    }
    assert tally.detail["copied_bytes_per_step"] == {H2D: 10, D2H: 3}
    assert tally.detail["pageable_copies_per_step"] == {H2D: 2}


# Syncs


@pytest.mark.parametrize(("call", "kind"), sorted(SYNC_CALLS.items()))
def test_a_sync_is_reported_with_its_operators(call, kind):
    """Kind, and the enclosing operators of its own thread, outermost first."""
    inner = operator("aten::item", operator("aten::_local_scalar_dense", api(call)))
    found = one_step(operator("aten::before"), operator("outer", inner), operator("aten::after"))
    chain = ("outer", "aten::item", "aten::_local_scalar_dense")
    assert [(sync.kind, sync.chain) for sync in found.syncs] == [(kind, chain)]


@pytest.mark.parametrize("count", [1, 4])
def test_k_syncs_are_k_syncs(count):
    """k waits of each kind are k of each kind, and the time inside them is theirs."""
    waits = [api(f"cuda{what}Synchronize", us=3.0) for what in ("Stream", "Device", "Event")]
    found = one_step(*waits * count, api("cudaLaunchKernel", us=10.0), api("cudaMalloc", us=2.0))
    kinds = Counter(sync.kind for sync in found.syncs)
    assert kinds == {"stream": count, "device": count, "event": count}
    assert all(sync.chain == () for sync in found.syncs)
    assert (found.sync_us, found.api_us) == (9.0 * count, 9.0 * count + 12.0)


def test_a_sync_knows_the_copy_that_it_waits_for():
    """The last copy of the same operator and thread before the wait, and no other."""
    wait = api("cudaStreamSynchronize")
    found = one_step(
        operator("aten::copy_", copy(D2H, 1), copy(H2D, 8), wait, copy(D2H, 1)),
        operator("aten::nonzero", wait),
        copy(D2H, 4),
        wait,
        operator("aten::copy_", copy(D2H, 1, AUTOGRAD), wait),
    )
    assert [sync.after_copy for sync in found.syncs] == [H2D, "", "", ""]


def test_a_blocking_copy_is_copy_and_sync():
    """cudaMemcpy waits for itself: one copy, one sync of the kind "copy"."""
    found = one_step(operator("aten::copy_", copy(D2H, 16, call="cudaMemcpy")))
    assert found.copies == {D2H: 1}
    assert [(sync.kind, sync.after_copy) for sync in found.syncs] == [("copy", D2H)]


# Operators, marks


def test_events_outside_the_marks_do_not_count():
    """What happens before, between and after the steps belongs to none of them."""
    trace = Trace()
    noise = [api("cudaLaunchKernel"), copy(H2D, 9), api("cudaDeviceSynchronize")]
    for calls in ([api("cudaLaunchKernel")], [api("cudaLaunchKernel")] * 3):
        for call in noise:
            call(trace)
        operator("aten::mm", api("cudaLaunchKernel"))(trace)
        trace.step(*calls)
    for call in noise:
        call(trace)
    first, second = trace.steps(2)
    assert (first.launches.total(), second.launches.total()) == (1, 3)
    assert not (first.copies or second.copies or first.syncs or second.syncs or first.operators)


@PROPERTY
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_order_of_the_file_does_not_matter(launches, shuffle):
    """Steps come in order of time, however the file orders its events."""
    trace = Trace()
    for count in launches:
        trace.step(*[api("cudaLaunchKernel")] * count)
    shuffle.shuffle(trace.events)
    found = [calls.launches.total() for calls in trace.steps(len(launches))]
    assert found == launches


@pytest.mark.parametrize(("held", "wanted"), [(0, 1), (1, 2), (3, 2)])
def test_a_missing_mark_raises(held, wanted):
    """A trace that lost a step, or has one too many, raises instead of counting what is there."""
    trace = Trace()
    for _ in range(held):
        trace.step(api("cudaLaunchKernel"))
    with pytest.raises(RuntimeError, match=f"the trace has {held} of {wanted} marked steps"):
        trace.steps(wanted)


def test_a_mark_is_an_annotation():
    """The GPU's shadow of the mark and an operator of that name are no marks."""
    trace = Trace()
    trace.step(api("cudaLaunchKernel"))
    trace.add("gpu_user_annotation", MARK, 100.0, 7)
    trace.add("cpu_op", MARK, 100.0)
    assert trace.steps()[0].launches == {"cudaLaunchKernel": 1}


# Collectives


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("Float", 4), ("BFloat16", 2), ("Half", 2), ("Long", 8), ("Byte", 1), ("Double", 8)],
)
def test_nccl_tells_elements_and_type(dtype, size):
    """k all-reduces of n elements are k calls and k * n * size bytes."""
    found = one_step(*[nccl("allreduce_", 10, dtype)] * 3, nccl("broadcast_", 7, dtype))
    assert found.collective_bytes == {"allreduce": 30 * size, "broadcast": 7 * size}
    told = {f"allreduce {10 * size} B": 3, f"broadcast {7 * size} B": 1}
    assert found.collectives == told
    assert not found.unsized_collectives


@pytest.mark.parametrize("told", [{}, {"dtype": "Float"}, {"In msg nelems": 3, "dtype": "Odd"}])
def test_nccl_that_does_not_tell_is_unsized(told):
    """A call without elements or of an unknown type counts as a call whose bytes are not known."""
    odd = operator("c10d::allreduce_", operator("record_param_comms", **told))
    found = one_step(odd, nccl("allreduce_", 10, "Float"))
    assert found.unsized_collectives == {"allreduce": 1}
    assert found.collectives == {"allreduce of unknown size": 1, "allreduce 40 B": 1}


@pytest.mark.parametrize(
    ("kind", "size"),
    [("float", 4), ("c10::BFloat16", 2), ("c10::Half", 2), ("long int", 8), ("unsigned char", 1)],
)
@pytest.mark.parametrize(("shape", "elements"), [([10], 10), ([2, 3, 4], 24), ([], 1)])
def test_gloo_tells_the_type_elsewhere(kind, size, shape, elements):
    """Elements stand at the call, the type on gloo's thread; a scalar tensor has one element."""
    found = one_step(*[gloo("allreduce_", "all_reduce", shape, kind)] * 2)
    assert found.collectives == {f"allreduce {elements * size} B": 2}
    assert found.collective_bytes == {"allreduce": 2 * elements * size}
    assert not found.unsized_collectives


def test_a_barrier_hands_over_nothing():
    """A barrier is a collective without bytes, with either backend, and never of unknown size."""
    dims = {"Input Dims": [[1], [], []], "Input type": ["unsigned char", "", "ScalarList"]}
    found = one_step(operator("c10d::barrier", **dims), nccl("barrier", 1, "Byte"))
    assert (found.collectives, found.collective_bytes) == ({"barrier": 2}, {})
    assert not found.unsized_collectives


def test_unsized_collectives_leave_the_bytes_uncounted():
    """Their number is exact; the bytes are not given as if the others were all."""
    trace = Trace()
    for _ in range(2):
        trace.step(operator("c10d::allreduce_"), nccl("allreduce_", 10, "Float"))
    tally = counted(trace.steps(2), "cpu", ranks=2)
    assert tally.values == {"collectives_per_step": 2}
    assert tally.unstable.keys() == {"collective_bytes_per_step"}
    assert "no size of allreduce (" in tally.unstable["collective_bytes_per_step"]


# Real traces


@pytest.mark.parametrize("count", [1, 7])
def test_a_real_trace_has_its_operators(count):
    """k in-place additions under torch's profiler are k calls of aten::add_, in every step."""
    x, y = torch.zeros(3), torch.ones(3)

    def step():
        for _ in range(count):
            x.add_(y)

    found = Tally()
    trace_steps(found, RankStep(step, torch.device("cpu")))
    assert [calls.operators["aten::add_"] for calls in found.calls] == [count] * ACTIVE_STEPS
    assert [calls.operators.total() for calls in found.calls] == [count] * ACTIVE_STEPS
    assert found.profile is None


def count_of_gloo(rank, folder):
    """Count what one of two ranks does in several steps, into a file."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    scalar, some = torch.zeros(()), torch.zeros(11)
    half, ints = torch.zeros(13, dtype=torch.bfloat16), torch.zeros(17, dtype=torch.long)
    network = DistributedDataParallel(torch.nn.Linear(30, 20))
    x = torch.randn(4, 30)
    tiny = {"size": "nano", "batch": 2, "seq": 64, "precision": "fp32", "micro_steps": 2}
    workload = train_step(**tiny, compile=False, device="cpu")

    def plain():
        for tensor in (some, some, some, scalar, half, ints):
            dist.all_reduce(tensor)
        dist.broadcast(some, 0)
        dist.barrier()

    def data_parallel():
        with network.no_sync():
            network(x).sum().backward()
        network(x).sum().backward()
        network.zero_grad()

    def two_types():
        dist.all_reduce(some)
        dist.all_reduce(torch.zeros(11, dtype=torch.long))

    def training():
        workload.step()

    found = {"parameter_bytes": sum(p.nbytes for p in workload.model.parameters())}
    for step in (plain, data_parallel, two_types, training):
        for _ in range(3):  # DistributedDataParallel arranges its buckets in its second step
            step()
        traced = Tally()
        trace_steps(traced, RankStep(step, torch.device("cpu"), world_size=2))
        found[step.__name__] = msgspec.to_builtins(counted(traced.calls, "cpu", ranks=2).counts())
    Path(folder, f"rank-{rank}").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def gloo_run(tmp_path_factory):
    """What two ranks of gloo counted of themselves, by step."""
    out = tmp_path_factory.mktemp("gloo")
    run_two_ranks(count_of_gloo, out)
    return [json.loads((out / f"rank-{rank}").read_text()) for rank in (0, 1)]


def test_gloo_all_reduces_are_counted(gloo_run):
    """3 x 11 floats, a scalar, 13 bfloat16, 17 longs, a broadcast and a barrier on each rank."""
    reduced = 3 * 11 * 4 + 4 + 13 * 2 + 17 * 8
    for rank in gloo_run:
        found = rank["plain"]
        assert found["unstable"] == {}
        assert found["values"] == {
            "collectives_per_step": 8,
            "collective_bytes_per_step": reduced + 44,
        }
        sizes = {"allreduce 44 B": 3, "allreduce 4 B": 1, "allreduce 26 B": 1, "allreduce 136 B": 1}
        calls = sizes | {"barrier": 1, "broadcast 44 B": 1}
        assert found["detail"]["collectives_per_step"] == calls
        payload = {"allreduce": reduced, "broadcast": 44}
        assert found["detail"]["collective_bytes_per_step"] == payload


def test_data_parallel_reduces_each_gradient_once(gloo_run):
    """A Linear(30, 20) in one bucket: one all-reduce of 620 floats, none for the first backward."""
    ranks = [{"counts": rank["data_parallel"]} for rank in gloo_run]
    counts = counts_of(msgspec.convert(ranks, list[Counted]), 1.0)
    assert counts.unstable == {}
    assert counts.values == {"collectives_per_step": 1, "collective_bytes_per_step": 4 * 620}
    assert counts.detail["collectives_per_step"] == {"allreduce 2480 B": 1}


def test_a_training_step_reduces_its_gradients_and_its_loss(gloo_run):
    """Two micro-steps hand over every gradient once, and the loss, a scalar: 4 B more."""
    for rank in gloo_run:
        assert rank["training"]["unstable"] == {}
        buckets = rank["training"]["detail"]["collectives_per_step"]
        assert all(name.startswith("allreduce ") for name in buckets)
        assert buckets["allreduce 4 B"] == 1
        told = [int(name.split()[1]) * calls for name, calls in buckets.items()]
        assert sum(told) == rank["training"]["values"]["collective_bytes_per_step"]
        payload = rank["training"]["values"]["collective_bytes_per_step"]
        assert payload == rank["parameter_bytes"] + 4


def test_gloo_types_that_cannot_be_told_apart_are_not_guessed(gloo_run):
    """11 floats and 11 longs in one step: two calls, and no bytes rather than wrong ones."""
    for rank in gloo_run:
        found = rank["two_types"]
        assert found["values"] == {"collectives_per_step": 2}
        assert found["unstable"].keys() == {"collective_bytes_per_step"}
