"""A rank of our training step, under orders; see measure.py.

It learns at the rate of their loop: a step's time follows the parameters, by percents under a power
cap (studies/training_progress), and after a few steps those of two rates are others.
"""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from model.workloads import train_step
from studies.build_nanogpt.orders import Leave, Line
from studies.common.ranks import tie_rank

MOST_RATE, WARM_UP_STEPS = 6e-4, 715  # theirs rises to it by equal steps; a run ends before that


class Learner:
    """A training step at their learning rate."""

    def __init__(self, workload: Any) -> None:
        self._workload, self._steps = workload, 0

    def step(self) -> None:
        """The next one."""
        self._steps += 1
        for group in self._workload.optimizer.param_groups:
            group["lr"] = MOST_RATE * self._steps / WARM_UP_STEPS
        self._workload.step()


def main() -> None:
    """Steps as ordered: nothing waits for the device inside a block, only at its borders."""
    tie_rank()
    device, params = sys.argv[1], json.loads(sys.argv[2])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    workload = train_step(device=device, **params)
    tokens = workload.tokens_per_step * dist.get_world_size()
    learner, line = Learner(workload), Line()
    try:
        while True:
            lead_in, steps = line.order()
            for _ in range(lead_in):
                learner.step()
            synchronize()
            began_ns = time.perf_counter_ns()
            for _ in range(steps):
                learner.step()
            synchronize()
            line.answer(steps, (time.perf_counter_ns() - began_ns) / 1e6, tokens)
    except Leave:
        sys.stdout.flush()
        os._exit(0)  # the other ranks leave at the same moment: nothing to take leave of


if __name__ == "__main__":
    main()
