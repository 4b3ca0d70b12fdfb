"""The forward pass with its loss, without gradients: pytest perf_tests/test_forward.py"""

from perf_tests.parameters import NANO, SEED
from stepguard import Case
from stepguard.plugin import cases

FORWARD = "model.workloads:forward"


@cases(
    Case("124m-bf16", FORWARD, SEED),
    Case("124m-bf16-eager", FORWARD, SEED | {"compile": False, "batch": 16}, extended=True),
    Case("124m-tf32", FORWARD, SEED | {"precision": "tf32"}, extended=True),
    Case("350m-bf16", FORWARD, SEED | {"size": "350m", "batch": 32}, extended=True),
    Case("nano-cpu", FORWARD, NANO, device="cpu", launches=1),
)
def test_forward(perf, case):
    """The forward pass is as fast, and does the same work, as its baseline."""
    perf(case)
