"""Traces edited at random: refused in one sentence, or analysed and shown."""

import contextlib
import json
from io import BytesIO

from hypothesis import given, settings
from kineto import PEAKS, steps
from mutated import FUZZ, FUZZED, mutated

from stepguard.core.profile import over_ranks
from stepguard.explain.causes import explain
from stepguard.lab import explanation_page
from stepguard.lab.exchanges import exchanges
from stepguard.lab.memory import memory_page, memory_table
from stepguard.lab.roofline import class_roofs
from stepguard.lab.trace_files import read_ranks
from stepguard.lab.trace_page import page, roof_lines
from stepguard.lab.trace_summary import summary
from stepguard.storage.json_file import FileError
from stepguard.trace.chrome_chunks import TraceError
from stepguard.trace.chrome_trace import decode_all
from stepguard.trace.host_steps import read_steps
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import profile
from stepguard.trace.operator_identity import identity_of

HEAD = {
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
    "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"},
    "cuda_driver_version": 12080,
    "baseTimeNanoseconds": 1_760_000_000_000_000_000,
}
CLASSES = usual_classes()


def with_shapes_and_memory():
    """A trace of three steps with a product's shapes, and an allocation in each step."""
    trace = steps(3)
    for number in range(3):
        shapes = {"Input Dims": [[8, 4], [4, 8]], "Input type": ["float"] * 2}
        trace.event("cpu_op", "aten::mm", 1000.0 * number + 5, 9, **{"External id": 3}, **shapes)
        figures = {"Addr": 7, "Bytes": 64, "Total Allocated": 64, "Total Reserved": 64}
        allocation = {
            "ph": "i",
            "name": "[memory]",
            "pid": 100,
            "tid": 1,
            "ts": 1000.0 * number + 6,
        }
        trace.events.append(allocation | {"args": figures | {"Device Type": 1}})
    return json.loads(trace.text()) | HEAD


def test_fuzzed_trace_files(tmp_path):
    """Of anybody: read, analysed, compared with another, and printed; with what holds memory."""
    path, other = tmp_path / "trace.json", tmp_path / "other.json"
    other.write_bytes(steps(3).text())
    ((_, sound),) = read_ranks([other], CLASSES).values()

    @settings(FUZZ, max_examples=FUZZED // 2)
    @given(mutated(with_shapes_and_memory()))
    def fuzz(text):
        path.write_text(text)
        try:
            ((_, found),) = read_ranks([path], CLASSES).values()
        except FileError as error:
            assert str(path) in str(error)
            return
        one = summary(found, path.name, 0)
        list(page([one], exchanges([found]), 12))
        list(roof_lines(class_roofs(one.profile, PEAKS), PEAKS))
        with contextlib.suppress(TraceError):
            list(memory_page(memory_table(found.trace, CLASSES, 64, gpu=True), {}, 12))
        for pair in ((found, sound), (sound, found)):
            list(
                explanation_page.lines(
                    peaks=PEAKS, explanation=explain(*(over_ranks([profile(one)]) for one in pair))
                )
            )

    fuzz()


EVENT = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
MARK = EVENT | {"cat": "user_annotation", "name": "mark", "ts": 0.0, "dur": 100.0}
EVENTS = [
    MARK,
    EVENT | {"cat": "cpu_op", "name": "aten::copy_", "ts": 1.0, "dur": 20.0},
    EVENT
    | {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": 2.0, "dur": 3.0}
    | {"args": {"correlation": 7}},
    EVENT
    | {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 6.0, "dur": 3.0}
    | {"args": {"correlation": 8}},
    EVENT
    | {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": 4.0, "dur": 3.0}
    | {"args": {"correlation": 7, "bytes": 64}},
    EVENT | {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": 30.0, "dur": 20.0},
    EVENT
    | {"cat": "cpu_op", "name": "record_param_comms", "ts": 31.0, "dur": 2.0}
    | {"args": {"In msg nelems": 8, "dtype": "Float"}},
    EVENT
    | {"cat": "user_annotation", "name": "gloo:all_reduce", "ts": 31.0, "dur": 2.0}
    | {"args": {"Input type": ["float"], "Input Dims": [[[2, 4]]]}},
    EVENT
    | {"cat": "cpu_op", "name": "c10d::broadcast_", "ts": 60.0, "dur": 20.0}
    | {"args": {"Input type": ["float"], "Input Dims": [[[2, 4]]]}},
]


@settings(FUZZ, max_examples=FUZZED // 2)
@given(mutated({"traceEvents": EVENTS}))
def test_fuzzed_steps(text):
    """Of a rank's own profile: counted, or no count at all."""
    try:
        events = decode_all(BytesIO(text.encode())).events
        read_steps(events, "mark", 1)
        identity_of(events, "mark", 1)
    except (TraceError, RuntimeError):
        return
