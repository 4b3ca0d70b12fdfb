"""Any Kineto file is read, whatever its size and faults, or refused in one sentence."""

import gzip
import json
import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from kineto import WRITTEN_WRONGLY, WRONG_EVENTS, Kineto, steps

from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.columns import ANNOTATION, CALL, NONE, OPERATOR
from stepguard_lab.chrome_chunks import Chunks, read_chrome

ROOT = Path(__file__).resolve().parents[3]


def read(text, chunk_bytes=64):
    """The trace of a file, in chunks that end anywhere."""
    return read_chrome(BytesIO(text), chunk_bytes)


def same(one, other):
    """Whether two traces say the same; numbers of names, threads and shapes may differ."""
    assert one.machine == other.machine and one.messages == other.messages
    for a, b in ((one.host, other.host), (one.gpu, other.gpu)):
        for name in a.__dataclass_fields__:
            if name not in ("name", "thread", "shape"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
        assert [one.names[i] for i in a.name] == [other.names[i] for i in b.name]
    pairs = set(zip(one.host.thread.tolist(), other.host.thread.tolist(), strict=True))
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})
    shapes = [[trace.shapes[i] for i in trace.gpu.shape if i >= 0] for trace in (one, other)]
    return shapes[0] == shapes[1]


def awkward():
    """A trace with text in it that looks like the border of two events, or like the list's end."""
    trace = steps(2)
    trace.event("cpu_op", 'a},{"ph":"X"}],"traceName":"b"}', 5, 3, **{"External id": 1})
    trace.event("cpu_op", "nested", 9, 1, Inputs=[{"a": 1}, {"b": [2, {}]}, {}])
    trace.events.append({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "python"}})
    trace.events.append({"ph": "s", "id": 3, "ts": 1, "cat": "ac2g", "name": "ac2g", "pid": 1})
    return trace


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 1 << 20])
def test_cuts_anywhere_change_nothing(size):
    """The size of a chunk decides nothing, wherever it cuts."""
    text = awkward().text()
    assert same(read(text, size), read(text, 1 << 24))


@given(st.integers(0, 50), st.integers(1, 400), st.booleans(), st.data())
@PROPERTY
def test_all_events_arrive(count, size, packed, data):
    """However many events, and however they are indented, chunks hold every one once, in order."""
    indent = data.draw(st.sampled_from([None, 0, 2]))
    events = [dict(ph="X", name=f"n{i}", args={"x": [[1], {}]}) for i in range(count)]
    text = json.dumps({"traceEvents": events, "deviceProperties": [{}, {}]}, indent=indent).encode()
    chunks = Chunks(BytesIO(gzip.compress(text) if packed else text), size)
    assert [event.name for part in chunks for event in part] == [e["name"] for e in events]
    assert chunks.head == {"deviceProperties": [{}, {}]}


