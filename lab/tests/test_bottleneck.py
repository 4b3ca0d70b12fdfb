"""The largest loss bounds the step; where all losses are small the GPU does."""

import msgspec
import pytest

from stepguard.core.profile import IdleRow, KernelRow, Parts, Profile
from stepguard.trace.make_profile import Idle
from stepguard_lab.trace_page import bound
from stepguard_lab.trace_summary import Bound, bottleneck


def profile(compute=1000.0, communication=0.0, copies=0.0, **idle):
    """A step of these parts; idle time by the name of its cause."""
    rows = tuple(
        IdleRow(Idle[cause], "cudaStreamSynchronize" if cause == "SYNC" else "", "", (1.0,), (us,))
        for cause, us in idle.items()
    )
    waits = sum(idle.values())
    step = compute + communication + copies + waits
    parts = Parts((step,), (compute,), (communication,), (copies,), (waits,))
    return Profile("NVIDIA H200", 1, parts, (), rows)


@pytest.mark.parametrize("parts, expected", [
    ({}, Bound.GPU),
    ({"SYNC": 20.0, "HOST": 30.0}, Bound.GPU),
    ({"SYNC": 100.0, "HOST": 30.0}, Bound.SYNC),
    ({"HOST": 200.0, "GAP": 100.0}, Bound.LAUNCH),
    ({"INPUT": 200.0}, Bound.INPUT),
    ({"GAP": 200.0}, Bound.KERNELS),
    ({"GAP": 20.0, "STREAM": 200.0}, Bound.STREAM),
    ({"PROFILER": 200.0}, Bound.PROFILER),
    ({"communication": 300.0, "SYNC": 200.0}, Bound.COMMUNICATION),
    ({"copies": 300.0}, Bound.COPIES),
])  # fmt: skip
def test_the_largest_loss_is_the_bound(parts, expected):
    """Named with its share; below 5 % the step is bound by the GPU."""
    found = bottleneck(profile(**parts))
    assert found.bound == expected
    assert bound(found).startswith(f"{expected}-bound: ")
    assert f"{100 * found.loss_share:.1f} % of the step" in bound(found)


def test_the_call_that_waits_is_its_evidence():
    """Of several the longest."""
    assert "(cudaStreamSynchronize)" in bound(bottleneck(profile(SYNC=100.0)))


def test_a_profile_can_be_kept():
    """As JSON and back, to the last digit."""
    row = KernelRow("k", "k", "GEMM", "forward", (2.0,), (0.1,), (1, 2, 3), (128,), "aten::mm")
    one = Profile("x", 1, profile().parts, (row,), (), {"cudaLaunchKernel": (1.0,)})
    assert msgspec.json.decode(msgspec.json.encode(one), type=Profile) == one
