"""Runs that failed before they could be judged: a scenario for each code that a fault may have."""

from dataclasses import replace

from builders import entry
from inputs import LOSS, TRACEBACK, failed
from scenario import Files, Run, Scenario

from stepguard.core.reasons import Reason


def scenario(status, code, message, **how):
    """A run that ended with this fault."""
    name = f"fault-{code.lower().replace('_', '-')}"
    run = Run(failed(code, message, **how), baseline=entry())
    return Scenario(name, f"{message}.", status, Reason(code), run)  # a former code has today's


BROKEN = {
    "BAD_WORKLOAD": "model.workloads has no train_stepp",
    "TREE_CHANGED": "model/gpt.py was written while it was measured",
    "OTHER_TREE": "model.gpt is imported from /home/user/other/model/gpt.py",
    "KILLED": "rank 0 was killed by SIGKILL in step 12",
    "AGENT_DIED": "the launcher ended with status 1",
    "NO_ANSWER": "rank 1 did not answer for 60 s in step 12, backward",
    "NOT_STARTED": "no rank said hello in 120 s",
    "CLOCKS_DISAGREE": "the host's clock was set back by 2 s",
}
UNFIT = {
    "FOREIGN_PROCESS": "process 4711 on GPU 0",
    "GPU_LOCKED": "process 4711 has measured on GPU 0 for 16 min",
    "THROTTLED": "thermal slowdown (hardware) in four blocks",
    "MACHINE_UNREADABLE": "NVML gave no clock of GPU 0",
    "RANKS_DIFFER": "rank 1 has torch 2.12.0, rank 0 has 2.13.0",
    "TOO_FEW_GPUS": "the case needs 4 GPUs, this machine has 1",
}
FAULTS = (
    scenario("BROKEN", "RAISED", "ValueError: planted", detail=TRACEBACK, site=LOSS),
    scenario(
        "BROKEN",
        "OUT_OF_MEMORY",
        "tried to allocate 20.00 GiB",
        detail=TRACEBACK.replace("ValueError: planted", "torch.OutOfMemoryError: CUDA"),
        during="launch 1, warm-up",
        site=LOSS,
    ),
    *(scenario("BROKEN", code, message) for code, message in BROKEN.items()),
    *(scenario("UNFIT", code, message) for code, message in UNFIT.items()),
    Scenario(
        "fault-without-a-machine",
        "It failed before it knew the GPU: no baseline's file is named for it.",
        "UNFIT",
        "TOO_FEW_GPUS",
        Run(
            replace(
                failed("TOO_FEW_GPUS", "this machine has no GPU"), fingerprint=None, counts=None
            )
        ),
    ),
    Scenario(
        "raised-as-a-run-kept-it",
        "A run's own file of a step that raised on a CPU.",
        "BROKEN",
        "RAISED",
        Files("cpu-raised"),
    ),
)
