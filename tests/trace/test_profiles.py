"""What is said of a step: each formula on a trace of known answer, the identity on any trace."""

import pytest
from builders import PROPERTY
from hypothesis import given
from kineto import (
    AUTOGRAD,
    COMMS,
    KERNELS,
    NCCL,
    Kineto,
    stalled,
    two_steps,
    with_kernels,
)

from stepguard.core.profile import mean
from stepguard.trace.chrome_trace import TraceError, decode_all
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse, profile


def idle(trace):
    """Idle us by (cause, call), mean over the steps."""
    found = {}
    for row in profile(trace.analysis()).idle:
        key = (row.cause, row.call)
        found[key] = found.get(key, 0) + mean(row.us)
    return found


# Steps


def test_a_step_lasts_from_its_first_kernel_to_the_next_ones():
    """On the GPU, however late it is; the last mark has no end."""
    found = profile(two_steps(ahead=700).analysis())
    assert found.parts.step_us == (1000, 1000)
    assert found.parts.compute_us == (100, 100)
    assert found.steps == 2


def test_a_copy_that_runs_ahead_does_not_move_the_step():
    """Prefetching in the step before: the stream that computes marks the step's begin."""
    trace = two_steps(ahead=700)
    trace.kernel(1002, 1010, 1015, name="elementwise", stream=9)
    assert profile(trace.analysis()).parts.step_us == (1000, 1000)


def test_a_step_with_lost_records_is_left_out():
    """A lost record reads as idle time, so the step is not used, and the page says so."""
    trace = two_steps()
    trace.kernel(300, 0, 0, recorded=False)
    found = trace.analysis().windows
    assert (found.steps, found.incomplete, found.marked) == (1, 1, 3)
    trace.kernel(1300, 0, 0, recorded=False)
    with pytest.raises(TraceError, match="none of its 3 steps is complete: 2 of 5 launches"):
        trace.analysis()


@pytest.mark.parametrize(("launches", "kept"), [(200, 2), (199, 1)])
def test_a_step_may_lack_half_a_percent_of_its_records(launches, kept):
    """One record of 200 launches may get lost, one of 199 may not."""
    trace = two_steps()
    trace.kernel(6, 0, 0, recorded=False)
    for number in range(launches - 2):
        trace.kernel(300 + number, 300 + number, 301 + number)
    found = trace.analysis().windows
    assert (found.steps, found.incomplete) == (kept, 2 - kept)


def test_fills_without_a_record_lose_no_step():
    """Whole files lack them. One that has its record counts, and is work of the step."""
    trace = two_steps()
    for number in range(3):
        trace.call("cudaMemsetAsync", 1000 * number + 300, correlation=900 + number)
    found = trace.analysis().windows
    assert (found.steps, found.incomplete, found.lost, found.launches) == (2, 0, 0, 2)


@pytest.mark.parametrize("empty", [(1060, 1100), (10, 50)])
def test_an_empty_step_ends_nothing(empty):
    """A loop that ends in a mark of its own: the one step before it lasts to its last record."""
    trace = Kineto()
    trace.step(0, 60, 1059)
    trace.step(1, *empty)
    trace.kernel(65, 160, 260)
    trace.kernel(360, 460, 660)
    found = trace.analysis().windows
    assert (found.step_us.tolist(), found.marked, found.incomplete) == ([500], 1, 0)


def test_without_marks_the_whole_file_is_one_step():
    """It is said; the figures are of all records."""
    trace = Kineto()
    trace.kernel(0, 10, 30)
    trace.kernel(1, 40, 50)
    found = trace.analysis()
    assert not found.windows.has_marks
    assert profile(found).parts.step_us == (40,) and profile(found).parts.idle_us == (10,)


def test_without_a_gpu_there_is_nothing_to_say():
    """A trace of the CPU alone is refused with what to do."""
    trace = Kineto()
    trace.step(0, 0, 10)
    with pytest.raises(TraceError, match=r"no kernel of a GPU: profile with ProfilerActivity.CUDA"):
        trace.analysis()


def test_without_cuda_calls():
    """Records alone are one step whose gaps lie between kernels; marks could not be told."""
    trace = Kineto()
    trace.event("kernel", "gemm", 10, 5, 7, 0, device=0, stream=7)
    trace.event("kernel", "gemm", 20, 5, 7, 0, device=0, stream=7)
    assert idle(trace) == {("between kernels", ""): 5}
    trace.step(0, 0, 30)
    with pytest.raises(TraceError, match="no CUDA call"):
        trace.analysis()


