"""How often the rule of pairs is right: by simulation, and by recorded launches paired anew.

    python -m benchmarks.judge_rates simulate --trials 10000 --out rates.json
    python -m benchmarks.judge_rates repair --verdicts 300 \\
        benchmarks/data/judge_power/h?00_pairs_same_steps_*.json benchmarks/data/power/h?00_*.json
    python -m benchmarks.judge_rates capped
    python -m benchmarks.judge_rates alike

`simulate` draws pairs of known truth and hands them to the code that judges. Every kind of noise is
scaled so that its ordinary part has the stated standard deviation of a pair, of 100 * log(head /
base). `repair` puts launches of one side of a run, which ran the same code, into pairs at random:
the truth is zero. These launches were minutes apart, so that such pairs scatter more than measured
ones, and their error rate is on the safe side. `capped` draws the steps of launches of the same
step: hosts stall, or HEAD sleeps each n-th step. It compares the gate's capped mean with the plain
one. `alike` says how often a step that is slower passes as the same step, and beside kernels that
differ and take as long. It also says how much pairs of `forward` scattered that ran in turns.
"""

import argparse
import gzip
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.refactors import REFACTORS
from benchmarks.shared import ROOT, Document, about, binomial_bounds
from stepguard.core.evidence import MOST_OF_MEDIAN, Block, Launch
from stepguard.core.margins import MARGINS
from stepguard.core.status import Status
from stepguard.judge.pair_statistics import MOST_PAIRS, SEQUENTIAL_PLAN, bounds
from stepguard.judge.time_rules import (
    MOST_ALIKE,
    PROFILED_PAIRS,
    SAME_PAIRS,
    STEP_SDS,
    WITHIN_PCT,
    unexplained_sds,
)

SDS_PCT = (0.05, 0.15, 0.3)
TRUTHS_PCT = (0.0, MARGINS.ignore_pct, 0.3, 0.4, MARGINS.matter_pct, 0.7, 1.0, 2.0)
LEAST = 6  # launches of a side: fewer make too few different pairs
IN_TURNS = ROOT / "benchmarks" / "data" / "forward_pairs_h100_2026-11-27.json.gz"
Noise = Callable[[np.random.Generator, int, float], np.ndarray]


