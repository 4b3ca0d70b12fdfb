"""What holds a peak: every block and byte is as it was made."""

from io import BytesIO

import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from kineto import MAIN, Kineto

from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.kernel_classes import usual_classes
from stepguard_lab.chrome_chunks import read_chrome
from stepguard_lab.memory import memory_page, memory_table


def allocation(trace, ts, address, change, device=0):
    """An allocation, or a free where ``change`` is negative."""
    figures = {"Addr": address, "Bytes": change, "Total Allocated": 0, "Total Reserved": 0}
    trace.events.append(
        dict(ph="i", cat="cpu_instant_event", name="[memory]", pid=100, tid=MAIN, ts=ts)
        | {"args": figures | {"Device Type": device}}
    )


def table(trace, live=0, gpu=False):
    """The table of a trace by the usual rules."""
    return memory_table(read_chrome(BytesIO(trace.text())), usual_classes(), live, gpu)


def test_blocks_by_phase_operator_and_function():
    """Blocks that live at the peak have an origin; what was freed before it has none."""
    trace = Kineto()
    trace.step(0, 0, 1000)
    trace.annotation("forward", 10, 400)
    trace.annotation("backward", 500, 900)
    trace.event("python_function", "model/gpt.py(7): forward", 15, 300)
    trace.event("python_function", "torch/nn/functional.py(9): linear", 16, 290)
    trace.event("python_function", ".stepguard/cache/inductor/hh/chh.py(3): call", 17, 280)
    trace.event("cpu_op", "aten::linear", 20, 100)
    trace.event("cpu_op", "aten::addmm", 30, 60)
    allocation(trace, 40, 1, 300)
    allocation(trace, 41, 2, 50)
    allocation(trace, 42, 2, -50)
    allocation(trace, 43, 9, 10**6, device=1)  # another device's
    allocation(trace, 510, 77, -100)  # of what was there before
    allocation(trace, 520, 3, 400)
    allocation(trace, 530, 3, -400)
    found = table(trace, live=1000)
    assert (found.peak, found.peak_phase, found.before) == (1600, "backward", 900)
    assert found.peaks == (("forward", 1350), ("backward", 1600))
    assert [(h.phase, h.operator, h.source, h.bytes, h.blocks) for h in found.holders] == [
        ("backward", "", "", 400, 1),
        ("forward", "aten::linear", "model/gpt.py(7): forward", 300, 1),
    ]
    lines = list(memory_page(found, {"memory_allocated": 2**20}, 1))
    assert "memory allocated: 1.00 MiB" in lines and "and 1 more with 0.00 MiB" in lines
    assert any("gpt.py:7 forward " in line for line in memory_page(found, {}, 2))
    assert all(len(line) <= 80 for line in lines)


def test_a_step_whose_peak_is_its_begin():
    """A step that only frees is held by what was there."""
    trace = Kineto()
    trace.step(0, 0, 100)
    allocation(trace, 40, 1, -300)
    found = table(trace, live=1000)
    assert (found.peak, found.before, found.holders) == (1000, 1000, ())


def test_a_trace_without_allocations_is_refused():
    """Of this device, too."""
    trace = Kineto()
    trace.step(0, 0, 100)
    with pytest.raises(TraceError, match="profile_memory"):
        table(trace)
    allocation(trace, 40, 1, 300)
    with pytest.raises(TraceError, match="profile_memory"):
        table(trace, gpu=True)


def test_an_allocation_without_bytes_is_refused():
    """It cannot be counted as none."""
    trace = Kineto()
    trace.step(0, 0, 100)
    allocation(trace, 40, 1, 300)
    del trace.events[-1]["args"]["Bytes"]
    with pytest.raises(TraceError, match="without time or bytes"):
        read_chrome(BytesIO(trace.text()))


SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 10**9)), min_size=1, max_size=20)


@PROPERTY
@given(SIZES, st.integers(0, 10**9))
def test_the_parts_are_the_peak(blocks, live):
    """Whatever is allocated and freed: before + holders = peak, and no sum was higher."""
    trace, held, sums = Kineto(), {}, [live]
    trace.step(0, 0, 1000)
    for when, (address, size) in enumerate(blocks):
        change = -held.pop(address) if address in held else held.setdefault(address, size)
        allocation(trace, when, address, change)
        sums.append(sums[-1] + change)
    found = table(trace, live)
    assert found.before + sum(one.bytes for one in found.holders) == found.peak == max(sums)
