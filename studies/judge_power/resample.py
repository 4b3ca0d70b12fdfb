"""Resample measured pairs and count what the A/B rule says of them.

    python -m studies.judge_power.resample studies/judge_power/h200_pairs_same_steps_*.json
    python -m studies.judge_power.resample FILES --prior-sd-pct 0.28 --out resamples.json

Reads what pairs.py and verdicts.py wrote, and pairs of which only the difference was kept ("d_pct",
from the report of calibrate). Pairs of one planted slowdown are pooled over files; each resample
draws 24 of them with replacement and takes them through the interim analyses, as a run does. Prints
the share of every verdict with exact 95 % binomial bounds (of the resamples, not of the machine: a
few pairs know nothing of rare noise), and how often SLOWER came within so many pairs and seconds of
GPU time.

A dozen pairs know their own mean to 0.1 % only, so that a plant of half a percent may lie at 0.4 or
0.6 in them. The second table therefore takes the scatter of all pairs about their plant's mean, and
sets it about a true change of exactly --at.
"""

import argparse
import json
import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from stepguard.ab_margins import (
    PRIOR,
    Prior,
)
from stepguard.judge.ab.sequential_plan import SEQUENTIAL_PLAN
from stepguard.verdict import Status
from studies.common.results import command_line
from studies.common.series import half_width
from studies.judge_power.simulate import BUDGET, binomial_bounds, run


@dataclass(frozen=True)
class Planted:
    """The pairs of one planted slowdown, from however many files."""

    plant_pct: float
    log_ratios: tuple[float, ...]
    pair_s: float  # GPU seconds each
    cards: int  # how many different ones

    @property
    def mean_half_pct(self) -> float:
        """Half a 95 % interval for the mean; NaN for a single pair."""
        half = half_width(self.log_ratios)
        return math.nan if half is None else 100 * half


def log_ratio(pair: dict) -> float:
    """``log(head / base)`` of a pair, however it is kept."""
    if "d_pct" in pair:
        return math.log1p(pair["d_pct"] / 100)
    return math.log(pair["head"]["step_ms"] / pair["base"]["step_ms"])


def planted(paths: list[Path]) -> list[Planted]:
    """By planted percent, smallest first."""
    ratios: dict[float, list[float]] = defaultdict(list)
    seconds: dict[float, list[float]] = defaultdict(list)
    cards: dict[float, set[str]] = defaultdict(set)
    read = [json.loads(path.read_text()) for path in paths]
    runs = chain.from_iterable(one.get("runs", [one]) for one in read)
    for found in (one for one in runs if one["pairs"]):
        plant, pairs = found["plant_pct"], found["pairs"]
        ratios[plant] += [log_ratio(pair) for pair in pairs]
        cards[plant].add(found["gpu"])
        if "gpu_s" in found:
            seconds[plant] += [found["gpu_s"] / len(pairs)] * len(pairs)
    return [
        Planted(plant, tuple(ratios[plant]), fmean(seconds[plant]), len(cards[plant]))
        for plant in sorted(ratios)
    ]


def scatter(cells: list[Planted]) -> list[float]:
    """Every pair's distance from its plant's mean, widened for the mean being their own."""
    found = []
    for cell in cells:
        count, mean = len(cell.log_ratios), fmean(cell.log_ratios)
        if count > 1:
            found += [(d - mean) * math.sqrt(count / (count - 1)) for d in cell.log_ratios]
    return found


def resampled(log_ratios: list[float], prior: Prior, trials: int, pair_s: float) -> dict:
    """Shares of every verdict over ``trials`` resamples, and SLOWER by the pairs it took."""
    rng = np.random.default_rng(20261122)
    drawn = rng.choice(log_ratios, (trials, BUDGET))
    found = [run(pairs, prior) for pairs in drawn.tolist()]
    count = Counter(status.value for status, _ in found)
    slower = Counter(pairs for status, pairs in found if status is Status.SLOWER)
    within = {
        look.pairs: sum(slower[p] for p in slower if p <= look.pairs) for look in SEQUENTIAL_PLAN
    }
    return {
        "trials": trials,
        "verdicts": dict(count),
        "bounds": {name: binomial_bounds(hits, trials) for name, hits in count.items()},
        "slower_within": [
            {"pairs": pairs, "gpu_s": round(pairs * pair_s, 1), "share": hits / trials}
            for pairs, hits in within.items()
        ],
    }


def show(found: dict) -> None:
    """The lines under a cell's headline."""
    for name, hits in sorted(found["verdicts"].items()):
        low, high = (100 * bound for bound in found["bounds"][name])
        share = 100 * hits / found["trials"]
        print(f"  {name:12} {share:7.3f} % [{low:.3f}, {high:.3f}]")
    line = ", ".join(
        f"{100 * cell['share']:.1f} % in {cell['pairs']} ({cell['gpu_s']:.0f} s)"
        for cell in found["slower_within"]
    )
    print(f"  SLOWER within pairs: {line}")


def main() -> None:
    """Print both tables; keep them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=20000)
    parser.add_argument("--at", type=float, nargs="*", default=[0.0, 0.2, 0.5, 1.0, 2.0])
    parser.add_argument("--prior-sd-pct", type=float, default=PRIOR.sd_pct)
    parser.add_argument("--prior-degrees", type=float, default=PRIOR.degrees)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prior = Prior(options.prior_sd_pct, options.prior_degrees)
    cells, kept, about = planted(options.files), [], []
    for cell in cells:
        percent = [100 * d for d in cell.log_ratios]
        spread = stdev(percent) if len(percent) > 1 else math.nan
        found = resampled(list(cell.log_ratios), prior, options.trials, cell.pair_s)
        kept.append(asdict(cell) | found)
        print(
            f"planted {cell.plant_pct:g} %: {len(percent)} pairs of {cell.cards} cards, mean "
            f"{fmean(percent):+.3f} +- {cell.mean_half_pct:.3f} %, sd {spread:.3f} %, "
            f"{cell.pair_s:.1f} s of GPU time each"
        )
        show(found)
    noise, pair_s = scatter(cells), fmean(cell.pair_s for cell in cells)
    for percent in options.at:
        shifted = [d + math.log1p(percent / 100) for d in noise]
        found = resampled(shifted, prior, options.trials, pair_s)
        about.append({"true_pct": percent, "pairs": len(noise)} | found)
        print(f"about a true {percent:g} %: {len(noise)} pairs, {pair_s:.1f} s of GPU time each")
        show(found)
    if options.out:
        record = {"command": command_line(), "prior": asdict(prior)}
        record |= {"planted": kept, "about": about}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
