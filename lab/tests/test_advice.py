"""Recommendations: each rule on figures that it is about, and on none beside them."""

import pytest
from kineto import Kineto

from stepguard_lab.advice import Advice, of_kernels, of_roofs, of_step, recommendations
from stepguard_lab.nsys_ncu_csv import NcuRow
from stepguard_lab.roofline import ClassRoof, Position
from stepguard_lab.trace_summary import summary

GEMM = "nvjet_sm90_tst_256x128"


def step(*kernels, gap=0.0):
    """What the rules say of three steps of these kernels, (name, us); ``gap`` us of a late host."""
    trace, now = Kineto(), 0.0
    for number in range(3):
        trace.step(number, now, now + 5000)
        at = now + 10 + gap
        for name, us in kernels:
            trace.kernel(at - 8, at, at + us, name=name)
            at += us
        now += 5000 if gap else at - now
    return [(one.advice, one.subject) for one in of_step(summary(trace.analysis(), "a.json", 0))]


@pytest.mark.parametrize("kernels, advice", [
    ([(GEMM, 700), ("at::native::elementwise_kernel", 300)], Advice.ELEMENTWISE),
    ([(GEMM, 880), ("multi_tensor_apply_kernel", 120)], Advice.OPTIMIZER),
    ([(GEMM, 950), ("softmax_warp_forward", 50)], Advice.PLAIN_ATTENTION),
    ([(GEMM, 900), ("ampere_sgemm_128x64", 100)], Advice.SINGLE_PRECISION),
    ([(GEMM, 900), *[("triton_poi", 5)] * 3], Advice.SHORT_KERNELS),
    ([(GEMM, 950), ("flash_fwd", 30), ("softmax_warp_forward", 20)], None),
    ([(GEMM, 1000)], None),
])  # fmt: skip
def test_rules_of_a_step(kernels, advice):
    """One rule each, or none."""
    assert [found for found, _ in step(*kernels)] == ([advice] if advice else [])


def test_a_step_that_waits():
    """Its bound comes first, with what to do about it."""
    assert step((GEMM, 500), gap=1000.0)[0][0] == Advice.BOUND


def row(name="k", **figures):
    """A launch under ncu."""
    nothing = dict.fromkeys(NcuRow.__dataclass_fields__)
    return NcuRow(**(nothing | {"name": name} | figures))


@pytest.mark.parametrize("launch, advice", [
    (row(compute_pct=30, memory_pct=40), Advice.LATENCY),
    (row(compute_pct=30, memory_pct=91), Advice.MEMORY),
    (row(compute_pct=85, memory_pct=40), Advice.COMPUTE),
    (row(threads_per_warp=16), Advice.DIVERGENCE),
    (row("sgemm", tensor_pct=0), Advice.NO_TENSOR_CORES),
    (row(compute_pct=70, memory_pct=70, threads_per_warp=32), None),
    (row(), None),  # nothing was collected: nothing is said
])  # fmt: skip
def test_rules_of_a_launch(launch, advice):
    """One rule each, once for several launches of a kernel."""
    found = list(of_kernels([launch, launch]))
    assert [one.advice for one in found] == ([advice] if advice else [])
    lines = list(recommendations(found, on_gpu=True))
    assert len(lines) > len(found) and all(len(line) <= 80 for line in lines)


def roof(kind, us, share):
    """A class of kernels at this share of its roof."""
    return ClassRoof(kind, us, us, 0.0, 0.0, Position(share, 0.0))


def test_classes_far_from_the_roof():
    """Those that take a part of the time worth the trouble."""
    found = list(
        of_roofs([roof("GEMM", 800, 0.9), roof("attention", 150, 0.35), roof("x", 5, 0.1)])
    )
    assert [(one.advice, one.subject) for one in found] == [(Advice.FAR_FROM_ROOF, "attention")]
    assert "attention reaches 35 %" in " ".join(recommendations(found, on_gpu=True))
