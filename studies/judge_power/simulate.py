"""Simulate pairs of known truth and count how often the A/B rule is right.

    python -m studies.judge_power.simulate                                  # a minute
    python -m studies.judge_power.simulate --trials 10000 --out o.json --plot o.png --markdown o.md

Every kind of noise is scaled so that its ordinary part has the stated standard deviation of a pair
(of 100 * d). A simulated run takes pairs, one interim analysis after the other, until it is decided
or out of budget: the code that judges a measurement, on drawn numbers. Prints a table with exact
95 % binomial bounds; ``--plot`` needs matplotlib.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

from stepguard.ab_margins import (
    MARGINS,
    PRIOR,
    Prior,
)
from stepguard.judge.ab.pairs import bounds
from stepguard.judge.ab.sequential_plan import SEQUENTIAL_PLAN
from stepguard.verdict import Status

BUDGET = SEQUENTIAL_PLAN[-1].pairs
SDS_PCT = (0.05, 0.15, 0.3)
TRUTHS_PCT = (0.0, MARGINS.ignore_pct, 0.3, 0.4, MARGINS.matter_pct, 0.7, 1.0, 2.0)
Noise = Callable[[np.random.Generator, int, float], np.ndarray]


def normal(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """Draw normal pairs, as the plan assumes."""
    return rng.normal(0, sd_pct, (trials, BUDGET))


def heavy_tails(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """Student's t with three degrees of freedom, whose variance is 3."""
    return rng.standard_t(3, (trials, BUDGET)) * sd_pct / 3**0.5


