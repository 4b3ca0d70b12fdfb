"""How often the history finds a step at its commit, and how often one that is not there.

    python -m benchmarks.history_points
    python -m benchmarks.history_points --series 1000 --out points.json

The noise is that of kept launches of one and the same code on one card. First each card's launches
in the order in which they were measured, a launch a point, with a step planted at a point. Then
series of points that are drawn from them, three launches a point, as a run measures. The history
needs the package ruptures.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.shared import ROOT
from stepguard.core.device import GPU
from stepguard_lab.change_points import LEAST_CHANGE_PCT, LEAST_SERIES, level_changes

FOLDER = ROOT / "benchmarks" / "data" / "judge_power"
KEPT = (
    "h100_pairs_same_steps_aa_2026-11-25.json",
    "h100_pairs_same_steps_aa_2026-11-25_four.json",
    "h200_pairs_aa_2026-11-21.json",
)
STEPS_PCT = (0.0, 0.5, 1.0, 2.0)
POINTS, AT = 60, 40
LAUNCHES = 3  # of a point, as the core cases have them
SEED = 47


def kept_launches() -> dict[str, list[float]]:
    """Return the step times of each card's launches in ms, in the order of their measurement."""
    by_card: dict[str, list[float]] = {}
    for name in KEPT:
        document = json.loads((FOLDER / name).read_text())
        for run in sorted(document.get("runs", [document]), key=lambda run: run["date"]):
            # The two sides ran the same code in turns.
            times = [pair[side]["step_ms"] for pair in run["pairs"] for side in ("head", "base")]
            by_card.setdefault(f"{run['device']} {run['gpu'][:12]}", []).extend(times)
    return by_card


def planted(values: Sequence[float], pct: float, at: int = AT) -> list[float]:
    """Return the values, from the point ``at`` on slower by ``pct``."""
    return [ms * (1 + pct / 100 * (i >= at)) for i, ms in enumerate(values)]


def drawn(launches: Sequence[float], draw: random.Random, points: int) -> list[float]:
    """Return points of LAUNCHES launches each, drawn from those of a card."""
    logs = [math.log(ms) for ms in launches]
    return [math.exp(fmean(draw.choices(logs, k=LAUNCHES))) for _ in range(points)]


def judged(values: Sequence[float], pct: float, at: int) -> tuple[bool, bool]:
    """Return whether a planted step was found at its point, and whether a point is false."""
    points = [
        change.at for change in level_changes(planted(values, pct, at), LEAST_CHANGE_PCT[GPU])
    ]
    found = bool(pct) and at in points
    return found, len(points) > found


def rates(series: int, points: int = POINTS, at: int = AT) -> Iterator[dict[str, Any]]:
    """Yield the share of drawn series in which a step of each size is found, by size."""
    cards = [launches for launches in kept_launches().values() if len(launches) >= 20]
    for pct in STEPS_PCT:
        draw = random.Random(SEED)
        both = [judged(drawn(draw.choice(cards), draw, points), pct, at) for _ in range(series)]
        yield {
            "step_pct": pct,
            "points": points,
            "series": series,
            "found": fmean(found for found, _ in both) if pct else None,
            "false": fmean(false for _, false in both),
        }


def in_order() -> Iterator[dict[str, Any]]:
    """Yield what is found in each card's launches as they were measured, by size of the step."""
    for card, launches in kept_launches().items():
        at = 2 * len(launches) // 3
        for pct in STEPS_PCT:
            changes = level_changes(planted(launches, pct, at), LEAST_CHANGE_PCT[GPU])
            yield {
                "card": card,
                "launches": len(launches),
                "sd_pct": 100 * stdev(math.log(ms) for ms in launches),
                "step_pct": pct,
                "at": at,
                "found": [[change.at, round(change.change_pct, 2)] for change in changes],
            }


def main() -> int:
    """Print both tables; write them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--series", type=int, default=1000, help="drawn for each size")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    real, shares = [], []
    for row in in_order():
        real.append(row)
        print(
            f"{row['card']}: {row['launches']} launches, sd {row['sd_pct']:.2f} %, "
            f"step {row['step_pct']:.1f} % at {row['at']}: found {row['found']}"
        )
    for points in (LEAST_SERIES, 30, POINTS):
        for row in rates(options.series, points, 2 * points // 3):
            shares.append(row)
            share = "" if row["found"] is None else f"found {100 * row['found']:.1f} %, "
            print(
                f"{points} points, step {row['step_pct']:.1f} %: {share}"
                f"series with a false point {100 * row['false']:.1f} %"
            )
    if options.out:
        options.out.write_text(json.dumps({"in_order": real, "rates": shares}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
