"""What the judge's rule says of measured pairs, drawn again and again.

    python benchmarks/judge_resamples.py docs/evidence/h200_pairs_*.json
    python benchmarks/judge_resamples.py FILES --prior-sd-pct 0.27 --prior-degrees 12

Reads what judge_pairs.py wrote. Pairs of one planted slowdown are put together, over files; each
resample draws 24 of them with replacement and takes them look by look, as a run does. Beside the
share of every verdict stand exact 95 % binomial bounds (of the resamples, not of the machine: few
pairs cannot know rare noise), and how often SLOWER came within so many pairs and GPU seconds.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np  # noqa: E402

from benchmarks.judge_simulation import BUDGET, binomial_bounds, run  # noqa: E402
from stepguard.looks import PLAN, PRIOR, Prior  # noqa: E402
from stepguard.verdict import Status  # noqa: E402


def pooled(paths: list[Path]) -> dict[float, tuple[list[float], float]]:
    """By planted percent: the pairs' log-ratios, and GPU seconds a pair."""
    ratios: dict[float, list[float]] = defaultdict(list)
    seconds: dict[float, list[float]] = defaultdict(list)
    for path in paths:
        found = json.loads(path.read_text())
        for one in found["pairs"]:
            d = math.log(one["head"]["step_ms"] / one["base"]["step_ms"])
            ratios[found["plant_pct"]].append(d)
        if found["pairs"]:
            seconds[found["plant_pct"]].append(found["gpu_s"] / len(found["pairs"]))
    return {plant: (ratios[plant], fmean(seconds[plant])) for plant in sorted(ratios)}


def resampled(log_ratios: list[float], prior: Prior, trials: int) -> dict[str, object]:
    """Shares of every verdict over ``trials`` resamples, and SLOWER by the pairs it took."""
    rng = np.random.default_rng(20261122)
    drawn = rng.choice(log_ratios, (trials, BUDGET))
    found = [run(pairs, prior) for pairs in drawn.tolist()]
    count = Counter(status.value for status, _ in found)
    slower = Counter(pairs for status, pairs in found if status is Status.SLOWER)
    within = {look.pairs: sum(slower[p] for p in slower if p <= look.pairs) for look in PLAN}
    return {
        "trials": trials,
        "verdicts": dict(count),
        "bounds": {name: binomial_bounds(hits, trials) for name, hits in count.items()},
        "slower_within_pairs": {str(pairs): hits / trials for pairs, hits in within.items()},
    }


def main() -> None:
    """Print a table; keep it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=20000)
    parser.add_argument("--prior-sd-pct", type=float, default=PRIOR.sd_pct)
    parser.add_argument("--prior-degrees", type=float, default=PRIOR.degrees)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prior = Prior(options.prior_sd_pct, options.prior_degrees)
    kept = []
    for plant, (log_ratios, seconds) in pooled(options.files).items():
        percent = [100 * d for d in log_ratios]
        spread = stdev(percent) if len(percent) > 1 else math.nan
        found = resampled(log_ratios, prior, options.trials)
        kept.append({"plant_pct": plant, "pairs": len(percent), "gpu_s_a_pair": seconds} | found)
        print(
            f"planted {plant:g} %: {len(percent)} pairs, mean {fmean(percent):+.3f} %, "
            f"sd {spread:.3f} %, {seconds:.1f} s of GPU time each"
        )
        for name, hits in sorted(found["verdicts"].items()):  # type: ignore[attr-defined]
            low, high = (100 * bound for bound in found["bounds"][name])  # type: ignore[index]
            share = 100 * hits / options.trials
            print(f"  {name:12} {share:7.3f} % [{low:.3f}, {high:.3f}]")
        line = ", ".join(
            f"{float(share) * 100:.1f} % in {pairs} ({int(pairs) * seconds:.0f} s)"
            for pairs, share in found["slower_within_pairs"].items()  # type: ignore[attr-defined]
        )
        print(f"  SLOWER within pairs: {line}")
    if options.out:
        record = {"command": " ".join(["python", *sys.argv]), "cells": kept}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
