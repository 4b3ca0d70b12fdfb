"""A/A verdicts from recorded launches: launches of the same code, paired anew with each other.

    python -m studies.judge_power.repair studies/judge_power/h?00_pairs_same_steps_*.json \
        studies/power/h?00_*.json --verdicts 300

Every pair of a file has two launches, of which each ran the same code as the launches of its side
in the other pairs of that run, planted or not. For a verdict one run and one of its sides is
chosen, its launches are put into pairs at random, without any of them twice until all were used,
and these go through the sequential plan. The truth is zero. Launches of different pairs were
minutes apart, so that a drift of the card which turns take out is in these pairs: they scatter more
than measured ones, and an error rate of them is on the safe side. What all pairs of a run share, as
an order would give it, is not in them: what the means of the measured A/A runs say of that is
printed beside it (a one-way analysis of variance).
"""

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from statistics import fmean, median, stdev

import numpy as np
from scipy.special import chdtri

from stepguard.judge.ab.sequential_plan import MOST_PAIRS
from stepguard.verdict import Status
from studies.common.results import command_line
from studies.judge_power.resample import log_ratio
from studies.judge_power.simulate import binomial_bounds, run
from studies.power.refactors import REFACTORS

LEAST = 6  # launches of a side: fewer make too few different pairs
# The grids of what pairs share, of a run's noise, and of how far runs' noises differ (of its log).
TAUS_PCT = np.concatenate([np.arange(0, 0.2, 0.002), np.arange(0.2, 0.81, 0.02)])
SDS_PCT = np.geomspace(0.01, 2.0, 60)
SPREADS = np.array([0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.1])


def sides_of(paths: list[Path]) -> list[list[float]]:
    """Return the step times in ms of every side of every run with enough launches."""
    found = []
    for one in runs_of(paths):
        pairs = [pair for pair in one["pairs"] if "head" in pair]
        if len(pairs) >= LEAST:
            found += [[pair[side]["step_ms"] for pair in pairs] for side in ("head", "base")]
    return found


def runs_of(paths: list[Path]) -> list[dict]:
    """Return the runs of all files; of studies/power the refactors, which plant nothing."""
    found = []
    for content in (json.loads(path.read_text()) for path in paths):
        changes = content.get("changes", {})
        refactors = [{"plant_pct": 0} | changes[name] for name in REFACTORS if name in changes]
        found += refactors if changes else content.get("runs", [content])
    return found


def repaired(step_ms: list[float], draw: np.random.Generator) -> list[float]:
    """Return as many log-ratios as the plan takes, of launches drawn into pairs."""
    ratios: list[float] = []
    while len(ratios) < MOST_PAIRS:
        order = draw.permutation(len(step_ms))
        ratios += [
            math.log(step_ms[a] / step_ms[b]) for a, b in zip(order[::2], order[1::2], strict=False)
        ]
    return ratios[:MOST_PAIRS]


def shared_offset(runs: list[list[float]]) -> dict[str, float]:
    """Return the standard deviation of what pairs of a run share, in percent: the likeliest one,
    and a 95 % interval of the profile likelihood (chi-squared with one degree of freedom).

    The truth is zero, so that a run's mean is its offset and the noise of its pairs. Cards and
    cases scatter by 0.06 to 0.5 %: each run has a noise of its own, lognormal over runs, and is
    integrated over it. A pooled variance, as of an analysis of variance, would let the noisiest
    runs hide what the quiet ones say.
    """
    scales = np.log(SDS_PCT)[None, :]
    centres, spreads = np.log(np.geomspace(0.05, 0.8, 29))[:, None], SPREADS[:, None, None]
    prior = -0.5 * ((scales - centres) / spreads) ** 2
    prior -= np.logaddexp.reduce(prior, axis=-1, keepdims=True)
    found = np.array([max_over(prior, runs, tau) for tau in TAUS_PCT])
    inside = TAUS_PCT[found > found.max() - chdtri(1, 0.05) / 2]
    return {
        "runs": len(runs),
        "pairs": sum(map(len, runs)),
        "median_sd_pct": round(100 * median(map(stdev, runs)), 3),
        "tau_pct": round(float(TAUS_PCT[found.argmax()]), 3),
        "tau_low_pct": round(float(inside[0]), 3),
        "tau_high_pct": round(float(inside[-1]), 3),
    }


def max_over(prior: np.ndarray, runs: list[list[float]], tau_pct: float) -> float:
    """Return the log-likelihood of an offset, at the likeliest noise of runs; ``prior`` has the
    log-weights of SDS_PCT in its last axis.
    """
    total = np.zeros(prior.shape[:-1])
    for one in runs:
        pairs, spread = 100 * np.array(one), SDS_PCT**2
        of_mean = spread / len(pairs) + tau_pct**2
        within = ((pairs - pairs.mean()) ** 2).sum()
        log_density = (1 - len(pairs)) * np.log(SDS_PCT) - within / (2 * spread)
        log_density -= (np.log(of_mean) + pairs.mean() ** 2 / of_mean) / 2
        total += np.logaddexp.reduce(prior + log_density, axis=-1)
    return float(total.max())


def main() -> None:
    """Print the verdicts, and what runs share."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--verdicts", type=int, default=300, help="(%(default)s)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sides, draw = sides_of(options.files), np.random.default_rng(20261123)
    said: Counter[str] = Counter()
    took, ratios = [], []
    for _ in range(options.verdicts):
        pairs = repaired(sides[draw.integers(len(sides))], draw)
        status, count = run(pairs)
        said[status.value] += 1
        took.append(count)
        ratios += [100 * one for one in pairs[:count]]
    wrong = sum(said[one.value] for one in (Status.SLOWER, Status.FASTER))
    low, high = (100 * bound for bound in binomial_bounds(wrong, options.verdicts))
    launches = sum(map(len, sides))
    print(
        f"{options.verdicts} A/A verdicts of {launches} launches, {len(sides)} sides of runs: "
        f"{dict(said)}; wrong {100 * wrong / options.verdicts:.2f} % [{low:.2f}, {high:.2f}]; "
        f"pair sd {stdev(ratios):.2f} %, {fmean(took):.1f} pairs a verdict"
    )
    same_code = [one for one in runs_of(options.files) if one["plant_pct"] == 0]
    measured = [[log_ratio(pair) for pair in one["pairs"]] for one in same_code]
    shared = shared_offset([one for one in measured if len(one) > 1])
    print(f"what the pairs of a run share: {shared}")
    if options.out:
        record = {"command": command_line(), "verdicts": dict(said), "wrong": wrong}
        record |= {"bounds_pct": [low, high], "pair_sd_pct": stdev(ratios), "shared": shared}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