def test_the_parts_of_a_step():
    """Compute hides communication, both hide copies; what nobody covers is idle."""
    trace = two_steps()  # compute 100 to 200 of each 1,000
    trace.kernel(20, 150, 350, name=NCCL, stream=COMMS)  # 50 hidden, 150 exposed
    trace.copy(30, 300, 400)  # 50 hidden, 50 exposed
    found = profile(trace.analysis()).parts
    assert found.compute_us[0] == 100
    assert found.exposed_communication_us[0] == 150
    assert found.exposed_copies_us[0] == 50
    assert found.idle_us[0] == 700


# The identity


@given(KERNELS)
@PROPERTY
def test_the_identity_closes_on_any_trace(kernels):
    """Streams overlap, kernels straddle steps, copies run ahead: the parts are the step."""
    trace = with_kernels(kernels)
    found = trace.analysis()
    one = profile(found)
    parts = one.parts
    whole = zip(
        parts.compute_us, parts.exposed_communication_us, parts.exposed_copies_us, parts.idle_us,
        strict=True,
    )  # fmt: skip
    for step, values in zip(parts.step_us, whole, strict=True):
        assert sum(values) == pytest.approx(step, abs=1e-6)
        assert min(values) >= -1e-6
    for step in range(one.steps):
        caused = sum(row.us[step] for row in one.idle)
        assert caused == pytest.approx(parts.idle_us[step], abs=1e-6)


# Idle time


def test_a_stream_that_stalls_is_no_pause_between_kernels():
    """Its kernels were queued too, and begin 60 us or 64 ms later: no small kernel is to blame."""
    assert idle(stalled()) == {("stream wait", ""): 60 + 64_000}


def test_a_sync_is_named_with_its_place():
    """The host waited until the GPU was dry, and launched only then."""
    trace = two_steps()
    trace.event("cpu_op", "aten::item", 150, 60)
    trace.event("cpu_op", "aten::_local_scalar_dense", 151, 58)
    trace.call("cudaStreamSynchronize", 152, 55)  # the kernel ends at 200
    trace.kernel(220, 230, 1090)
    (row,) = [row for row in profile(trace.analysis()).idle if row.cause == "sync"]
    assert (row.call, row.us, row.count) == ("cudaStreamSynchronize", (30, 0), (1, 0))
    assert row.place == "aten::item > aten::_local_scalar_dense"


@pytest.mark.parametrize(
    "begin, dur", [(203, 3), (150, 20), (150, 100)], ids=["too late", "too early", "goes on"]
)
def test_a_sync_that_did_not_cause_the_gap_is_not_blamed(begin, dur):
    """It began when the GPU was dry already, ended before, or goes on beyond the launch."""
    trace = two_steps()
    trace.call("cudaStreamSynchronize", begin, dur, AUTOGRAD)
    trace.kernel(220, 230, 1090)
    assert ("sync", "cudaStreamSynchronize") not in idle(trace)


@pytest.mark.parametrize(
    "queued, expected",
    [(20, {"sync": 20, "host late": 830}), (5, {"sync": 15, "host late": 5 + 845})],
)
def test_a_host_that_catches_up_is_late_because_of_the_sync(queued, expected):
    """Until 16 launches wait again; one that does not get ahead is late for its own reasons."""
    trace = two_steps()
    trace.call("cudaStreamSynchronize", 152, 55)
    trace.kernel(210, 215, 220)
    trace.kernel(222, 225, 250)  # after a gap of 5: the host is still behind
    for i in range(queued):
        trace.kernel(226 + i, 250 + i, 251 + i)
    assert {row.cause: row.us[0] for row in profile(trace.analysis()).idle} == expected


@pytest.mark.parametrize(("end", "late"), [(265, 0), (266, 5)])
def test_a_host_has_a_twentieth_of_a_step_to_catch_up(end, late):
    """The GPU goes on at 215, and the host is ahead again when the next kernel ends. Up to 50 us
    later the gap of 5 us in between is the sync's; later it is the host's.
    """
    trace = two_steps()
    trace.call("cudaStreamSynchronize", 152, 55)
    trace.kernel(210, 215, 220)
    trace.kernel(222, 225, end)
    for i in range(20):
        trace.kernel(226 + i, end + i, end + 1 + i)
    rows = {row.cause: row.us[0] for row in profile(trace.analysis()).idle}
    last = 1100 - (end + 20)  # until the next step's first kernel
    assert rows == {"sync": 20 - late, "host late": last + late}


