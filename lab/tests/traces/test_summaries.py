"""What the lab's pages say of a step: each formula on a trace of known answer."""

import pytest
from builders import PROPERTY
from hypothesis import given
from kineto import COMMS, KERNELS, NCCL, Kineto, stalled, two_steps, with_kernels

from stepguard.trace.kernel_classes import parse_classes, usual_classes
from stepguard.trace.make_profile import profile
from stepguard_lab.exchanges import bus_factor, exchanges
from stepguard_lab.timeline import timeline
from stepguard_lab.trace import with_more
from stepguard_lab.trace_summary import Bound, bottleneck, summary


def test_without_cuda_calls_there_is_no_queue():
    """Records alone: nothing says that a launch waited."""
    trace = Kineto()
    trace.event("kernel", "gemm", 10, 5, 7, 0, device=0, stream=7)
    assert summary(trace.analysis(), "x", 0).queue.depth_max == 0


@given(KERNELS)
@PROPERTY
def test_the_shares_of_any_trace(kernels):
    """Those of the classes are the whole, and no more is hidden than there is."""
    said = summary(with_kernels(kernels).analysis(), "x", 0)
    assert sum(row.share for row in said.classes) == pytest.approx(1)
    assert said.overlap_share is None or -1e-9 <= said.overlap_share <= 1 + 1e-9


def test_a_stream_that_stalls():
    """It bounds the step, and is drawn; the host is not late."""
    found = stalled().analysis()
    assert bottleneck(profile(found)).bound == Bound.STREAM
    assert "stream wait: 64.000 ms" in timeline(found, "")
    assert summary(found, "", 0).queue.late_share == 0


def test_a_phases_time_is_the_mean_over_steps():
    """On the host, and on the GPU of what was launched in it."""
    trace = two_steps()
    trace.annotation("forward", 20, 60)
    trace.kernel(26, 210, 220, name="f")
    (forward,) = [row for row in summary(trace.analysis(), "x", 0).phases if row.path == "forward"]
    assert (forward.host_us, forward.gpu_us) == (20, 5)


def test_a_phase_has_its_own_time_beside_those_inside_it():
    """Of 90 us on the host 30 are the optimizer's own; the clip inside it has 60 in two passes."""
    trace = two_steps()
    for number in range(3):
        began = 1000 * number
        trace.annotation("Optimizer.step#AdamW.step", began + 300, began + 390)
        for at in (310, 350):
            trace.annotation("clip", began + at, began + at + 30)
            trace.kernel(began + at + 1, began + at + 200, began + at + 210)
    rows = {row.path: row for row in summary(trace.analysis(), "", 0).phases}
    assert (rows["optimizer"].host_us, rows["optimizer"].own_us) == (90, 30)
    assert rows["optimizer/clip"].host_us == rows["optimizer/clip"].own_us == 60


def test_classes_are_an_open_table():
    """A user's rules come first; a wrong file says which entry."""
    assert usual_classes().kernel("triton_per_fused_attention_3") == "Triton"
    mine = with_more("[[kernel]]\nclass = 'mine'\npattern = '^my_'")
    assert mine.kernel("my_gemm") == "mine" and mine.kernel("gemm") == "GEMM"
    for text, words in (
        ("[[kernels]]", "no table"),
        ("[[kernel]]\npattern='a'", "number 1: it needs pattern and class"),
        ("[[phase]]\npattern='('\nname='x'", r"number 1: '\('"),
    ):
        with pytest.raises(ValueError, match=words):
            parse_classes(text)


def rank_with_exchange(begin, base_ns=0):
    """A rank that comes to an all-reduce of 4 MiB at ``begin``; all are done at 600."""
    trace = two_steps()
    trace.head["distributedInfo"] = {"rank": begin, "world_size": 2}
    trace.head["baseTimeNanoseconds"] = base_ns
    noted = {"Collective name": "allreduce", "dtype": "Float", "Group size": 2}
    noted |= {"In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "External id": 5}
    shift = base_ns / 1e3
    trace.event("cpu_op", "record_param_comms", 50, 1, **noted)
    trace.kernel(51, begin - shift, 600 - shift, name=NCCL, stream=COMMS, **{"External id": 5})
    return trace.analysis()


def test_an_exchange_is_as_slow_as_its_last_rank_sees_it():
    """Latency is the least length over ranks, whatever time each file counts from."""
    (row,) = exchanges([rank_with_exchange(300), rank_with_exchange(400)])
    assert (row.name, row.bytes, row.ranks, row.calls) == ("allreduce", 4 << 20, 2, 0.5)
    assert (row.us, row.latency_us, row.skew_in_us, row.skew_out_us) == (250, 200, 100, 0)
    assert row.algorithm_gb_s == pytest.approx((4 << 20) / 200e-6 / 1e9)
    assert row.bus_gb_s == row.algorithm_gb_s  # 2 (n - 1) / n of two ranks


def test_one_ranks_trace_says_no_latency():
    """How long it waited for the others is unknown."""
    (row,) = exchanges([rank_with_exchange(300)])
    assert row.us == 300
    assert (row.latency_us, row.bus_gb_s, row.skew_in_us) == (None, None, None)


@pytest.mark.parametrize("name, ranks, factor", [
    ("allreduce", 8, 1.75), ("_allgather_base", 4, 0.75), ("broadcast", 4, 1), ("allreduce", 1, 0),
])  # fmt: skip
def test_bus_bandwidth_is_that_of_nccl_tests(name, ranks, factor):
    """The factors of its PERFORMANCE.md."""
    assert bus_factor(name, ranks) == factor


def test_the_queue():
    """Delay from the launch's return to the kernel's begin; launches that wait meanwhile."""
    trace = Kineto()
    trace.step(0, 0, 100)
    trace.kernel(10, 12, 60)  # at once
    trace.kernel(20, 60, 70)  # 39 us after its launch's end, one more waits
    trace.kernel(30, 70, 80)
    found = summary(trace.analysis(), "x", 0).queue
    assert (found.delay_median_us, found.depth_median, found.depth_max) == (39, 0, 1)
    assert found.late_share == 0


def test_shares_of_cuda_calls():
    """Of the host's time in such calls; the ones that wait are marked."""
    trace = two_steps()
    trace.call("cudaDeviceSynchronize", 300, 6)
    rows = {row.name: row for row in summary(trace.analysis(), "x", 0).calls}
    assert rows["cudaLaunchKernel"].calls == 1 and not rows["cudaLaunchKernel"].waits
    assert rows["cudaDeviceSynchronize"].share == 0.75 and rows["cudaDeviceSynchronize"].waits
