"""Runs that failed before they could be judged: a scenario for each code that a fault may have."""

from dataclasses import replace

from builders import entry, evidence
from inputs import (
    FIVE,
    LOSS,
    NOISY,
    OPERATORS,
    ROSE,
    TRACEBACK,
    counted_in,
    counting,
    ended,
    failed,
    pairs,
)
from scenario import Files, Run, Scenario

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason


def scenario(status, code, message, **how):
    """A run that ended with this fault."""
    name = f"fault-{code.lower().replace('_', '-')}"
    run = Run(failed(code, message, **how), baseline=entry())
    return Scenario(name, f"{message}.", status, Reason(code), run)  # a former code has today's


LAUNCHED = "ended by SIGTERM after 41 s, 3 s into launch 2: warm-up"
ENDED = evidence((250.0,), planned_launches=3, faults=(Fault(Reason.UNDECIDED, LAUNCHED),))
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
    scenario("BROKEN", "OUT_OF_MEMORY", "tried to allocate 20.00 GiB",
             detail=TRACEBACK.replace("ValueError: planted", "torch.OutOfMemoryError: CUDA"),
             during="launch 1, warm-up", site=LOSS),
    *(scenario("BROKEN", code, message) for code, message in BROKEN.items()),
    *(scenario("UNFIT", code, message) for code, message in UNFIT.items()),
    Scenario("ended", f"{LAUNCHED}.", "INCONCLUSIVE", "UNDECIDED", Run(ENDED, baseline=FIVE)),
    Scenario("ended-a-cost-rose", "The run was ended, and it had counted a sync that is new.",
             "CHANGED", "COUNTER_ROSE", Run(counting(ENDED, **ROSE), baseline=FIVE)),
    Scenario("ended-in-pairs", "The run was ended in the sixth pair: the five before it are shown.",
             "INCONCLUSIVE", "UNDECIDED", Run(pairs=ended(pairs(1.0, NOISY[:5])))),
    Scenario("ended-in-pairs-a-cost-rose", "The same with a sync that is new: it decides.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=ended(counted_in(pairs(1.0, NOISY[:5]), **ROSE)))),
    Scenario("ended-in-pairs-other-operators",
             "The same with other operators: what they cost is not decided.",
             "INCONCLUSIVE", "UNDECIDED",
             Run(pairs=ended(counted_in(pairs(1.0, NOISY[:5]), **{OPERATORS: 1100})))),
    Scenario("ended-before-a-pair",
             "The run was ended in the first launches, when HEAD alone had counted.",
             "INCONCLUSIVE", "UNDECIDED",
             Run(pairs=ended(pairs(scatter=(), base={"counts": None, "fingerprint": None})))),
    Scenario("fault-without-a-machine",
             "It failed before it knew the GPU: no baseline's file is named for it.",
             "UNFIT", "TOO_FEW_GPUS",
             Run(replace(failed("TOO_FEW_GPUS", "this machine has no GPU"), fingerprint=None,
                         counts=None))),
    Scenario("raised-as-a-run-kept-it", "A run's own file of a step that raised on a CPU.",
             "BROKEN", "RAISED", Files("cpu-raised")),
)  # fmt: skip