def test_the_source_line_is_the_innermost_of_the_user():
    """Frames of torch inside it are not the user's line."""
    trace = two_steps()
    for name, began in (("train.py(10): main", 140), ("my/model.py(166): step", 141),
                        ("/lib/site-packages/torch/_tensor.py(5): item", 142)):  # fmt: skip
        trace.event("python_function", name, began, 300 - began)
    trace.call("cudaStreamSynchronize", 152, 55)
    trace.kernel(220, 230, 1090)
    (row,) = [row for row in profile(trace.analysis()).idle if row.cause == "sync"]
    assert row.place == "my/model.py(166): step"


def test_input_and_profiler_have_causes_of_their_own():
    """The host waited for data; or the profiler emptied its buffers."""
    trace = two_steps()
    trace.annotation("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 205, 280)
    trace.kernel(290, 300, 400)
    trace.event("overhead", "Command Buffer Full", 1200, 90, -1, -1)
    trace.kernel(1290, 1300, 1400)
    found = idle(trace)
    assert found[("input wait", "")] == 50 and found[("profiler", "")] == 50


def test_phases_are_paths_of_ranges_and_autograds_thread():
    """Nested ranges, libraries' names for them, and work of autograd's thread outside all."""
    trace = two_steps()
    trace.annotation("micro_step_0", 10, 100)
    trace.annotation("forward", 20, 60)
    trace.annotation("nccl:all_reduce", 25, 30)
    trace.annotation("Optimizer.step#AdamW.step", 500, 600)
    trace.event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 300, 50, AUTOGRAD)
    trace.kernel(26, 210, 220, name="f")
    trace.kernel(310, 220, 230, name="b", tid=AUTOGRAD)
    trace.kernel(510, 240, 250, name="o")
    rows = {row.name: row.phase for row in profile(trace.analysis()).kernels}
    assert rows == {"gemm": "", "f": "micro_step_0/forward", "b": "backward", "o": "optimizer"}


# Phases, kernels


@pytest.mark.parametrize("name", [
    "## Call CompiledFxGraph fwiar5bs5t4dq4qnnxaq5e5vfo3c2exdqacpbtqwik4trwqmjcmv ##",
    "graph_0_inductor_wrapper_call",
    "Torch-Compiled Region: 0/0",
    "TorchDynamo Cache Lookup",
    "nccl:all_reduce",
])  # fmt: skip
def test_a_librarys_ranges_are_no_phases(name):
    """With a hash in its name a phase would be another one wherever the code is."""
    trace = two_steps()
    trace.annotation("forward", 290, 320)
    trace.annotation(name, 295, 310)
    trace.kernel(300, 300, 310, name="f")
    assert {row.phase for row in profile(trace.analysis()).kernels} == {"", "forward"}


def test_rows_of_kernels():
    """By name, grid, block and phase, where no work is known: calls and time of each step, and
    operator.
    """
    trace = two_steps()
    trace.event("cpu_op", "aten::mm", 295, 10, **{"External id": 77})
    extra = {"grid": [2, 1, 1], "block": [64, 1, 1], "External id": 77}
    trace.kernel(300, 300, 310, name="void cutlass<1>(int)", **extra)
    more = extra | {"shared memory": 64, "registers per thread": 96}
    trace.kernel(301, 310, 330, name="void cutlass<1>(int)", **more)
    trace.kernel(302, 330, 340, name="void cutlass<1>(int)", **(extra | {"grid": [3, 1, 1]}))
    rows = [row for row in profile(trace.analysis()).kernels if row.kind == "GEMM"]
    small = next(row for row in rows if row.grid == (2, 1, 1))
    assert (small.calls, small.us, small.block) == ((2, 0), (30, 0), (64, 1, 1))
    assert (small.operator, small.canonical) == ("aten::mm", "cutlass")
    assert len(rows) == 3


NOTED = {"kernel_hash": "cxyz", "kernel_backend": "triton"}
NOTED |= {"Input Dims": [[64, 1024], [64, 1024]], "Input type": ["float", "float"]}


