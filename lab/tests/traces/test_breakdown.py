"""A trace of a CPU: every figure follows from how it is made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto import AUTOGRAD, Kineto

from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.kernel_classes import usual_classes
from stepguard_lab.host_breakdown import host_summary, own_and_total_us


def summary(trace):
    """The figures of a trace by the usual rules."""
    return host_summary(trace.read(), usual_classes(), "a.json", 0)


def test_own_time_by_operator_and_phase():
    """An operator's own time leaves out those inside it; calls and times are a step's."""
    trace = Kineto()
    for number in range(2):
        began = 1000 * number
        trace.step(number, began, began + 900)
        trace.annotation("forward", began + 10, began + 400)
        trace.event("cpu_op", "aten::linear", began + 20, 100)
        trace.event("cpu_op", "aten::addmm", began + 30, 60)
        trace.event("cpu_op", "aten::mm", began + 500, 50, AUTOGRAD)
    trace.event("cpu_op", "aten::mm", 5000, 50)  # in no step
    found = summary(trace)
    rows = {(row.name, row.phase): (row.calls, row.us, row.total_us) for row in found.operators}
    assert rows == {
        ("aten::linear", "forward"): (1, 40, 100),
        ("aten::addmm", "forward"): (1, 60, 60),
        ("aten::mm", ""): (1, 50, 50),
    }
    assert found.step_us == (900, 900)
    assert [(row.path, row.us) for row in found.phases] == [("forward", 390)]


def test_a_file_without_steps_is_refused():
    """Nothing can be said a step. What could mark steps is named."""
    trace = Kineto()
    trace.event("cpu_op", "aten::mm", 0, 50)
    with pytest.raises(TraceError, match="marked step; call profiler"):
        summary(trace)
    for number in range(2):
        trace.annotation("my step", 100 * number, 100 * number + 90)
    with pytest.raises(TraceError, match="marked step; its annotations are my step$"):
        summary(trace)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=6))
def test_own_times_sum_up_to_the_outermost(calls):
    """However operators lie in each other, no time is counted twice or lost."""
    trace, began = Kineto(), 0
    outermost = 0
    for gap, depth in calls:
        began += gap
        for level in range(depth):
            trace.event("cpu_op", f"op{level}", began + level, 2 * (depth - level))
        outermost += 2 * depth
        began += 2 * depth
    assert own_and_total_us(trace.read().operators)[0].sum() == pytest.approx(outermost)


def test_an_operator_inside_its_like_counts_once():
    """The total of a name is the time in which at least one of that name is under way."""
    trace = Kineto()
    trace.step(0, 0, 900)
    trace.event("cpu_op", "aten::copy_", 100, 100)
    trace.event("cpu_op", "aten::to", 110, 80)
    trace.event("cpu_op", "aten::copy_", 120, 50)
    rows = {row.name: (row.calls, row.us, row.total_us) for row in summary(trace).operators}
    assert rows == {"aten::copy_": (2, 20 + 50, 100), "aten::to": (1, 30, 80)}
