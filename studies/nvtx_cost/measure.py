"""Time what NVTX ranges cost a step when no profiler listens.

Two equal workloads alternate in one process, one with its ranges and one with empty contexts in
their place (A B B A, so that drift cancels). The difference of two noisy times is a poor measure
of something this small, so the range itself is timed too, over many entries; ranges per step times
ns per range is the figure to trust, and the side-by-side difference is the check on it.

    python -m studies.nvtx_cost.measure
    python -m studies.nvtx_cost.measure --rounds 40 --device cuda --size 124m --batch 16 --seq 1024

Prints a table; the last line is one JSON document.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from model.phases import phase
from model.workloads import Workload, train_step

_EMPTY: AbstractContextManager[object] = nullcontext()


def ns_per_range(entries: int = 200_000) -> float:
    """Median over 7 passes of one range's enter and exit, an empty loop subtracted, in ns."""
    samples = []
    for _ in range(7):
        begin = time.perf_counter_ns()
        for _ in range(entries):
            with phase("forward"):
                pass
        middle = time.perf_counter_ns()
        for _ in range(entries):
            pass
        end = time.perf_counter_ns()
        samples.append(((middle - begin) - (end - middle)) / entries)
    return statistics.median(samples)


def ranges_per_step(workload: Workload) -> int:
    """Count the ranges that one step opens, through the observer."""
    seen: list[str] = []
    workload.on_phase = seen.append
    workload.step()
    workload.on_phase = None
    return len(seen)


def block_ms(workload: Workload, steps: int, device: str) -> float:
    """Mean step time of a block, from a drained device to a drained device, in ms."""
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        workload.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps * 1e3


def side_by_side(options: argparse.Namespace) -> tuple[list[float], list[float], int]:
    """Block means in ms with ranges and without, and the ranges of one step."""
    arguments = {"size": options.size, "batch": options.batch, "seq": options.seq}
    arguments |= {"precision": "fp32", "compile": False, "device": options.device, "lr": 0.0}
    with_ranges, without_ranges = train_step(**arguments), train_step(**arguments)
    setattr(without_ranges, "_phase", lambda name: _EMPTY)  # noqa: B010
    count = ranges_per_step(with_ranges)
    block_ms(without_ranges, options.steps, options.device)  # warm-up
    times: dict[bool, list[float]] = {True: [], False: []}
    for index in range(options.rounds):
        for ranged in (True, False) if index % 2 == 0 else (False, True):
            workload = with_ranges if ranged else without_ranges
            times[ranged].append(block_ms(workload, options.steps, options.device))
    return times[True], times[False], count


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="nano", help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--seq", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="pairs (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="per block (default: %(default)s)")
    options = parser.parse_args()
    if importlib.util.find_spec("nvtx") is None:
        parser.error("the nvtx package is missing, so there is nothing to measure")
    ranged, plain, count = side_by_side(options)
    share_pct = [(a - b) / b * 100 for a, b in zip(ranged, plain, strict=True)]
    per_range_ns = ns_per_range()
    step_ms = statistics.median(plain)
    result = {
        "ns_per_range": round(per_range_ns, 1),
        "ranges_per_step": count,
        "step_ms_with": round(statistics.median(ranged), 4),
        "step_ms_without": round(step_ms, 4),
        "share_of_step_pct": round(count * per_range_ns / (step_ms * 1e6) * 100, 5),
        "side_by_side_pct": round(statistics.median(share_pct), 3),
        "side_by_side_standard_error_pct": round(
            1.2533 * statistics.stdev(share_pct) / len(share_pct) ** 0.5, 3
        ),
    }
    for name, value in result.items():
        print(f"{name:32} {value:>12}")
    print(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
