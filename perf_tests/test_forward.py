"""The forward pass with its loss, without gradients: pytest perf_tests/test_forward.py"""

from stepguard import Case
from stepguard.plugin import cases

FORWARD = "model.workloads:forward"
SEED = {"size": "124m", "batch": 64, "seq": 1024, "precision": "bf16", "compile": True}
NANO = {"size": "nano", "batch": 4, "seq": 64, "precision": "fp32"}


@cases(
    Case("124m-bf16", FORWARD, SEED),
    Case("124m-bf16-eager", FORWARD, SEED | {"compile": False, "batch": 16}, extended=True),
    Case("124m-tf32", FORWARD, SEED | {"precision": "tf32"}, extended=True),
    Case("350m-bf16", FORWARD, SEED | {"size": "350m", "batch": 32}, extended=True),
    Case("nano-cpu", FORWARD, NANO | {"compile": False}, device="cpu", launches=1),
)
def test_forward(perf, case):
    """The forward pass is as fast, and does the same work, as its baseline."""
    perf(case)
