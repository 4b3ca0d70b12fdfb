"""The engine's step time against a bare loop of the same step, side by side in one process.

The bare loop is what one would write by hand: an event, STEPS steps, an event, wait, divide. Both
sides run the same workload object and alternate (engine bare bare engine ...), so that drift of
the card cancels; the ratio's interval is Student's t over the log-ratios of the pairs.

    python -m studies.bare_loop.measure --pairs 8 --steps 100 size=124m batch=32
    python -m studies.bare_loop.measure --device cpu --steps 20 \\
        size=nano batch=4 seq=64 precision=fp32

Prints a table; the last line is one JSON document.
"""

import argparse
import json
import math
import statistics
import time

import torch
from scipy.special import stdtrit

from model.workloads import train_step
from stepguard.cli.workload import parse_params
from stepguard.worker.clock import Clock
from studies.common.results import command_line

WARM_UP_S = 20.0  # a card needs this long until its clocks have settled under the power cap


def bare_ms(step, steps: int, device: str) -> float:
    """Mean step time of a plain loop with two events around it (a host clock on a CPU)."""
    if device == "cpu":
        began = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - began) / steps * 1e3
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(steps):
        step()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / steps


def main() -> None:
    """Run the pairs and print what they say."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("params", nargs="*", metavar="key=value")
    options = parser.parse_args()
    params = {"lr": 0.0} | parse_params(options.params)  # every step costs the same
    workload = train_step(device=options.device, **params)
    clock = Clock(torch.device(options.device))

    def engine_ms() -> float:
        return clock.block(workload.step, options.steps, lambda index: None)["wall_ms"] / (
            options.steps
        )

    warm_until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < warm_until:  # with the load of the pairs: pauses would cool it
        engine_ms()
        bare_ms(workload.step, options.steps, options.device)
    pairs = []
    for index in range(options.pairs):
        if index % 2 == 0:
            engine, bare = engine_ms(), bare_ms(workload.step, options.steps, options.device)
        else:
            bare, engine = bare_ms(workload.step, options.steps, options.device), engine_ms()
        pairs.append((engine, bare))
        print(f"pair {index + 1}: engine {engine:.4f} ms, bare {bare:.4f} ms", flush=True)
    logs = [math.log(engine / bare) for engine, bare in pairs]
    half = float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    low, high = (100 * math.expm1(mean + sign * half) for sign in (-1, 1))
    ratio = 100 * math.expm1(mean)
    print(f"engine / bare - 1 = {ratio:+.3f} %, 95 % interval [{low:+.3f}, {high:+.3f}]")
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(
        json.dumps(
            {
                "benchmark": "bare_loop",
                "command": command_line(),
                "device": device,
                "torch": torch.__version__,
                "params": params,
                "steps": options.steps,
                "pairs_ms": [[round(a, 5), round(b, 5)] for a, b in pairs],
                "ratio_minus_1_pct": ratio,
                "interval_95_pct": [low, high],
            }
        )
    )


if __name__ == "__main__":
    main()
