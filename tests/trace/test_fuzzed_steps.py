"""A rank's own profile edited at random: counted, or no count at all."""

from hypothesis import given, settings
from mutated import FUZZ, FUZZED, mutated

from stepguard.trace.chrome_trace import TraceError, decode_all
from stepguard.trace.host_steps import identity_of, read_steps
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse, profile

EVENT = {"ph": "X", "pid": 1, "tid": 1, "args": {}}
MARK = EVENT | {"cat": "user_annotation", "name": "mark", "ts": 0.0, "dur": 100.0}
EVENTS = [
    MARK,
    EVENT | {"cat": "cpu_op", "name": "aten::copy_", "ts": 1.0, "dur": 20.0},
    EVENT | {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": 2.0, "dur": 3.0} | {
        "args": {"correlation": 7}},
    EVENT | {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "ts": 6.0, "dur": 3.0} | {
        "args": {"correlation": 8}},
    EVENT
    | {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": 4.0, "dur": 3.0}
    | {"args": {"correlation": 7, "bytes": 64}},
    EVENT | {"cat": "cpu_op", "name": "c10d::allreduce_", "ts": 30.0, "dur": 20.0},
    EVENT | {"cat": "cpu_op", "name": "record_param_comms", "ts": 31.0, "dur": 2.0} | {
        "args": {"In msg nelems": 8, "dtype": "Float"}},
    EVENT | {"cat": "user_annotation", "name": "gloo:all_reduce", "ts": 31.0, "dur": 2.0} | {
        "args": {"Input type": ["float"], "Input Dims": [[[2, 4]]]}},
    EVENT | {"cat": "cpu_op", "name": "c10d::broadcast_", "ts": 60.0, "dur": 20.0} | {
        "args": {"Input type": ["float"], "Input Dims": [[[2, 4]]]}},
]  # fmt: skip


@settings(FUZZ, max_examples=FUZZED // 2)
@given(mutated({"traceEvents": EVENTS}))
def test_fuzzed_steps(text):
    """Of a rank's own profile: counted, or no count at all."""
    try:
        trace = decode_all(text.encode())
        events = trace.events
        read_steps(events, "mark", 1)
        identity_of(events, "mark", 1)
        profile(analyse(trace.trace(), usual_classes()))
    except (TraceError, RuntimeError):
        return
