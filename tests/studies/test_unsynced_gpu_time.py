"""What the GPU's time went to: classes of kernels, hand-made traces of known times."""

import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from studies.unsynced_clock.gpu_time import read_gpu_time
from studies.unsynced_clock.kernels import KERNEL_CLASSES, kernel_class

MARK = "a.step"
NAMES = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT": "GEMM",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)": "GEMM",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize96x128x32": "GEMM",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>(Params)": "GEMM",
    "triton_tem_fused_addmm_3": "GEMM",
    "triton_poi_fused_gelu_view_8": "Triton",
    "triton_red_fused__log_softmax__to_copy_add_arange_eq_expand_nll_loss_backward_nll_l": "Triton",
    "triton_poi_fused__scaled_dot_product_cudnn_attention_view_2": "Triton",
    "triton_per_fused_addmm_native_layer_norm_view_9": "Triton",
    "triton_tem_fused_flex_attention_0": "attention",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "NCCL",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)": "NCCL",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64": "attention",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128>>(P)": "attention",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Kernel)": "attention",
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)": "attention",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>()": (
        "elementwise"
    ),
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>>(int)": "elementwise",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizer>()": (
        "optimizer and clip"
    ),
    "void at::native::lpnorm_cleanup<float, (at::native::NormType)1>(float const*)": (
        "optimizer and clip"
    ),
    "my_own_kernel(float*)": "other",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_class_of_a_known_name(name):
    """Names as profilers write them, of every class."""
    assert kernel_class(name) == NAMES[name]


def test_every_class_of_a_kernel_is_tested():
    """A class without a name above would be a rule that nobody has seen at work."""
    assert set(NAMES.values()) | {"copies and fills"} == set(KERNEL_CLASSES)


@PROPERTY
@given(st.text())
def test_any_name_has_a_class(name):
    """No name is refused; one that says nothing is "other"."""
    assert kernel_class(name) in KERNEL_CLASSES


def event(cat, name, ts, dur, correlation=None):
    """A trace's event, in us."""
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def trace():
    """A marked step of 100 us. On the GPU: 10 us of GEMM, 8 of NCCL of which 4 beside it, a pause
    of 5, a copy of 1 us; a launch whose record is lost; and work from outside the step.
    """
    return [
        event("user_annotation", MARK, 0, 100),
        event("gpu_user_annotation", MARK, 5, 300),
        event("cuda_driver", "cuLaunchKernelEx", 1, 2, 1),
        event("cuda_runtime", "cudaLaunchKernelExC", 4, 3, 2),
        event("cuda_runtime", "cudaMemcpyAsync", 8, 4, 3),
        event("cuda_runtime", "cudaLaunchKernel", 20, 1, 4),
        event("cuda_runtime", "cudaDeviceSynchronize", 30, 70, 5),
        event("cuda_runtime", "cudaLaunchKernel", 101, 1, 6),
        event("kernel", "nvjet_sm90_a", 200, 10, 1),
        event("kernel", "ncclDevKernel_AllReduce", 206, 8, 2),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 219, 1, 3),
        event("kernel", "nvjet_sm90_a", 300, 50, 6),
        event("kernel", "nvjet_sm90_a", 400, 50, 99),
    ]


def test_the_time_of_a_hand_made_step():
    """Times by class and by call, the window and what of it was busy, to the microsecond."""
    found = read_gpu_time(trace(), MARK, 1)
    assert found.class_us == {"GEMM": 10, "NCCL": 8, "copies and fills": 1}
    assert (found.window_us, found.busy_us) == (20, 15)
    assert found.api_us == {
        "cuLaunchKernelEx": 2,
        "cudaLaunchKernelExC": 3,
        "cudaMemcpyAsync": 4,
        "cudaLaunchKernel": 1,
        "cudaDeviceSynchronize": 70,
    }
    assert found.api_calls.total() == 5


def test_a_lost_record_is_reported():
    """Of four launches in the step one has no record; a synchronize is no launch."""
    found = read_gpu_time(trace(), MARK, 1)
    assert (found.launches, found.lost_records) == (4, 1)


def test_an_unknown_kernel_is_named():
    """What no rule knows stands by name, so that the rules can be mended."""
    events = trace() + [event("kernel", "mystery", 230, 7, 4)]
    found = read_gpu_time(events, MARK, 1)
    assert found.other_us == {"mystery": 7} and found.class_us["other"] == 7
    assert found.lost_records == 0


def test_a_missing_step_is_no_time():
    """A trace that lacks a marked step is refused, not averaged over fewer."""
    with pytest.raises(RuntimeError, match="1 of 2 marked steps"):
        read_gpu_time(trace(), MARK, 2)


def test_a_step_without_a_gpu_has_no_time():
    """On a CPU nothing is launched: empty, not an error."""
    found = read_gpu_time([event("user_annotation", MARK, 0, 100)], MARK, 1)
    assert (found.launches, found.window_us, found.busy_us) == (0, 0.0, 0.0)
    assert not found.class_us and not found.api_us
