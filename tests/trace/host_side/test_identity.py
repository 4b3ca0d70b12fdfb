"""The identity of a step: what differs in what runs shows, and what is not known is said."""

import copy

import pytest
from kineto import AUTOGRAD, Kineto, decoded
from msgspec import Raw
from msgspec.structs import replace

from stepguard.trace.chrome_trace import Details
from stepguard.trace.host_steps import identity_of, with_settings

MARK, STEPS = "stepguard.step", 3
OPERANDS = {"Input Dims": [[4, 8]], "Input Strides": [[8, 1]], "Input type": ["float"]}


def trace(change=lambda number, add: None):
    """Three steps of a product, a copy, a wait and a generated kernel; ``change`` may add more."""
    found = Kineto()
    for number in range(STEPS):
        at = 1000.0 * number
        found.annotation(MARK, at, at + 900)
        found.annotation("## Call CompiledFxGraph " + "abc"[number], at + 5, at + 800)
        found.event("cpu_op", "aten::mm", at + 10, 5, **OPERANDS, **{"External id": 7 + number})
        found.kernel(at + 11, at + 20, at + 60, "gemm", grid=[2, 1, 1], block=[64, 1, 1])
        found.event("cpu_op", "triton_poi_0", at + 30, 5, tid=AUTOGRAD, kernel_hash="cabc")
        found.kernel(at + 31, at + 60, at + 90, "triton_poi_0", tid=AUTOGRAD, grid=[9, 1, 1])
        found.copy(at + 40, at + 90, at + 95, bytes=64)
        found.event("cpu_op", "record_param_comms", at + 50, 5, dtype="Float", Seq=number)
        found.call("cudaEventQuery", at + 55)
        found.call("cudaStreamSynchronize", at + 56)
        change(number, found)
    return found.events


def identity(change=lambda number, add: None):
    """That of the trace."""
    return identity_of(decoded(trace(change)), MARK, STEPS)


def edited(name, **args):
    """The trace with other arguments in every event of that name."""
    events = copy.deepcopy(trace())
    for event in (one for one in events if one["name"] == name):
        event["args"] |= args
    return identity_of(decoded(events), MARK, STEPS)


def test_the_same_is_the_same():
    """Wherever it is recorded: threads, streams and correlations have other numbers then."""
    events = copy.deepcopy(trace())
    for event in events:
        event["ts"] += 12345
        event["tid"] = {1: 4711, AUTOGRAD: 4712}.get(event["tid"], event["tid"])
        for key in ("correlation", "External id", "stream"):
            if key in event["args"]:
                event["args"][key] += 1000
    found = identity_of(decoded(events), MARK, STEPS)
    assert found.parts and not found.problem and found == identity()

    def poll(number, add):
        for _ in range(number):  # another number in each step, by a thread that comes first in one
            add.call("cudaEventQuery", 1000 * number + number, tid=99)

    assert identity(poll) == found


def test_a_label_is_no_part_of_it():
    """Such as that of an optimizer, under torch.compile."""
    label = "profiler::_record_function_enter_new"
    assert identity(lambda n, add: add.event("cpu_op", label, 1000 * n + 70, 1)) == identity()


@pytest.mark.parametrize("around", ["", "mine::gelu", "triton_poi_1"])
def test_a_kernel_that_somebody_wrote_is_not_known(around):
    """Its body may change and nothing else: no operator, an extension's, no hash of the code."""

    def launch(number, add):
        at = 1000.0 * number + 200
        if around:
            add.event("cpu_op", around, at, 20)
        add.kernel(at + 1, at + 20, at + 60, "gelu", grid=[2, 1, 1])

    assert "code is not known" in identity(launch).problem


def test_a_generated_kernel_without_a_hash_is_not_known():
    """The compiler gives none to a kernel of a template."""
    assert "code is not known" in edited("triton_poi_0", kernel_hash="").problem


@pytest.mark.parametrize(("name", "args", "part"), [
    ("aten::mm", {"Input Strides": [[1, 4]]}, "operators"),
    ("aten::mm", {"Input type": ["c10::BFloat16"]}, "operators"),
    ("aten::mm", {"Concrete Inputs": ["True"]}, "operators"),
    ("triton_poi_0", {"kernel_hash": "cxyz"}, "operators"),
    ("gemm", {"grid": [3, 1, 1]}, "kernels and copies"),
    ("gemm", {"shared memory": 1024}, "kernels and copies"),
    ("gemm", {"stream": 99}, "kernels and copies"),
    ("Memcpy HtoD (Pinned -> Device)", {"bytes": 65}, "kernels and copies"),
    ("record_param_comms", {"dtype": "BFloat16"}, "collectives"),
])  # fmt: skip
def test_what_runs_differently_shows(name, args, part):
    """Strides alone, a type, a grid, another stream, generated code, bytes."""
    assert list(identity().differs_from(edited(name, **args))) == [part]


@pytest.mark.parametrize(
    "change",
    [
        lambda n, add: add.kernel(1000 * n + 70, 1000 * n + 95, 1000 * n + 97, "more"),
        lambda n, add: add.call("cudaStreamSynchronize", 1000 * n + 70, tid=99),
        lambda n, add: add.call("cudaStreamWaitEvent", 1000 * n + 70),
        lambda n, add: add.call("cudaEventRecordWithFlags", 1000 * n + 70),
        lambda n, add: add.event("cpu_op", "aten::add", 1000 * n + 70, 1, tid=99),
    ],
    ids=["kernel", "sync in a thread", "wait of a stream", "event", "operator in a thread"],
)
def test_what_is_added_shows(change):
    """In whatever thread."""
    assert list(identity().differs_from(identity(change)))


def test_settings_are_a_part():
    """TF32 shows in no launch of its own."""
    sides = [with_settings(identity(), {"allow_tf32": value}) for value in ("True", "False")]
    assert list(sides[0].differs_from(sides[1])) == ["settings"]
    unknown = identity(lambda n, add: add.call("cudaGraphLaunch", 1000 * n + 70))
    assert with_settings(unknown, {"allow_tf32": "True"}) == unknown


@pytest.mark.parametrize(("change", "problem"), [
    (lambda n, add: n == 2 and add.copy(2500, 2600, 2610, bytes=64),
     "kernels and copies, CUDA calls differ from step to step"),
    (lambda n, add: n == 1 and add.kernel(1500, 0, 0, recorded=False),
     "launches lack the GPU's record"),
    (lambda n, add: add.call("cudaGraphLaunch", 1000 * n + 70), "it launches a graph"),
    (lambda n, add: add.event("kernel", "k", 1000 * n + 80, 5, correlation=9999 + n),
     "it launches by calls that are not known"),
], ids=["every third step", "lost record", "graph", "unknown call"])  # fmt: skip
def test_what_is_not_known_is_a_problem(change, problem):
    """And no identity."""
    found = identity(change)
    assert (found.parts, found.problem) == ({}, problem)


def test_a_damaged_trace():
    """One that lacks a step, or has an event with a shape that is no number, says so."""
    with pytest.raises(RuntimeError, match="3 of 4 marked steps"):
        identity_of(decoded(trace()), MARK, 4)
    events = decoded(trace())
    (at, *_) = (at for at, event in enumerate(events) if event.name == "aten::mm")
    events[at] = replace(events[at], args=Details(dims=Raw(b"[1e999]")))
    with pytest.raises(RuntimeError, match="is malformed"):
        identity_of(events, MARK, STEPS)
    none = [event for event in trace() if event["cat"] in ("cpu_op", "user_annotation")]
    assert identity_of(decoded(none), MARK, STEPS).problem == "it launches nothing"
