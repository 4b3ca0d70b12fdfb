"""The file of a rank's own profile: read whole, or refused in one sentence."""

import pytest
from kineto import WRITTEN_WRONGLY, WRONG_EVENTS, Kineto, steps

from stepguard.trace.chrome_trace import CutOffError, TraceError, decode_all


def test_a_file_without_its_end_is_cut_off():
    """Wherever it ends: the profiler does not say that a disk was full."""
    text = steps(2).text()
    for end in [0, 5, 30, 200, len(text) // 2, len(text) - 1]:
        with pytest.raises(CutOffError):
            decode_all(text[:end])


@pytest.mark.parametrize("old, new", WRITTEN_WRONGLY)
def test_what_kineto_wrote_wrongly_is_mended(old, new):
    """Raw control characters, bytes that are no UTF-8, numbers that JSON does not have."""
    text = steps(3).text().replace(old, new)
    assert len(decode_all(text).trace().gpu.kind) == 4
    with pytest.raises(CutOffError):
        decode_all(text[:-9])


@pytest.mark.parametrize("change, words", WRONG_EVENTS)
def test_a_wrong_event_is_refused(change, words):
    """What cannot be right is not skipped: the figures would be wrong and look right."""
    trace = steps(1)
    trace.events[-1] |= change
    with pytest.raises(TraceError, match=words):
        trace.read()


@pytest.mark.parametrize("text", [b"{}", b"[]", b"none", b'{"traceEvents": []} {}'])
def test_what_is_no_trace_is_refused(text):
    """And not called cut off: no room on a disk would mend it."""
    with pytest.raises(TraceError) as refused:
        decode_all(text)
    assert not isinstance(refused.value, CutOffError)


def test_the_head_says_where_it_was_recorded():
    """The card, the rank, CUDA's versions; a malformed head costs the columns, not the counts."""
    trace = Kineto(deviceProperties=[{"name": "NVIDIA H200"}], cuda_driver_version=13000)
    trace.head["distributedInfo"] = {"rank": 3, "world_size": 4}
    trace.kernel(4, 20, 30)
    machine = trace.read().machine
    assert (machine.gpu, machine.rank, machine.world_size) == ("NVIDIA H200", 3, 4)
    assert machine.software == (("cuda_driver_version", "13000"),)
    trace.head["distributedInfo"] = 3
    decoded = decode_all(trace.text())
    assert len(decoded.events) == 2
    with pytest.raises(TraceError, match="its record of the machine is malformed"):
        decoded.trace()
