"""When a warm-up ends, and how far from steady the card is then: rules on recorded steps, slowed.

    python -m studies.warm_up.simulate --trials 150 --out warm_up.json

Steady steps of timed blocks (steps_2026-11-22.json) are strung together at random, and slowed down
along a curve: by ``drift`` in the end, exponentially with a time constant. Each rule of when a
warm-up is over sees windows of a second, as a launch does. Printed are the seconds of load until
it says so, and by how much the six seconds after that, which a launch times, are too fast.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepguard.measure.warmup import PROTOCOLS, Protocol, WarmUp
from studies.common.results import command_line

STEPS = Path(__file__).with_name("steps_2026-11-22.json")
TIMED_S = 6.0
BLOCK_SD = 0.002  # log; of levels of blocks of one card
# A cold H200 comes to its power cap within 3 s and is 4 % slower then: a time constant of 1.3 s.
DRIFTS = ((0.0, 1.0), (0.04, 1.3), (0.04, 3.0), (0.04, 6.0), (0.04, 10.0))
NOW = PROTOCOLS["cuda"]
RULES: dict[str, Protocol] = {
    "medians, quarters, 0.3 %": replace(NOW, of_means=False, share=0.25, tolerance=0.003),
    "means, quarters, 0.3 %": replace(NOW, share=0.25, tolerance=0.003),
    "means, quarters, 0.4 %": replace(NOW, share=0.25, tolerance=0.004),
    "means, thirds, 0.3 %": replace(NOW, tolerance=0.003),
    "means, thirds, 0.4 %": NOW,
    "means, thirds, 0.5 %": replace(NOW, tolerance=0.005),
}


def strung(blocks: Sequence[Sequence[float]], seed: int) -> Iterator[float]:
    """Yield steps in ms without end: whole blocks at random, each at the same level."""
    draw = np.random.default_rng(seed)
    level = np.mean([np.mean(block) for block in blocks])
    while True:
        block = np.array(blocks[draw.integers(len(blocks))])
        yield from block / block.mean() * level * math.exp(BLOCK_SD * draw.standard_normal())


def warmed_up(
    rule: Protocol, steps: Iterator[float], drift: float, constant_s: float
) -> tuple[float, float]:
    """Return after how many seconds a rule ends the warm-up, and the bias of what follows."""
    warmup, at_s = WarmUp(rule), 0.0
    while not warmup.done():
        window = []
        for _ in range(warmup.next_steps()):
            window.append(next(steps) * (1 - drift * math.exp(-at_s / constant_s)))
            at_s += window[-1] / 1e3
        rank = {"step_ms": window, "wall_ms": sum(window)}
        warmup.add([rank | {"compiled_graphs": 0, "device_allocations": 0}])
    left = math.exp(-at_s / constant_s) - math.exp(-(at_s + TIMED_S) / constant_s)
    return at_s, drift * left * constant_s / TIMED_S


def cell(
    rule: Protocol, blocks: Sequence[Sequence[float]], drift: float, constant_s: float, trials: int
) -> dict[str, Any]:
    """Return what a rule does with one noise and one drift."""
    found = [warmed_up(rule, strung(blocks, seed), drift, constant_s) for seed in range(trials)]
    seconds, bias = (np.array(one) for one in zip(*found, strict=True))
    return {
        "drift_pct": 100 * drift,
        "constant_s": constant_s,
        "mean_s": round(float(seconds.mean()), 2),
        "p90_s": round(float(np.quantile(seconds, 0.9)), 2),
        "mean_bias_pct": round(float(100 * bias.mean()), 3),
        "p95_bias_pct": round(float(100 * np.quantile(bias, 0.95)), 3),
    }


def main() -> None:
    """Print the table; keep it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=150, help="(%(default)s)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    recorded = json.loads(STEPS.read_text())
    rows = []
    heads = " | ".join(f"{100 * drift:g} % in {constant:g} s" for drift, constant in DRIFTS)
    print(f"| rule | steps | {heads} |\n|{'---|' * (2 + len(DRIFTS))}")
    for name, rule in RULES.items():
        for what, noise in recorded.items():
            blocks = noise["blocks_ms"]
            cells = [cell(rule, blocks, *drift, options.trials) for drift in DRIFTS]
            rows.append({"rule": name, "steps": what, "cells": cells})
            shown = [f"{one['mean_s']:.1f} s, {one['mean_bias_pct']:.2f} %" for one in cells]
            print(f"| {name} | {what} | {' | '.join(shown)} |", flush=True)
    record = {"command": command_line(), "trials": options.trials, "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
