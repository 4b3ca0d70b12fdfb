"""Parts of training and generation, each beside the alternative that it is compared with.

    pytest perf_tests/test_parts.py -m extended

All of them are extended; those named cpu are the twins that a laptop can run.
"""

from perf_tests.parameters import NANO, NANO_STEP, SEED, SEED_STEP
from stepguard import Case, default_gates
from stepguard.plugin import cases

ATTENTION, DECODE = "model.parts:attention", "model.parts:decode"
CHECKPOINTED, READING = "model.parts:checkpointed", "model.parts:reading_step"
LOADING, TOKENIZATION = "model.parts:loading", "model.parts:tokenization"
CONVOLUTION = "model.parts:convolution"
LONG = {"width": 64, "seq": 4096, "batch": 8}
SHORT = {"width": 64, "seq": 256, "batch": 2}
TOKEN = {"size": "124m", "batch": 1, "room": 256}
EAGER = SEED | {"compile": False, "batch": 16}
# A GPU that waits for its host takes 2.1 ms a token in one second and 2.6 in the next, on an H200;
# one that waits for its input 24.2 ms a step in one and 24.8 in the next, for a minute.
COUNTERS = tuple(name for name in default_gates("cuda") if not name.startswith("step_ms"))
INPUT, WORKERS = {"size": "124m", "batch": 32, "seq": 512}, {"workers": 8, "pin": True}


def gpu(name, workload, params, **fields):
    """An extended case for a GPU."""
    return Case(name, workload, params, extended=True, **fields)


def cpu(name, workload, params):
    """Its twin for a CPU."""
    return Case(name, workload, params, device="cpu", launches=1, extended=True)


@cases(
    gpu("naive", ATTENTION, LONG),
    gpu("naive-tf32", ATTENTION, LONG | {"precision": "tf32"}),
    gpu("naive-compiled", ATTENTION, LONG | {"compile": True}),
    gpu("efficient", ATTENTION, LONG | {"kind": "efficient"}),
    gpu("flash-bf16", ATTENTION, LONG | {"kind": "flash", "precision": "bf16"}),
    gpu("cudnn-bf16", ATTENTION, LONG | {"kind": "cudnn", "precision": "bf16"}),
    cpu("naive-cpu", ATTENTION, SHORT),
    cpu("flash-cpu", ATTENTION, SHORT | {"kind": "flash"}),
)
def test_attention(perf, case):
    """One head of attention, forward and backward: what it takes, and what it keeps."""
    perf(case)


@cases(gpu("124m", CHECKPOINTED, EAGER), cpu("nano-cpu", CHECKPOINTED, NANO))
def test_checkpointed(perf, case):
    """Forward and backward with layers computed twice: memory against time."""
    perf(case)


@cases(
    gpu("124m-eager", DECODE, TOKEN, gates=COUNTERS),
    gpu("124m-compiled", DECODE, TOKEN | {"mode": "compile"}, gates=COUNTERS),
    gpu("124m-reduce-overhead", DECODE, TOKEN | {"mode": "reduce-overhead"}),
    gpu("124m-cuda-graph", DECODE, TOKEN | {"mode": "cuda-graph"}),
    cpu("nano-cpu", DECODE, {"size": "nano", "room": 64, "precision": "fp32"}),
)
def test_decode(perf, case):
    """A token of generation at batch 1, where launches cost more than products."""
    perf(case)


@cases(
    gpu("every-step", READING, SEED_STEP | {"every": 1}),
    gpu("every-100", READING, SEED_STEP | {"every": 100}),
    cpu("every-step-cpu", READING, NANO_STEP | {"every": 1}),
)
def test_reading(perf, case):
    """A training step that reads its loss: each time, or now and then."""
    perf(case)


@cases(
    gpu("workers-0", LOADING, INPUT, gates=COUNTERS),
    gpu("workers-8", LOADING, INPUT | WORKERS),
    cpu("workers-0-cpu", LOADING, {"size": "nano", "batch": 2, "seq": 64}),
)
def test_loading(perf, case):
    """A forward pass that waits for its input, and one that need not."""
    perf(case)


@cases(
    cpu("single-cpu", TOKENIZATION, {"how": "single"}),
    cpu("batch-cpu", TOKENIZATION, {"how": "batch"}),
    cpu("cached-cpu", TOKENIZATION, {"how": "cached"}),
)
def test_tokenization(perf, case):
    """Text to ids on the host, by three means."""
    perf(case)


@cases(
    gpu("contiguous", CONVOLUTION, {"channels_last": False}),
    gpu("channels-last", CONVOLUTION, {"channels_last": True}),
    cpu("contiguous-cpu", CONVOLUTION, {"channels_last": False, "batch": 1}),
    cpu("channels-last-cpu", CONVOLUTION, {"channels_last": True, "batch": 1}),
)
def test_convolution(perf, case):
    """A convolution in either memory layout."""
    perf(case)
