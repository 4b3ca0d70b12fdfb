"""Forward and backward, without an optimizer: pytest perf_tests/test_forward_backward.py"""

from perf_tests.parameters import NANO, SEED
from stepguard import Case
from stepguard.plugin import cases

FORWARD_BACKWARD = "model.workloads:forward_backward"


@cases(
    Case("124m-bf16", FORWARD_BACKWARD, SEED),
    Case(
        "124m-bf16-eager", FORWARD_BACKWARD, SEED | {"compile": False, "batch": 16}, extended=True
    ),
    Case("124m-fp32", FORWARD_BACKWARD, SEED | {"precision": "fp32", "batch": 16}, extended=True),
    Case("350m-bf16", FORWARD_BACKWARD, SEED | {"size": "350m", "batch": 32}, extended=True),
    Case("nano-cpu", FORWARD_BACKWARD, NANO, device="cpu", launches=1),
    Case(
        "nano-cpu-bf16",
        FORWARD_BACKWARD,
        NANO | {"precision": "bf16"},
        device="cpu",
        launches=1,
        extended=True,
    ),
)
def test_forward_backward(perf, case):
    """Forward and backward are as fast, and do the same work, as their baseline."""
    perf(case)
