"""What a step takes behind 0, 1, 2, 5 and 60 warm-up steps: a process's first steps, one by one.

    python -m benchmarks.warm_ups model.workloads:train_step size=350m batch=4 seq=512 \\
        precision=fp32 compile=false micro_steps=1 lr=0.0
    python -m benchmarks.warm_ups --steps 50 model.parts:decode mode=cuda-graph
    python -m benchmarks.warm_ups --device cpu model.parts:decode size=nano room=64

Each step ends in a synchronize(), so that its time is a latency. Without a warm-up the steps
contain what happens once: kernels are loaded, algorithms chosen, memory is allocated.
"""

import argparse
import time
from collections.abc import Sequence
from importlib import import_module
from statistics import fmean, quantiles, stdev

import torch

from stepguard.cli.workload_arguments import parse_params

WARM_UPS = (0, 1, 2, 5, 60)


def lines(steps_ms: Sequence[float], steps: int) -> list[str]:
    """Return a line for each warm-up, with figures in ms of so many steps behind it."""
    found = ["warm-ups        mean          sd      median    95 % take at most [ms]"]
    for warm_up in WARM_UPS:
        ms = steps_ms[warm_up : warm_up + steps]
        shares = quantiles(ms, n=20, method="inclusive")
        cells = (fmean(ms), stdev(ms), shares[9], shares[18])
        found.append(f"{warm_up:8}" + "".join(f"{cell:12.3f}" for cell in cells))
    return found


def main() -> None:
    """Time the steps and print the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int, default=10, help="behind a warm-up (%(default)s)")
    parser.add_argument("factory", help="package.module:function")
    parser.add_argument("params", nargs="*", metavar="key=value", help="its parameters")
    options = parser.parse_args()
    module, _, function = options.factory.partition(":")
    make = getattr(import_module(module), function)
    workload = make(**parse_params(options.params), device=options.device)
    steps_ms = []
    for _ in range(max(WARM_UPS) + options.steps):
        began = time.perf_counter()
        workload.step()
        if options.device == "cuda":
            torch.cuda.synchronize()
        steps_ms.append((time.perf_counter() - began) * 1e3)
    print(f"the first step: {steps_ms[0]:.3f} ms", *lines(steps_ms, options.steps), sep="\n")


if __name__ == "__main__":
    main()
