"""A rank of our training step, under orders; see against_build_nanogpt.py."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from benchmarks.ranks import tie_rank
from benchmarks.turn_rank import Leave, Line
from model.workloads import train_step


def main() -> None:
    """Steps as ordered: nothing waits for the device inside a turn, only at its borders."""
    tie_rank()
    device, params = sys.argv[1], json.loads(sys.argv[2])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    workload = train_step(device=device, **params)
    tokens = workload.tokens_per_step * dist.get_world_size()
    line = Line()
    try:
        while True:
            lead_in, steps = line.order()
            for _ in range(lead_in):
                workload.step()
            synchronize()
            began_ns = time.perf_counter_ns()
            for _ in range(steps):
                workload.step()
            synchronize()
            line.answer(steps, (time.perf_counter_ns() - began_ns) / 1e6, tokens)
    except Leave:
        sys.stdout.flush()
        os._exit(0)  # the other ranks leave at the same moment: nothing to take leave of


if __name__ == "__main__":
    main()
