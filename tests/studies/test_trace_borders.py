"""Idle time between two steps, on a trace whose gaps are known."""

import pytest
from kineto import Kineto

from studies.traces.borders import border_idle_ms


def test_from_the_last_update_to_the_next_product():
    """Less what runs between; updates that lie together are one step's."""
    trace = Kineto()
    for number in range(3):
        began = 100_000.0 * number
        trace.kernel(began + 1, began + 10, began + 60_000, "nvjet")
        trace.kernel(began + 2, began + 70_000, began + 71_000, "multi_tensor_apply_kernel")
        trace.kernel(began + 3, began + 72_000, began + 73_000, "multi_tensor_apply_kernel")
        trace.kernel(began + 4, began + 80_000, began + 85_000, "triton_poi_fused_0")
    assert border_idle_ms(trace.read()) == pytest.approx([22.01, 22.01])
