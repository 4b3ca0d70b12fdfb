"""Time ten steps behind 0, 1, 2, 5 and 50 warm-up steps, each in a process of its own.

    python -m studies.rows.warm_ups --out warm_ups.json size=350m batch=4 seq=512 precision=fp32 \\
        compile=false
    python -m studies.rows.warm_ups --device cpu --out warm_ups.json size=nano batch=2 seq=64 \\
        precision=fp32 compile=false

Each step ends in a synchronize(). A measurement without warm-up contains what happens once: loading
kernels, choosing algorithms, the first allocations.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from stepguard.cli.workload import parse_params
from studies.common.results import Document, command_line, machine

WARM_UPS, STEPS = (0, 1, 2, 5, 50), 10


def child(device: str, warm_ups: int, params: dict[str, Any]) -> None:
    """Print the times of STEPS steps in ms, as JSON."""
    import torch

    from model.workloads import train_step

    workload = train_step(**params, device=device, micro_steps=1, lr=0.0)

    def step_ms() -> float:
        began = time.perf_counter()
        workload.step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) * 1e3

    for _ in range(warm_ups):
        step_ms()
    print(json.dumps([step_ms() for _ in range(STEPS)]))


def main() -> int:
    """Start the children one after another; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("params", nargs="*", metavar="key=value", help="of model.workloads")
    options = parser.parse_args()
    params = parse_params(options.params)
    if options.child is not None:
        child(options.device, options.child, params)
        return 0
    document = Document(options.out, {"command": command_line(), "params": params})
    found: dict[str, Any] = {}
    for warm_ups in WARM_UPS:
        command = [sys.executable, "-m", "studies.rows.warm_ups", *sys.argv[1:]]
        command += ["--child", str(warm_ups)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            print(f"{warm_ups} warm-ups: {done.stderr[-2000:]}", file=sys.stderr)
            return 1
        steps_ms = json.loads(done.stdout.splitlines()[-1])
        found[str(warm_ups)] = {"mean_ms": fmean(steps_ms), "sd_ms": stdev(steps_ms)}
        found[str(warm_ups)] |= {"steps_ms": steps_ms}
        print(f"{warm_ups} warm-ups: {fmean(steps_ms):.3f} +- {stdev(steps_ms):.3f} ms", flush=True)
        document.update(machine=machine(options.device, 1), warm_ups=found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
