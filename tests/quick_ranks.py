"""Imported by the ranks of tests, which count in less time.

Candidates for host syncs are looked for in two steps, where ten take a third of a launch: no
workload of a launch reads in some steps only (worker/test_eager.py has one that does). Pauses of
the collector are taken over five steps, where fifty are half of a launch that leaves garbage: no
test of a launch looks at them (worker/test_garbage.py does).

Whether the compiler can build for this CPU is known, where it would build two programs to see.

Nothing that counts imports torch's compiler before the workload. torch imports it to keep it out of
modes that count, and to ask it what profilers are told. Of a workload that compiles nothing and has
no optimizer that is more than half of a launch.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import flop_counter

from stepguard.worker.counters import garbage, kept_memory, operators, sync_candidates

MODES = (
    operators.OperatorCounter,
    kept_memory._Made,
    flop_counter._FlopCounterMode,
)

garbage.PAUSED_STEPS = 5
sync_candidates.CANDIDATE_STEPS = 2


def set_stance(stance: str, plain: Any = torch.compiler.set_stance) -> AbstractContextManager[None]:
    """Change how compiled functions run; without any, let modes run as they were written."""
    if "torch._dynamo" in sys.modules:
        return plain(stance)
    for mode in MODES:
        if written := getattr(mode.__torch_dispatch__, "__wrapped__", None):
            written.__dynamo_disable = written  # where torch looks for what keeps the compiler out
    return nullcontext()


def attribute(name: str, plain: Any = torch.__getattr__) -> Any:
    """Return a part of torch; the profiler asks for the compiler, which that would import."""
    if name == "_inductor" and "torch._dynamo" not in sys.modules:
        raise AttributeError(name)
    return plain(name)


if module := sys.modules.get("torch._inductor.cpu_vec_isa"):
    module.VecISA.check_build = lambda isa, code: True

torch.compiler.set_stance = set_stance
torch.__getattr__ = attribute
