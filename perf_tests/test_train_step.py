"""The whole training step on one GPU: gradient accumulation, clipping, fused AdamW.

The 124m case is what one GPU of a 4-GPU, 524,288-token step does: 2 micro-steps of 64 x 1024.
"""

from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard import Case, default_gates
from stepguard.plugin import cases

TRAIN_STEP = "model.workloads:train_step"


@cases(
    Case("124m-bf16", TRAIN_STEP, SEED_STEP, gates=(*default_gates("cuda"), "sync_overhead_pct")),
    Case(
        "124m-bf16-sync-overhead",  # to 0.1 % of a step: 212 s of load
        TRAIN_STEP,
        SEED_STEP,
        gates=("sync_overhead_pct",),
        difference_pairs=48,
        extended=True,
    ),
    Case("124m-bf16-eager", TRAIN_STEP, SEED_STEP | {"compile": False, "batch": 16}, extended=True),
    Case("124m-bf16-fast", TRAIN_STEP, SEED_STEP | {"fast": True}, extended=True),
    Case("124m-fp16", TRAIN_STEP, SEED_STEP | {"precision": "fp16"}, extended=True),
    Case("350m-bf16", TRAIN_STEP, SEED_STEP | {"size": "350m", "batch": 32}, extended=True),
    Case("nano-cpu", TRAIN_STEP, NANO_STEP, device="cpu", launches=1),
    Case("nano-cpu-compiled", TRAIN_STEP, NANO_STEP | {"compile": True}, device="cpu", launches=1),
)
def test_train_step(perf, case):
    """The training step is as fast, and does the same work, as its baseline."""
    perf(case)