def modes(gap_pct: float, share: float) -> Noise:
    """Launches in two modes, ``gap_pct`` apart, each side's drawn anew for every pair."""

    def draw(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
        head, base = (rng.random((trials, BUDGET)) < share for _ in range(2))
        return normal(rng, trials, sd_pct) + gap_pct * (head.astype(float) - base)

    return draw


def outliers(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """One pair in twenty is off by 5 %, either way: another process, a page cache, a pause."""
    hit = (rng.random((trials, BUDGET)) < 0.05) * rng.choice((-5.0, 5.0), (trials, BUDGET))
    return normal(rng, trials, sd_pct) + hit


def drift(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """Four blocks a pair, A B B A and B A A B in turn, on a card that gets 4 % slower as it warms
    (time constant six blocks) and wanders by 0.1 % a block, besides its noise.
    """
    blocks = 4 * BUDGET
    level = 4 * (1 - np.exp(-np.arange(blocks) / 6.0))
    level = level + rng.normal(0, 0.1, (trials, blocks)).cumsum(axis=1)
    level += rng.normal(0, sd_pct, (trials, blocks))  # a pair is (A + A - B - B) / 2: the same sd
    quads = level.reshape(trials, BUDGET, 4)
    inner_less_outer = (quads[..., 1:3].sum(-1) - quads[..., [0, 3]].sum(-1)) / 2
    return inner_less_outer * np.where(np.arange(BUDGET) % 2, -1, 1)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "modes 0.5 % apart": modes(0.5, 0.5),
    "modes 3 % apart": modes(3.0, 0.5),
    "outliers": outliers,
    "drift": drift,
}


def run(log_ratios: list[float], prior: Prior = PRIOR) -> tuple[Status, int]:
    """One run: its verdict and how many pairs it took."""
    for look in SEQUENTIAL_PLAN:
        status = bounds(log_ratios[: look.pairs], prior).status(MARGINS)
        if status is not Status.INCONCLUSIVE:
            return status, look.pairs
    return Status.INCONCLUSIVE, BUDGET


def outcomes(noise: str, sd_pct: float, truth_pct: float, trials: int) -> tuple[Counter, float]:
    """Count each verdict, and average the number of pairs; the seed is the cell's."""
    rng = np.random.default_rng([20261122, *f"{noise} {sd_pct} {truth_pct}".encode()])
    drawn = NOISES[noise](rng, trials, sd_pct) / 100 + np.log1p(truth_pct / 100)
    found = [run(pairs) for pairs in drawn.tolist()]
    return Counter(status for status, _ in found), sum(pairs for _, pairs in found) / trials


def binomial_bounds(hits: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's exact 95 % bounds of a proportion."""
    low = float(betaincinv(hits, trials - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 0.975)) if hits < trials else 1.0
    return low, high


def cells(trials: int) -> Iterator[dict[str, object]]:
    """Every noise, standard deviation and truth; the errors that must be rare are drawn oftener."""
    for noise in NOISES:
        for sd_pct in SDS_PCT:
            for truth_pct in TRUTHS_PCT:
                some = trials * 5 if truth_pct <= MARGINS.ignore_pct else trials
                count, pairs = outcomes(noise, sd_pct, truth_pct, some)
                yield {
                    "noise": noise,
                    "sd_pct": sd_pct,
                    "truth_pct": truth_pct,
                    "trials": some,
                    "verdicts": {status.value: n for status, n in sorted(count.items(), key=str)},
                    "slower_bounds": [
                        round(b, 6) for b in binomial_bounds(count[Status.SLOWER], some)
                    ],
                    "mean_pairs": round(pairs, 2),
                }


def share_pct(cell: dict, status: Status) -> float:
    """Return the percentage of a cell's runs that ended so."""
    return 100 * cell["verdicts"].get(status.value, 0) / cell["trials"]


def row(cell: dict) -> str:
    """One line of the table."""
    slower, same, undecided = (
        share_pct(cell, status) for status in (Status.SLOWER, Status.SAME, Status.INCONCLUSIVE)
    )
    low, high = (100 * bound for bound in cell["slower_bounds"])
    return (
        f"{cell['noise']:18} {cell['sd_pct']:5} {cell['truth_pct']:6} {cell['trials']:7} "
        f"{slower:8.3f} [{low:7.3f}, {high:7.3f}] {same:8.3f} {undecided:8.3f} "
        f"{cell['mean_pairs']:6.1f}"
    )


def by_truth(found: list[dict], noise: str, sd_pct: float) -> dict[float, dict]:
    """The cells of one noise and standard deviation."""
    return {c["truth_pct"]: c for c in found if (c["noise"], c["sd_pct"]) == (noise, sd_pct)}


def markdown(found: list[dict]) -> str:
    """Return the table of README.md."""
    heads = "noise | pair sd | SLOWER at 0 | SLOWER at 0.2 % | SLOWER / `same` at 0.5 % | "
    heads += "SLOWER at 1 % | at 2 % | undecided at 0 | mean pairs at 0, at 1 %"
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    for noise in NOISES:
        for sd_pct in SDS_PCT:
            cells = by_truth(found, noise, sd_pct)
            none, ignored, matters, one, two = (cells[t] for t in (0.0, 0.2, 0.5, 1.0, 2.0))
            row = [noise, f"{sd_pct} %"]
            for cell in none, ignored:
                low, high = (100 * bound for bound in cell["slower_bounds"])
                row.append(f"{share_pct(cell, Status.SLOWER):.3f} [{low:.3f}, {high:.3f}] %")
            missed = share_pct(matters, Status.SAME)
            row.append(f"{share_pct(matters, Status.SLOWER):.1f} / {missed:.1f} %")
            row += [f"{share_pct(cell, Status.SLOWER):.1f} %" for cell in (one, two)]
            row.append(f"{share_pct(none, Status.INCONCLUSIVE):.1f} %")
            row.append(f"{none['mean_pairs']:.1f}, {one['mean_pairs']:.1f}")
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def plot(found: list[dict], path: str) -> None:
    """Shares of SLOWER and `same` over the true change, a panel a noise, a colour an sd."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        2, 3, figsize=(11, 6), sharex=True, sharey=True, layout="constrained"
    )
    for panel, noise in zip(panels.flat, NOISES, strict=True):
        panel.axvspan(MARGINS.ignore_pct, MARGINS.matter_pct, color="0.92")
        for sd_pct, colour in zip(SDS_PCT, ("C0", "C1", "C2"), strict=True):
            cells = by_truth(found, noise, sd_pct)
            for status, style in ((Status.SLOWER, "o-"), (Status.SAME, "o:")):
                shares = [share_pct(cell, status) for cell in cells.values()]
                label = f"{status.value}, pair sd {sd_pct} %" if panel is panels[0, 0] else None
                panel.plot(cells.keys(), shares, style, color=colour, ms=4, label=label)
        panel.set_title(noise)
    figure.legend(loc="outside upper center", ncols=3)
    figure.supxlabel(
        "true slowdown, %  (grey: between the two margins, where either answer may come)"
    )
    figure.supylabel("share of runs, %")
    figure.savefig(path)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000, help="runs a cell; 5 x for rare errors")
    parser.add_argument("--out", help="write the cells as JSON here")
    parser.add_argument("--plot", help="draw them here, if matplotlib is installed")
    parser.add_argument("--markdown", help="write a table of them here")
    options = parser.parse_args()
    print(
        f"{'noise':18} {'sd %':>5} {'true %':>6} {'runs':>7} {'SLOWER %':>8} "
        f"{'95 % bounds':>18} {'same %':>8} {'undec. %':>8} {'pairs':>6}"
    )
    found = []
    for cell in cells(options.trials):
        found.append(cell)
        print(row(cell), flush=True)
    if options.out:
        rows = ",\n".join("  " + json.dumps(cell) for cell in found)
        Path(options.out).write_text(f'{{"cells": [\n{rows}\n]}}\n')
    if options.plot:
        plot(found, options.plot)
    if options.markdown:
        Path(options.markdown).write_text(markdown(found))


if __name__ == "__main__":
    main()
