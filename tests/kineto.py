"""A trace of torch.profiler made by hand: what happens when is what the test says."""

import json

from hypothesis import strategies as st

from stepguard.trace.chrome_trace import decode_all
from stepguard.trace.columns import Trace
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import Analysis, analyse

MAIN, AUTOGRAD, STREAM, COMMS = 1, 2, 7, 19
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
# When each is called, how long it takes, its name, its stream, how much later it begins.
KERNELS = st.lists(
    st.tuples(st.integers(0, 3999), st.integers(0, 700),
              st.sampled_from(["gemm", NCCL, "triton_poi_fused_add_1", "copy"]), st.integers(7, 9),
              st.integers(0, 900)), max_size=40)  # fmt: skip


def decoded(events):
    """The events as a rank's own profile has them, through a file."""
    return decode_all(json.dumps({"traceEvents": events}).encode()).events


WRITTEN_WRONGLY = [  # as it should be, and as Kineto wrote it
    (b"traceName", b"trace\x01Name"),
    (b'"gemm"', b'"ge\nmm"'),
    (b'"gemm"', b'"ge\xffmm"'),
    (b'"stream": 7', b'"blocks per SM": inf, "x": -nan, "stream": 7'),
]
WRONG_EVENTS = [  # what is wrong, and the words of both readers' refusals
    ({"ts": "soon"}, "Expected `float"),
    ({"dur": -1.0}, "no begin or no length|has no length"),
    ({"ts": None}, "Expected `float|no begin"),
    ({"args": {"correlation": [1]}}, "correlation"),
]


class Kineto:
    """Events of one rank; times in us."""

    def __init__(self, **head):
        self.head, self.events, self.correlation = head, [], 0

    def event(self, cat, name, ts, dur, tid=MAIN, pid=100, **args):
        """Any event that lasts."""
        event = dict(ph="X", cat=cat, name=name, ts=ts, dur=dur, pid=pid, tid=tid, args=args)
        self.events.append(event)
        return event

    def annotation(self, name, ts, end, tid=MAIN):
        """A range of the user, from ``ts`` to ``end``."""
        return self.event("user_annotation", name, ts, end - ts, tid)

    def step(self, number, ts, end):
        """A step's mark."""
        return self.annotation(f"ProfilerStep#{number}", ts, end)

    def operator(self, name, ts, end, tid=MAIN, differentiated=False):
        """An operator; ``differentiated``: an arrow leads from it to a backward pass."""
        if differentiated:
            arrow = dict(ph="s", id=len(self.events), pid=100, tid=tid, ts=ts)
            self.events.append(arrow | dict(cat="fwdbwd", name="fwdbwd"))
        return self.event("cpu_op", name, ts, end - ts, tid)

    def call(self, name, ts, dur=1.0, tid=MAIN, **args):
        """A CUDA call."""
        return self.event("cuda_runtime", name, ts, dur, tid, **args)

    def kernel(self, called, begin, end, name="gemm", stream=STREAM, recorded=True, **args):
        """A kernel that is launched at ``called`` and runs from ``begin`` to ``end``."""
        return self._work(
            "kernel", "cudaLaunchKernel", called, begin, end, name, stream, recorded, args
        )

    def copy(
        self, called, begin, end, name="Memcpy HtoD (Pinned -> Device)", recorded=True, **args
    ):
        """A copy."""
        call = "cudaMemcpyAsync"
        return self._work("gpu_memcpy", call, called, begin, end, name, STREAM, recorded, args)

    def _work(self, cat, call, called, begin, end, name, stream, recorded, args):
        self.correlation += 1
        tid = args.pop("tid", MAIN)
        self.call(call, called, 1.0, tid, correlation=self.correlation)
        where = dict(device=0, stream=stream, correlation=self.correlation)
        if recorded:
            self.event(cat, name, begin, end - begin, stream, 0, **where, **args)

    def text(self):
        """The file."""
        content = {"schemaVersion": 1, **self.head, "traceEvents": self.events}
        return json.dumps(content | {"traceName": "x.json"}).encode()

    def read(self) -> Trace:
        """The trace, through the reader of a rank's own profile."""
        return decode_all(self.text()).trace()

    def analysis(self) -> Analysis:
        """The trace taken apart."""
        return analyse(self.read(), usual_classes())


def host_steps(count):
    """A trace of a CPU: so many marked steps of 900 us, with one product of 100 us in each."""
    trace = Kineto()
    for number in range(count):
        trace.step(number, 1000 * number, 1000 * number + 900)
        trace.event("cpu_op", "aten::mm", 1000 * number + 20, 100)
    return trace


def steps(count, us=1000.0, ahead=0.0):
    """A trace of ``count`` marked steps and one more that ends the last; the GPU runs one kernel
    all the time, ``ahead`` us after the host has launched it.
    """
    trace = Kineto()
    for number in range(count + 1):
        began = number * us
        trace.step(number, began, began + us - 1)
        trace.kernel(began + 10, began + ahead + 20, began + us + ahead + 20)
    return trace


def three_steps():
    """The text of three complete steps of which the GPU is busy for 600 of 1000 us, 100 of them
    exchanging.
    """
    made = Kineto()
    for number in range(4):
        began = 1000.0 * number
        made.step(number, began, began + 999)
        made.kernel(began + 10, began + 100, began + 600, "nvjet")
        made.kernel(began + 20, began + 700, began + 800, "ncclDevKernel_AllReduce")
    return made.text()


def two_steps(*, ahead=0.0):
    """Two marks of 1,000 us and the kernel that ends the second; the test adds what happens."""
    trace = Kineto()
    for number in range(3):
        trace.step(number, 1000 * number, 1000 * number + 999)
        trace.kernel(1000 * number + 5, 1000 * number + 100 + ahead, 1000 * number + 200 + ahead)
    return trace


def with_kernels(kernels):
    """A trace of steps with such KERNELS in them."""
    trace = steps(4)
    for called, us, name, stream, delay in kernels:
        begin = called + delay + 0.25
        if name == "copy":
            trace.copy(called, begin, begin + us)
        else:
            trace.kernel(called, begin, begin + us, name=name, stream=stream)
    return trace


def stalled():
    """A trace whose kernels were queued, and begin 60 us and 64 ms later."""
    trace = Kineto()
    for number, begin in enumerate((100, 64_500)):
        trace.step(number, 50 * number, 50 * number + 40)
        trace.kernel(50 * number + 5, begin, begin + 100)
    trace.kernel(10, 260, 400)
    trace.kernel(11, 64_400, 64_500)
    return trace