def normal(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """Draw normal pairs, as the plan assumes."""
    return rng.normal(0, sd_pct, (trials, MOST_PAIRS))


def heavy_tails(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """Draw from Student's t with three degrees of freedom, whose variance is 3."""
    return rng.standard_t(3, (trials, MOST_PAIRS)) * sd_pct / 3**0.5


def modes(gap_pct: float, share: float) -> Noise:
    """Return launches in two modes, ``gap_pct`` apart, each side's drawn anew for every pair."""

    def draw(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
        head, base = (rng.random((trials, MOST_PAIRS)) < share for _ in range(2))
        return normal(rng, trials, sd_pct) + gap_pct * (head.astype(float) - base)

    return draw


def outliers(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """Draw pairs of which one in twenty is off by 5 %: another process, a page cache, a pause."""
    hit = (rng.random((trials, MOST_PAIRS)) < 0.05) * rng.choice((-5.0, 5.0), (trials, MOST_PAIRS))
    return normal(rng, trials, sd_pct) + hit


def drift(rng: np.random.Generator, trials: int, sd_pct: float) -> np.ndarray:
    """Draw four blocks a pair, A B B A and B A A B in turn. The card gets 4 % slower as it warms
    (time constant six blocks) and wanders by 0.1 % a block, besides its noise.
    """
    blocks = 4 * MOST_PAIRS
    level = 4 * (1 - np.exp(-np.arange(blocks) / 6.0))
    level = level + rng.normal(0, 0.1, (trials, blocks)).cumsum(axis=1)
    level += rng.normal(0, sd_pct, (trials, blocks))  # a pair is (A + A - B - B) / 2: the same sd
    quads = level.reshape(trials, MOST_PAIRS, 4)
    inner_less_outer = (quads[..., 1:3].sum(-1) - quads[..., [0, 3]].sum(-1)) / 2
    return inner_less_outer * np.where(np.arange(MOST_PAIRS) % 2, -1, 1)


NOISES: dict[str, Noise] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "modes 0.5 % apart": modes(0.5, 0.5),
    "modes 3 % apart": modes(3.0, 0.5),
    "outliers": outliers,
    "drift": drift,
}


def run(log_ratios: Sequence[float], alike: bool = False) -> tuple[Status, int]:
    """Take pairs until the plan decides; return its verdict, and how many pairs that took.
    ``alike``: the steps are the same, so their rule is asked first.
    """
    for count in range(1, MOST_ALIKE + 1) if alike else ():
        if 100 * abs(fmean(log_ratios[:count])) <= WITHIN_PCT / math.sqrt(count):
            return Status.SAME, count
    for look in SEQUENTIAL_PLAN:  # by bounds alone: by_plan() looks for more than a verdict
        found = bounds(log_ratios[: look.pairs])
        status = found.status(MARGINS)
        if status is not Status.INCONCLUSIVE or found.hopeless(MARGINS):
            return status, look.pairs
    return Status.INCONCLUSIVE, MOST_PAIRS


def outcomes(noise: str, sd_pct: float, truth_pct: float, trials: int) -> tuple[Counter, float]:
    """Count each verdict, and average the number of pairs; the seed is the cell's."""
    rng = np.random.default_rng([20261122, *f"{noise} {sd_pct} {truth_pct}".encode()])
    drawn = NOISES[noise](rng, trials, sd_pct) / 100 + np.log1p(truth_pct / 100)
    found = [run(pairs) for pairs in drawn.tolist()]
    return Counter(status for status, _ in found), sum(pairs for _, pairs in found) / trials


def simulate(options: argparse.Namespace) -> dict[str, Any]:
    """Print and return every cell; what errs rarely is drawn five times as often."""
    cells = []
    print("| noise | sd % | true % | runs | SLOWER % [95 %] | same % | undecided % | pairs |")
    print("|---|---|---|---|---|---|---|---|")
    for noise in NOISES:
        for sd_pct in SDS_PCT:
            for truth_pct in TRUTHS_PCT:
                trials = options.trials * (5 if truth_pct <= MARGINS.ignore_pct else 1)
                count, pairs = outcomes(noise, sd_pct, truth_pct, trials)
                cell = {"noise": noise, "sd_pct": sd_pct, "truth_pct": truth_pct, "trials": trials}
                said = {status.value: hits for status, hits in count.items()}
                cell |= {"mean_pairs": round(pairs, 2), "verdicts": said}
                cells.append(cell)
                print(_row(cell, count), flush=True)
    return {"cells": cells}


def _row(cell: dict[str, Any], count: Counter) -> str:
    trials = cell["trials"]
    low, high = (100 * bound for bound in binomial_bounds(count[Status.SLOWER], trials))
    ends = (Status.SLOWER, Status.SAME, Status.INCONCLUSIVE)
    slower, same, undecided = (100 * count[one] / trials for one in ends)
    cells = [cell["noise"], cell["sd_pct"], cell["truth_pct"], trials]
    cells += [f"{slower:.3f} [{low:.3f}, {high:.3f}]", f"{same:.3f}", f"{undecided:.3f}"]
    return "| " + " | ".join(map(str, [*cells, cell["mean_pairs"]])) + " |"


def runs_of(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the runs of all files; of those of power.py the refactors, which plant nothing."""
    for content in (json.loads(path.read_text()) for path in paths):
        changes = content.get("changes", {})
        found = [changes[name] for name in REFACTORS if name in changes]
        yield from (one for one in found if "pairs" in one)
        if not changes:
            yield from content.get("runs", [content])


def sides_of(paths: Sequence[Path]) -> list[list[float]]:
    """Return the step times in ms of every side of every run with enough launches."""
    found = []
    for one in runs_of(paths):
        pairs = [pair for pair in one["pairs"] if "head" in pair]
        if len(pairs) >= LEAST:
            found += [[pair[side]["step_ms"] for pair in pairs] for side in ("head", "base")]
    return found


def repaired(step_ms: Sequence[float], draw: np.random.Generator) -> list[float]:
    """Return a plan's log-ratios of launches drawn into pairs, none twice until all were used."""
    ratios: list[float] = []
    while len(ratios) < MOST_PAIRS:
        order = draw.permutation(len(step_ms))
        both = zip(order[::2], order[1::2], strict=False)
        ratios += [math.log(step_ms[a] / step_ms[b]) for a, b in both]
    return ratios[:MOST_PAIRS]


def repair(options: argparse.Namespace) -> dict[str, Any]:
    """Print and return the verdicts on launches that are paired anew."""
    sides, draw = sides_of(options.files), np.random.default_rng(20261123)
    if not sides:
        raise SystemExit(f"no run of these files has {LEAST} pairs")
    said: Counter[str] = Counter()
    took, ratios = [], []
    for _ in range(options.verdicts):
        pairs = repaired(sides[draw.integers(len(sides))], draw)
        status, count = run(pairs)
        said[status.value] += 1
        took.append(count)
        ratios += [100 * one for one in pairs[:count]]
    wrong = said[Status.SLOWER.value] + said[Status.FASTER.value]
    low, high = (100 * bound for bound in binomial_bounds(wrong, options.verdicts))
    print(
        f"{options.verdicts} verdicts on {sum(map(len, sides))} launches, {len(sides)} sides of "
        f"runs: {dict(said)}; wrong {100 * wrong / options.verdicts:.2f} % [{low:.2f}, {high:.2f}];"
        f" pair sd {stdev(ratios):.2f} %, {fmean(took):.1f} pairs a verdict"
    )
    return {"verdicts": dict(said), "wrong": wrong, "bounds_pct": [low, high]}


@dataclass(frozen=True)
class Timed:
    """Says which steps of a launch are timed: two blocks, with untimed steps between."""

    step_ms: float
    steps: int  # of a block
    second: int  # steps from the begin of one block to that of the next

    def numbers(self) -> np.ndarray:
        """Return the numbers of the timed steps."""
        block = np.arange(self.steps)
        return np.concatenate([block, block + self.second])


TIMED = {"16 of 250 ms": Timed(250.0, 8, 26), "94 of 43 ms": Timed(43.0, 47, 227)}
STEP_SD, LAUNCH_SD_PCT = 0.003, 0.12  # of 16 such steps and two launches: a pair's sd is 0.2 %
STALL_MS, STALLED_SHARE = 200.0, 0.1
SLEEP_MS, SLEEPS = 50.0, (4, 8, 16, 32)


def drawn_steps(rng: np.random.Generator, timed: Timed, trials: int) -> np.ndarray:
    """Draw the steps of both sides' launches, in ms: of each trial, pair, side (HEAD is the first)
    and step.
    """
    shape = trials, MOST_PAIRS, 2, 2 * timed.steps
    logs = rng.normal(0, LAUNCH_SD_PCT / 100, (*shape[:3], 1)) + rng.normal(0, STEP_SD, shape)
    return timed.step_ms * np.exp(logs)


def stalled(rng: np.random.Generator, steps_ms: np.ndarray) -> np.ndarray:
    """Return the steps; in STALLED_SHARE of the launches one step takes STALL_MS longer."""
    hit = rng.random(steps_ms.shape[:3]) < STALLED_SHARE
    place = rng.integers(steps_ms.shape[3], size=steps_ms.shape[:3])
    one = np.arange(steps_ms.shape[3]) == place[..., None]
    return steps_ms + STALL_MS * (one & hit[..., None])


def sleeping(
    rng: np.random.Generator, steps_ms: np.ndarray, timed: Timed, every: int
) -> np.ndarray:
    """Return the steps; each n-th of HEAD takes SLEEP_MS longer, from a step of the trial on."""
    first = rng.integers(every, size=(len(steps_ms), 1, 1))
    longer = SLEEP_MS * (timed.numbers() % every == first)
    return np.stack([steps_ms[:, :, 0] + longer, steps_ms[:, :, 1]], axis=2)


def capped_ms(steps_ms: np.ndarray) -> np.ndarray:
    """Return each launch's step time as the gate takes it (``Launch.step_ms``)."""
    most = MOST_OF_MEDIAN * np.median(steps_ms, axis=-1, keepdims=True)
    capped: np.ndarray = np.minimum(steps_ms, most).mean(axis=-1)
    return capped


def plain_ms(steps_ms: np.ndarray) -> np.ndarray:
    """Return each launch's mean step."""
    mean: np.ndarray = steps_ms.mean(axis=-1)
    return mean


def capped(options: argparse.Namespace) -> dict[str, Any]:
    """Print and return what the same step is called if hosts stall, or if HEAD's sleeps."""
    cells = []
    print("| timed steps | what happens | mean | SLOWER % | same % | FASTER % | pairs |")
    print("|---|---|---|---|---|---|---|")
    for name, timed in TIMED.items():
        for every in (None, 0, *SLEEPS):
            rng = np.random.default_rng([20261128, *f"{name} {every}".encode()])
            steps_ms = drawn_steps(rng, timed, options.trials)
            what = "nothing"
            if every:
                what, steps_ms = f"1 in {every} sleeps", sleeping(rng, steps_ms, timed, every)
            elif every is not None:
                what, steps_ms = "stalls", stalled(rng, steps_ms)
            for how in (capped_ms, plain_ms):
                ms = np.log(how(steps_ms))
                found = [run(pairs, alike=True) for pairs in (ms[..., 0] - ms[..., 1]).tolist()]
                count = Counter(status.value for status, _ in found)
                pairs = fmean(pairs for _, pairs in found)
                mean = how.__name__.removesuffix("_ms")
                cells.append({"timed": name, "what": what, "mean": mean, "pairs": pairs, **count})
                said = (Status.SLOWER, Status.SAME, Status.FASTER)
                shares = " | ".join(f"{100 * count[one.value] / len(found):.1f}" for one in said)
                print(f"| {name} | {what} | {mean} | {shares} | {pairs:.1f} |", flush=True)
    return {"capped": cells}


def alike(options: argparse.Namespace) -> dict[str, Any]:
    """Print and return how often a step passes that no identity, and no kernel, shows as slower."""
    rows = []
    print("| true % | pair sd % | one pair % | up to four % | then the plan % | kernels % |")
    print("|---|---|---|---|---|---|")
    for truth_pct in (0.0, MARGINS.matter_pct):
        for sd_pct in (0.2, 0.45):
            rng = np.random.default_rng([20261128, *f"{truth_pct} {sd_pct}".encode()])
            drawn = truth_pct + normal(rng, 10 * options.trials, sd_pct)
            counts = np.arange(1, MOST_ALIKE + 1)
            means = drawn[:, :MOST_ALIKE].cumsum(axis=1) / counts
            within = abs(means) <= WITHIN_PCT / np.sqrt(counts)
            plan = [run(pairs, alike=True)[0] for pairs in (drawn / 100).tolist()]
            # Kernels that differ and take as long leave all of the steps' mean unexplained.
            looks = range(SAME_PAIRS, PROFILED_PAIRS + 1)
            each = [
                [abs(unexplained_sds(pairs[:count], [0.0])) <= STEP_SDS for count in looks]
                for pairs in (drawn[: options.trials] / 100).tolist()
            ]
            passes = {
                "one": within[:, 0].mean(),
                "four": within.any(axis=1).mean(),
                "plan": plan.count(Status.SAME) / len(plan),
                "kernels": fmean(map(any, each)),
            }
            rows.append({"truth_pct": truth_pct, "sd_pct": sd_pct, **passes})
            shares = " | ".join(f"{100 * share:.0f}" for share in passes.values())
            print(f"| {truth_pct:g} | {sd_pct:g} | {shares} |", flush=True)
    turns = in_turns()
    print("{pairs} pairs of forward in turns: sd {sd_pct:.2f} %; {within} within".format(**turns))
    return {"alike": rows, "in_turns": turns}


def launch_of(blocks_ms: Sequence[Sequence[float]]) -> Launch:
    """Return a launch of one rank with these steps in its blocks, in ms."""
    blocks = [Block(len(ms), (math.fsum(ms),), (math.fsum(ms),), tuple(ms)) for ms in blocks_ms]
    return Launch(1, tuple(blocks), 0.0, 0.0, 0, "", 0.0)


def in_turns() -> dict[str, Any]:
    """Return how much pairs of unchanged code that ran in turns scatter around zero, and how many
    are within WITHIN_PCT.
    """
    runs = json.loads(gzip.decompress(IN_TURNS.read_bytes()))["runs"]
    steps = [pair for one in runs for pair in one["pairs"]]
    pairs = [(launch_of(pair["head"]), launch_of(pair["base"])) for pair in steps]
    moved_pct = [100 * math.log(head.step_ms / base.step_ms) for head, base in pairs]
    return {
        "pairs": len(pairs),
        "sd_pct": math.sqrt(fmean(pct**2 for pct in moved_pct)),
        "within": sum(abs(pct) <= WITHIN_PCT for pct in moved_pct),
    }


WAYS = {"simulate": simulate, "repair": repair, "capped": capped, "alike": alike}


def main() -> int:
    """Run one of the four; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=tuple(WAYS))
    parser.add_argument("files", type=Path, nargs="*", help="of runs whose launches are repaired")
    parser.add_argument("--trials", type=int, default=2000, help="simulated runs a cell")
    parser.add_argument("--verdicts", type=int, default=300, help="of repaired launches")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    found = WAYS[options.what](options)
    if options.out:
        Document(options.out, about()).update(**found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
