"""The whole training step on several ranks of one host: DistributedDataParallel, one rank per GPU.

Every rank does what the one-GPU case does, 2 micro-steps of 64 x 1024, so that the difference to it
is what the ranks cost each other. Four ranks are the 4-GPU, 524,288-token step.
"""

from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard import Case, default_gates
from stepguard.plugin import cases

TRAIN_STEP = "model.workloads:train_step"
GATES = (*default_gates("cuda", 2), "exposed_comm_pct")  # the same for any number above one


@cases(
    Case("124m-bf16-2-gpus", TRAIN_STEP, SEED_STEP, world_size=2, gates=GATES),
    Case("124m-bf16-4-gpus", TRAIN_STEP, SEED_STEP, world_size=4, gates=GATES),
    Case("124m-bf16-8-gpus", TRAIN_STEP, SEED_STEP, world_size=8, gates=GATES),
    Case(
        "124m-bf16-fast-2-gpus",
        TRAIN_STEP,
        SEED_STEP | {"fast": True},
        world_size=2,
        gates=GATES,
        extended=True,
    ),
    Case("nano-cpu-2-ranks", TRAIN_STEP, NANO_STEP, device="cpu", world_size=2, launches=1),
)
def test_ddp(perf, case):
    """The training step of several ranks is as fast, and exchanges the same, as its baseline."""
    perf(case)