@pytest.mark.parametrize("lost", [{}, {"External id": 0}, {"External id": 4711}])
@pytest.mark.parametrize(("at_us", "shape", "linked"), [
    (1295, [1, 1, 1], True),
    (1295, [2, 1, 1], False),  # no other launch of it has an operator: none may launch it
    (1320, [1, 1, 1], False),  # the call is in no operator
])  # fmt: skip
def test_a_kernel_whose_link_is_lost_has_the_operator_around_its_call(lost, at_us, shape, linked):
    """The innermost one, on the call's thread, even if it seems to take no time. Then it shares a
    row with the kernel's other launches: it has their hash and their work.
    """
    trace, name = two_steps(), "triton_poi_fused_gelu_0"
    for begin, number in ((295, 78), (1295, 79)):
        trace.event("cpu_op", "outer", begin - 5, 20, **{"External id": number + 10})
        trace.event("cpu_op", name, begin, 0, **{"External id": number}, **NOTED)
        trace.event("cpu_op", "backward", begin, 0, tid=2, **{"External id": number + 20})
    trace.kernel(300, 300, 310, name=name, grid=[1, 1, 1], **{"External id": 78})
    trace.kernel(at_us, 1330, 1340, name=name, grid=shape, **lost)
    rows = [row for row in profile(trace.analysis()).kernels if row.name == name]
    calls = {(row.code, row.operator): row.calls for row in rows}
    apart = {("cxyz", name): (1, 0), ("", ""): (0, 1)}
    assert calls == ({("cxyz", name): (1, 1)} if linked else apart)


@pytest.mark.parametrize(("launches", "linked"), [(400, True), (399, False)])
def test_kernels_without_operators_are_not_lost_links_if_they_are_many(launches, linked):
    """Two of 400 are half a percent. A replayed CUDA graph has no operators. Copies do not count:
    many have none, and some of the same name have one.
    """
    trace, name = two_steps(), "triton_poi_fused_gelu_0"
    trace.event("cpu_op", name, 200, 700, **{"External id": 78}, **NOTED)
    for number in range(4):
        trace.copy(910, 910 + number, 910.5 + number, **{"External id": 78} if number else {})
        trace.copy(920, 920 + number, 920.5 + number)
    for number in range(launches - 3):  # two_steps() has three
        link = {} if number < 2 else {"External id": 78}
        trace.kernel(300 + number, 300 + number, 300.5 + number, name=name, **link)
    rows = [row for row in profile(trace.analysis()).kernels if row.name == name]
    calls = {row.code: row.calls[0] for row in rows}
    assert calls == ({"cxyz": launches - 3} if linked else {"cxyz": launches - 5, "": 2})


@pytest.mark.parametrize(("kernel", "kind"), [
    ("multimem_all_reduce_kernel<c10::BFloat16, 16>(long)", "communication"),
    ("void c10d::(anonymous namespace)::one_shot_all_reduce_kernel<float>", "communication"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "communication"),
    ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop(int)", "communication"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", "communication"),
    ("void internode_ll::combine<7168, 9>(void*)", "communication"),
    ("bmm_E4m3_E4m3E4m3_Fp32_t128x8x128u2_s6", "GEMM"),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128", "GEMM"),
    ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x224x64", "GEMM"),
    ("triton_poi_fused_all_reduce_add_3", "Triton"),
    ("triton_poi_fused_bmm_3", "Triton"),
    ("void at::native::elementwise_kernel<128, 4>", "elementwise"),
])  # fmt: skip
def test_kernels_of_other_libraries(kernel, kind):
    """Exchanges that are not NCCL's, and products that are not cuBLAS's."""
    assert usual_classes().kernel(kernel) == kind


def test_a_trace_of_an_amd_gpu():
    """Calls of HIP launch, copy and wait as CUDA's do."""
    trace = two_steps()
    trace.copy(250, 280, 300)
    trace.call("cudaStreamSynchronize", 310, 5)
    trace.kernel(340, 350, 1090)
    text = trace.text().replace(b'"cuda', b'"hip').replace(b'"hip_runtime"', b'"cuda_runtime"')
    found = profile(analyse(decode_all(text).trace(), usual_classes()))
    assert found.steps == 2 and found.parts == profile(trace.analysis()).parts
    assert found.calls["hipLaunchKernel"] == (2, 1)
