"""An explanation in words: every kind of cause, on 80 columns, with what, how much and where."""

import pytest

from stepguard.core.explanation import Cause, Explanation, Kind, Refused, Side, Unlike
from stepguard.report.time_causes import named
from stepguard_lab.explanation_page import lines
from stepguard_lab.trace_page import short

LONG = f"void at::native::{'elementwise_' * 12}kernel<float, 4>(int)"
OLD = Side((LONG, "b"), 12.0, 1000.0, ((66, 2, 1),), 5000.0)
NEW = Side(("flash_fwd",), 24.0, 3000.0, ((67, 2, 1),), 7000.0)
WORDS = {Kind.CALLS: "12 -> 24 launches",
         Kind.TIME: "24 launches as before, 83.3 -> 125.0 us a launch",
         Kind.SHAPE: "24 launches, another shape, 66x2x1 -> 67x2x1",
         Kind.REPLACED: "and 1 more, 12 -> 24 launches", Kind.ADDED: "24 launches, new",
         Kind.REMOVED: "12 launches, gone",
         Kind.MOVED: "and 1 more moved to flash_fwd, 12 -> 24 launches",
         Kind.CLOCK: "the clock (flash_fwd), by one ratio, 3.000 times as long",
         Kind.IDLE: "GPU idle, flash_fwd: ", Kind.COMMUNICATION: "1.000 -> 3.000 ms",
         Kind.COPIES: "1.000 -> 3.000 ms", Kind.OVERLAP: "1.000 -> 3.000 ms"}  # fmt: skip


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_cause(kind):
    """What it is, in which phase and line, and when in the file."""
    cause = Cause(kind, 2000.0, LONG, "micro_step_0/forward", "gpt.py(166): step", OLD, NEW)
    found = Explanation((), 1e5, 1.025e5, (cause,), 500.0, (("GEMM", 450.0), ("x", 1.0)))
    page = list(lines(found))
    assert all(len(line) <= 80 for line in page)
    text = " ".join(" ".join(page).split())
    assert "102.500 ms against 100.000 ms, +2.500 ms (+2.50 %)" in text
    assert WORDS[kind] in text
    assert "in micro_step_0/forward, gpt.py(166): step (at 7.000 ms of the file)" in text
    assert "explained: +2.000 of +2.500 ms" in text and "GEMM +0.450" in text


def test_an_unknown_scatter_is_said():
    """Nothing is called scatter then, and the page says what to do."""
    cause = Cause(Kind.IDLE, 5e4, "host late", "", "", OLD, NEW)
    page = list(lines(Explanation((), 1e5, 1.5e5, (cause,), 7.0, scatter_known=False)))
    text = " ".join(" ".join(page).split())
    assert "One step on a side does not show how much steps differ: profile several." in text
    assert "scatter" not in text and "the other +0.007 ms is in differences of at most 1 us" in text


def test_a_kernel_that_stays_is_replaced_in_part():
    """Its name alone on both sides would say nothing: what came is named, or what went."""
    gelu, other = "triton_poi_fused_gelu_gelu_backward_view_6", "triton_poi_fused_gelu_gelu_view_15"
    old, new = Side((gelu,), 24.0, 8600.0), Side((gelu, other), 24.0, 10900.0)
    assert named(Cause(Kind.REPLACED, 2300.0, gelu, "backward", "", old, new)) == (
        "triton_poi_fused_gelu_gelu_view_15 in part for triton_poi_fused_gelu_g...ard_view_6"
    )
    assert named(Cause(Kind.REPLACED, -2300.0, gelu, "backward", "", new, old)) == (
        "triton_poi_fused_gelu_g...ard_view_6 for triton_poi_fused_gelu_gelu_view_15"
    )


ATEN = "void at::native::"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}"


@pytest.mark.parametrize(("kernel", "shown"), [
    (f"{ATEN}vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >", "FillFunctor"),
    (
        f"{ATEN}unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda{LAMBDA}, "
        "std::array<char*, 2ul>, 4, at::native::memory::LoadWithCast<1> >(int)",
        "direct_copy_kernel_cuda",
    ),
    (
        f"{ATEN}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
        "BUnaryFunctor<float, float, at::native::binary_internal::MulFunctor<float> > > >",
        "MulFunctor",
    ),
    (
        f"{ATEN}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::"
        "FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false> >(int)",
        "FusedAdamMathFunctor",
    ),
    (
        f"{ATEN}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<"
        "float, at::native::sum_functor<float, float, float> > > >",
        "sum_functor",
    ),
    (f"{ATEN}elementwise_kernel<512, 1, (lambda)>", "at::native::elementwise_kernel"),
    (f"{ATEN}(anonymous namespace)::cunn_SoftMaxForward<8>", "at::native::cunn_SoftMaxForward"),
    ("triton_poi_fused_gelu_gelu_backward_view_6", "triton_poi_fused_gelu_g...ard_view_6"),
])  # fmt: skip
def test_a_generic_kernel_has_its_operators_name(kernel, shown):
    """Else an eager step would have a dozen kernels of one name."""
    assert short(kernel) == shown


def test_smaller_causes_are_summed():
    """The page ends; the sum still closes."""
    causes = tuple(Cause(Kind.ADDED, 10.0 - i, f"k{i}", "", "", OLD, NEW) for i in range(5))
    page = list(lines(Explanation((), 1e3, 1.1e3, causes), most=3))
    assert "  +0.013 ms  2 smaller causes" in page


@pytest.mark.parametrize("reason", Unlike)
def test_every_refusal_is_a_sentence(reason):
    """With what was found on both sides."""
    page = list(lines(Explanation((Refused(reason, "1", "4"),))))
    assert page[0] == "The two cannot be compared:" and "1" in page[1]
    assert len(page) == 2


def test_no_cause():
    """Said, with what the scatter holds."""
    page = list(lines(Explanation((), 1e3, 1.1e3, (), 100.0)))
    assert "No cause is beyond the scatter between steps." in page
