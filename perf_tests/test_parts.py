"""Parts of training and generation, each beside the alternative that it is compared with.

    pytest perf_tests/test_parts.py -m extended

All of them are extended; those named cpu are the twins that a laptop can run.
"""

from perf_tests.parameters import NANO, NANO_STEP, SEED, SEED_STEP
from stepguard import Case
from stepguard.plugin import cases

ATTENTION, DECODE = "model.parts:attention", "model.parts:decode"
CHECKPOINTED, READING = "model.parts:checkpointed", "model.parts:reading_step"
LOADING, TOKENIZATION = "model.parts:loading", "model.parts:tokenization"
CONVOLUTION = "model.parts:convolution"
LONG = {"width": 64, "seq": 4096, "batch": 8}
SHORT = {"width": 64, "seq": 256, "batch": 2}
TOKEN = {"size": "124m", "batch": 1, "room": 256}
EAGER = SEED | {"compile": False, "batch": 16}
INPUT = {"size": "124m", "batch": 32, "seq": 512}


def gpu(name, workload, params, **fields):
    """An extended case for a GPU."""
    return Case(name, workload, params, extended=True, **fields)


def cpu(name, workload, params):
    """Its twin for a CPU."""
    return Case(name, workload, params, device="cpu", launches=1, extended=True)


@cases(
    gpu("naive", ATTENTION, LONG),
    gpu("naive-tf32", ATTENTION, LONG | {"tf32": True}),
    gpu("naive-compiled", ATTENTION, LONG | {"compile": True}),
    gpu("efficient", ATTENTION, LONG | {"kind": "efficient"}),
    cpu("naive-cpu", ATTENTION, SHORT),
    cpu("flash-cpu", ATTENTION, SHORT | {"kind": "flash"}),
    gpu("124m", CHECKPOINTED, EAGER),
    cpu("nano-cpu", CHECKPOINTED, NANO),
    gpu("124m-eager", DECODE, TOKEN),
    gpu("124m-compiled", DECODE, TOKEN | {"mode": "compile"}),
    gpu("124m-reduce-overhead", DECODE, TOKEN | {"mode": "reduce-overhead"}),
    gpu("124m-cuda-graph", DECODE, TOKEN | {"mode": "cuda-graph"}),
    cpu("nano-cpu", DECODE, {"size": "nano", "room": 64, "precision": "fp32"}),
    gpu("every-step", READING, SEED_STEP | {"every": 1}),
    gpu("every-100", READING, SEED_STEP | {"every": 100}),
    cpu("every-step-cpu", READING, NANO_STEP | {"every": 1}),
    gpu("workers-0", LOADING, INPUT),
    gpu("workers-8", LOADING, INPUT | {"workers": 8, "pin": True}),
    cpu("single-cpu", TOKENIZATION, {"how": "single"}),
    cpu("batch-cpu", TOKENIZATION, {"how": "batch"}),
    cpu("cached-cpu", TOKENIZATION, {"how": "cached"}),
    gpu("contiguous", CONVOLUTION, {"channels_last": False}),
    gpu("channels-last", CONVOLUTION, {"channels_last": True}),
)
def test_part(perf, case):
    """The part is as fast, and does the same work, as its baseline."""
    perf(case)
