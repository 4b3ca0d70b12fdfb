"""What the pause before a block does to the steps behind it: blocks behind pauses, and none at all.

    python -m studies.warm_up.pauses --seconds 60 --out pauses.json
    python -m studies.warm_up.pauses --device cpu --seconds 2

A core step is warmed up and runs for a third of the time without a pause; the rest are blocks of
two seconds, each behind a pause in which the GPU idles, some also behind steps that are not timed.
Printed are, of each kind, the mean step, how much blocks differ (standard deviation), and the mean
of each quarter of a second since the block began. The steps without a pause are cut into blocks of
the same length.
"""

import argparse
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from model import workloads
from perf_tests.parameters import NANO, NANO_STEP, SEED, SEED_STEP
from stepguard.worker.clock import Clock
from studies.common.results import Document, command_line, default_path, machine
from studies.common.series import mirrored, table

# Pause, and how long steps run behind it before they are timed.
KINDS_S = {
    "none but garbage collection": (0.0, 0.0),
    "100 ms": (0.1, 0.0),
    "300 ms": (0.3, 0.0),
    "none, 1 s not timed": (0.0, 1.0),
    "100 ms, 1 s not timed": (0.1, 1.0),
    "100 ms, 2 s not timed": (0.1, 2.0),
}
BLOCK_S, SETTLE_S, BIN_S = 2.0, 8.0, 0.25


def bins_ms(blocks: list[list[float]]) -> list[float]:
    """Return the mean step, in ms, of each quarter of a second since a block began."""
    found: dict[int, list[float]] = {}
    for block in blocks:
        at_s = 0.0
        for ms in block:
            found.setdefault(int(at_s / BIN_S), []).append(ms)
            at_s += ms / 1e3
    return [round(fmean(found[at]), 3) for at in sorted(found)]


def summary(blocks: list[list[float]]) -> dict[str, Any]:
    """Return what blocks of steps, in ms, have in common and how they differ."""
    means = [fmean(block) for block in blocks]
    return {
        "blocks": len(blocks),
        "mean_ms": fmean(means),
        "sd_of_a_block_pct": 100 * stdev(means) / fmean(means) if len(means) > 1 else None,
        "bins_ms": bins_ms(blocks),
    }


def paused(case: str, device: str, seconds: float) -> dict[str, Any]:
    """Measure one case for so many seconds, after it has settled."""
    gpu = device == "cuda"
    block_s = BLOCK_S if gpu else 0.1
    params = {"forward": (NANO, SEED), "train_step": (NANO_STEP, SEED_STEP)}[case][gpu]
    step = getattr(workloads, case)(**params, device=device).step
    clock = Clock(torch.device(device))

    def block(for_s: float, pause_s: float = 0.0, lead_s: float = 0.0) -> list[float]:
        lead, steps = round(lead_s / step_s), max(4, round(for_s / step_s))
        found = clock.block(step, lead + steps, lambda index: None, lambda: time.sleep(pause_s))
        return list(found["step_ms"][lead:])

    step_s = 1.0
    step_s = block(1.0)[-1] / 1e3
    block(SETTLE_S if gpu else 0.2)
    long = block(seconds / 3)
    each = max(4, round(block_s / step_s))
    late = long[len(long) // 3 :]  # behind the pause before it
    found = {"no pause": [late[at : at + each] for at in range(0, len(late) - each + 1, each)]}
    series, began = 0, time.monotonic()
    while time.monotonic() - began < 2 * seconds / 3 or series < 2:
        for name in mirrored(list(KINDS_S), series):
            found.setdefault(name, []).append(block(block_s, *KINDS_S[name]))
        series += 1
    return {name: summary(blocks) for name, blocks in found.items() if blocks}


def main() -> None:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="a case (%(default)s)")
    parser.add_argument("--out", type=Path, help="(.stepguard/pauses.json)")
    options = parser.parse_args()
    document = Document(
        options.out or default_path("pauses.json"),
        {"command": command_line(), "machine": machine(options.device, 1)},
    )
    for case in ("forward", "train_step"):
        found = paused(case, options.device, options.seconds)
        document.update(**{case: found})
        rows = [
            [
                name,
                f"{one['mean_ms']:.3f}",
                f"{one['sd_of_a_block_pct'] or 0:.2f}",
                " ".join(f"{ms:.1f}" for ms in one["bins_ms"]),
            ]
            for name, one in found.items()
        ]
        print(table([f"{case}, pause", "mean [ms]", "sd of a block [%]", "by 0.25 s [ms]"], rows))


if __name__ == "__main__":
    main()
