"""The whole training step on several ranks of one host: DistributedDataParallel, one rank per GPU.

Every rank does what the one-GPU case does, 2 micro-steps of 64 x 1024, so that the difference to it
is what the ranks cost each other. Four ranks are the 4-GPU, 524,288-token step.
"""

from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard import Case
from stepguard.plugin import cases

TRAIN_STEP = "model.workloads:train_step"


@cases(
    Case("124m-bf16-2-gpus", TRAIN_STEP, SEED_STEP, world_size=2),
    Case("124m-bf16-4-gpus", TRAIN_STEP, SEED_STEP, world_size=4),
    Case("124m-bf16-8-gpus", TRAIN_STEP, SEED_STEP, world_size=8),
    Case(
        "124m-bf16-fast-2-gpus",
        TRAIN_STEP,
        SEED_STEP | {"fast": True},
        world_size=2,
        extended=True,
    ),
    Case("nano-cpu-2-ranks", TRAIN_STEP, NANO_STEP, device="cpu", world_size=2, launches=1),
)
def test_ddp(perf, case):
    """The training step of several ranks is as fast, and exchanges the same, as its baseline."""
    perf(case)