def test_a_bare_list_is_a_trace_too():
    """Chrome's other form, without the object around it."""
    text = steps(2).text()
    listed = json.dumps(json.loads(text)["traceEvents"]).encode()
    assert same(read(listed), read(text))
    for unclosed in (b"", b"\n", b",", b" , \n"):  # the bracket is optional in Chrome's format
        assert same(read(listed[:-1] + unclosed), read(text))
    for cut in (listed[:-2], listed[: len(listed) // 2]):
        with pytest.raises(TraceError, match="cut off"):
            read(cut)


def test_gzip_is_unpacked():
    """As it is written by torch, and joined from several parts."""
    text = awkward().text()
    plain = read(text)
    assert same(read(gzip.compress(text)), plain)
    assert same(read(gzip.compress(text[:999]) + gzip.compress(text[999:]) + bytes(9)), plain)


@pytest.mark.parametrize("behind", [b"garbage", bytes(9) + b"garbage", b"g", b"\x1f"])
@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_what_follows_gzip_is_left_alone(behind, size):
    """As gunzip does: something was appended to the file, and the trace in it is whole."""
    text = awkward().text()
    assert same(read(gzip.compress(text) + behind, size), read(text))


@pytest.mark.parametrize("missing", [False, True])
def test_damaged_gzip_is_refused(missing, tmp_path):
    """By isal and, where that is missing, by the standard library, which reads the same."""
    packed = bytearray(gzip.compress(awkward().text()))
    (tmp_path / "whole.gz").write_bytes(packed)
    packed[len(packed) // 2] ^= 0xFF
    (tmp_path / "damaged.gz").write_bytes(packed)
    script = (
        f"import sys; sys.modules.update(dict.fromkeys(['isal'], None)) if {missing} else None\n"
        "from stepguard_lab.chrome_chunks import TraceError, read_chrome\n"
        "print(len(read_chrome(open('whole.gz', 'rb')).gpu.kind), bool(sys.modules.get('isal')))\n"
        "try:\n    read_chrome(open('damaged.gz', 'rb'))\nexcept TraceError as e:\n    print(e)\n"
    )
    command = [sys.executable, "-c", script]
    there = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'lab'}"}}
    done = subprocess.run(command, **there, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    first, second = done.stdout.splitlines()
    assert first == f"3 {not missing}" and "gzip stream is damaged" in second


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_off_file_is_refused(packed):
    """Wherever it ends: before the list, in it, in an event, or before the object's end."""
    text = awkward().text()
    for end in [0, 5, 30, 200, len(text) // 2, len(text) - 1]:
        part = gzip.compress(text)[: -9 - end % 3] if packed else text[:end]
        with pytest.raises(TraceError, match="cut off|no list"):
            read(part)


@pytest.mark.parametrize("text", [b"[[-1, 1, 37888, 7], [4, 2]]", b' [ "a", {"ph": "X"}]', b"[1"])
def test_a_list_of_anything_else_is_no_trace(text):
    """A timeline of memory, which torch.profiler writes too, is whole and no trace of a step."""
    with pytest.raises(TraceError, match="a list, and not of events"):
        read_chrome(BytesIO(text))


@pytest.mark.parametrize("old, new", WRITTEN_WRONGLY)
def test_what_kineto_wrote_wrongly_is_mended(old, new):
    """Raw control characters, bytes that are no UTF-8, numbers that JSON does not have."""
    text = steps(3).text()
    assert len(read(text.replace(old, new)).gpu.kind) == 4


@pytest.mark.parametrize("change, words", WRONG_EVENTS)
def test_a_wrong_event_is_refused(change, words):
    """What cannot be right is not skipped: the figures would be wrong and look right."""
    trace = steps(1)
    trace.events[-1] |= change
    with pytest.raises(TraceError, match=words):
        read(trace.text())


@pytest.mark.parametrize(("change", "words"), [
    ({"ts": 1e300}, "begins at 1e\\+300 us"),
    ({"ts": -1e6}, "begins at -1000000.0 us"),
    ({"dur": 1e300}, "a length of 1e\\+300 us"),
    ({"dur": -5.0}, "a length of -5.0 us"),
])  # fmt: skip
def test_a_time_that_no_clock_shows_is_refused(change, words):
    """One such event would stretch a step over centuries."""
    trace = steps(1)
    trace.events[-1] |= change
    with pytest.raises(TraceError, match=words):
        read(trace.text())


def test_a_kernel_without_a_length_is_refused():
    """It would drop out of all sums."""
    trace = steps(1)
    del trace.events[-1]["dur"]
    with pytest.raises(TraceError, match="has no length"):
        read(trace.text())


@pytest.mark.parametrize("field", ["args", "name"])
def test_json_that_is_nested_too_deep_is_refused(field):
    """And no traceback."""
    deep = b"[" * 100_000 + b"]" * 100_000
    event = b'{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "%s": %s}' % (field.encode(), deep)
    with pytest.raises(TraceError):
        read(b'{"traceEvents": [%s]}' % event, 1 << 20)


def test_a_trace_of_torch_1_9():
    """Its marks of steps are operators, and its records of memory have no address."""
    trace = Kineto()
    trace.event("Operator", "ProfilerStep#1", 0, 10, 1, 1)
    trace.event("Operator", "aten::mm", 1, 2, 1, 1)
    trace.events.append({"ph": "i", "name": "[memory]", "ts": 2, "args": {"Bytes": 5}})
    found = read(trace.text())
    assert found.host.kind.tolist() == [ANNOTATION, OPERATOR] and found.allocations is None


@pytest.mark.parametrize("text", [b"", b"{}", b'{"a": [1]}', b"[]", b'{"traceEvents": []}', b"no"])
def test_no_trace_is_no_trace(text):
    """Other JSON, an empty list, no JSON at all."""
    with pytest.raises(TraceError):
        read(text)


def test_malformed_json_is_refused_where_it_is():
    """The sentence says after how many events."""
    text = steps(200).text()
    half = text.index(b'"ProfilerStep#100"')
    with pytest.raises(TraceError, match=r"after [\d,]+ events"):
        read(text[:half] + b"}{" + text[half:], 1000)


@pytest.mark.parametrize("stray", ['"', "x", "{", "}", "[", ",", "\\"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_stray_character_is_refused_where_it_stands(stray, inside):
    """The rest of a file is not read, which would take longer than reading a good one."""
    events = [dict(ph="X", cat="cpu_op", name="aten::mm", ts=at, dur=1) for at in range(5000)]
    text = json.dumps({"traceEvents": events})
    at = text.index('"cat"' if inside else '{"ph"', len(text) // 10)
    file = BytesIO((text[:at] + stray + text[at:]).encode())
    with pytest.raises(TraceError, match=r"after [\d,]+ events"):
        read_chrome(file, 1000)
    assert file.tell() < at + 3000


def test_a_list_may_end_in_a_comma():
    """As some tools write it; lists of objects that follow are none of its events."""
    trace = steps(300)
    events, devices = (json.dumps(one)[1:-1] for one in (trace.events, [{"name": "H"}] * 9))
    text = f'{{"traceEvents": [{events}, ], "deviceProperties": [{devices}]}}'.encode()
    assert len(read(text, 1000).gpu.kind) == 301 and read(text, 1 << 20).machine.gpu == "H"


def test_old_and_foreign_spellings():
    """Before 2023 Kineto wrote "Kernel" and "Runtime", ids in lower case, streams as text."""
    trace = Kineto()
    trace.event("Runtime", "cudaLaunchKernel", 1, 1, correlation=5, **{"external id": 9})
    trace.event("Kernel", "k", 2, 1, 7, 0, correlation=5, stream="7", **{"external id": 9})
    found = read(trace.text())
    assert found.host.kind.tolist() == [CALL] and found.host.external.tolist() == [9]
    assert found.gpu.stream.tolist() == [7] and found.gpu.external.tolist() == [9]


@pytest.mark.parametrize("args", [
    [],
    {"grid": "grid(100,)", "block": "(1,)"},
    {"correlation": "12", "External id": "7", "dtype": 5, "Group size": "8"},
    {"Collective name": 3, "In msg nelems": "many", "kernel_hash": 9},
])  # fmt: skip
def test_an_argument_of_another_type_is_read_or_absent(args):
    """It is used where it is a number as text, and else as if it were not there."""
    trace = steps(2)
    trace.event("cpu_op", "f", 3, 1)["args"] = args
    trace.event("kernel", "k", 5, 1, stream=7)["args"] |= args or {}
    found = read(trace.text())
    assert len(found.host.kind) == 7 and len(found.gpu.kind) == 4
    odd = found.gpu.where(found.gpu.name == found.names.index("k"))
    number = 12 if "correlation" in args else NONE
    assert (odd.correlation.tolist(), found.shapes[odd.shape[0]][0]) == ([number], ())
    assert found.host.correlation[found.host.name == found.names.index("f")].tolist() == [number]


@pytest.mark.parametrize(
    ("ranks", "rank", "size"),
    [({"rank": "3", "world_size": "4"}, 3, 4), ({"rank": "main", "world_size": "all"}, None, 1)],
)
def test_a_rank_may_be_text(ranks, rank, size):
    """A number is read, and what is none is absent."""
    trace = steps(1)
    trace.head["distributedInfo"] = ranks
    machine = read(trace.text()).machine
    assert (machine.rank, machine.world_size) == (rank, size)


def test_columns_are_in_order_and_complete():
    """Sorted by begin, the longer first; what the file does not say is NONE."""
    trace = Kineto(deviceProperties=[{"name": "NVIDIA H200"}])
    trace.head["distributedInfo"] = {"rank": 3, "world_size": 4}
    trace.event("cpu_op", "inner", 10, 2)
    trace.event("cpu_op", "outer", 10, 5)
    trace.kernel(4, 20, 30, grid=[2, 3, 1], block=[128, 1, 1])
    found = read(trace.text())
    assert [found.names[i] for i in found.host.name] == ["cudaLaunchKernel", "outer", "inner"]
    assert found.host.start_us.tolist() == [0, 6, 6] and found.began_us == 4
    assert found.host.correlation.tolist() == [1, NONE, NONE]
    assert found.shapes[0] == ((2, 3, 1), (128, 1, 1))
    assert (found.machine.gpu, found.machine.rank, found.machine.world_size) == (
        "NVIDIA H200",
        3,
        4,
    )
