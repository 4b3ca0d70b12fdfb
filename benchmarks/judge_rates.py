"""How often the rule of pairs is right: by simulation, and by recorded launches paired anew.

    python -m benchmarks.judge_rates simulate --trials 10000 --out rates.json
    python -m benchmarks.judge_rates repair --verdicts 300 \\
        studies/judge_power/h?00_pairs_same_steps_*.json studies/power/h?00_*.json
    python -m benchmarks.judge_rates odd
    python -m benchmarks.judge_rates patterns --trials 2000

`simulate` draws pairs of known truth and hands them to the code that judges. Every kind of noise is
scaled so that its ordinary part has the stated standard deviation of a pair, of 100 * log(head /
base). `repair` puts launches of one side of a run, which ran the same code, into pairs at random:
the truth is zero. These launches were minutes apart, so that such pairs scatter more than measured
ones, and their error rate is on the safe side. `odd` pairs launches of unchanged code of one card,
and counts how many a step that is the same would not be believed for, as they are and with every
n-th step of HEAD made longer. It also says how much pairs of `forward` scattered that ran in turns.
`patterns` draws the steps of pairs of unchanged code, and counts the comparisons in which one of
their looks finds steps that are slower within HEAD's launches.
"""

import argparse
import gzip
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from benchmarks.refactors import REFACTORS
from benchmarks.shared import ROOT, Document, about, binomial_bounds
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Block, Evidence, Launch
from stepguard.core.margins import MARGINS, PRIOR
from stepguard.core.status import Status
from stepguard.judge.pair_statistics import bounds
from stepguard.judge.rules import pattern_of_head, slow_steps
from stepguard.judge.sequential_plan import MOST_PAIRS, SEQUENTIAL_PLAN
from stepguard.judge.unchanged_pairs import PAIR_SDS, TAIL_LIMIT, tail_excess

SDS_PCT = (0.05, 0.15, 0.3)
TRUTHS_PCT = (0.0, MARGINS.ignore_pct, 0.3, 0.4, MARGINS.matter_pct, 0.7, 1.0, 2.0)
LEAST = 6  # launches of a side: fewer make too few different pairs
LAUNCHES = ROOT / "studies" / "judge_power" / "launch_steps_2026-11-23.json"
IN_TURNS = ROOT / "benchmarks" / "data" / "forward_pairs_h100_2026-11-27.json.gz"
# Every n-th step, by this share.
LONGER = ((1, 0.0), (1, 0.005), (1, 0.01), (8, 0.06), (8, 0.1), (16, 0.1), (16, 0.15))
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


def run(log_ratios: Sequence[float]) -> tuple[Status, int]:
    """Take pairs until the plan decides; return its verdict, and how many pairs that took."""
    for look in SEQUENTIAL_PLAN:  # by bounds alone: decide() looks for more than a verdict
        status = bounds(log_ratios[: look.pairs]).status(MARGINS)
        if status is not Status.INCONCLUSIVE:
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


def launch_of(blocks_ms: Sequence[Sequence[float]]) -> Launch:
    """Return a launch of one rank with these steps in its blocks, in ms."""
    blocks = [Block(len(ms), (math.fsum(ms),), (math.fsum(ms),), tuple(ms)) for ms in blocks_ms]
    return Launch(1, tuple(blocks), 0.0, 0.0, 0, "", 0.0)


def longer(blocks_ms: Sequence[Sequence[float]], every: int, share: float, first: int) -> Launch:
    """Return the launch with every n-th step longer by a share, counted through its blocks."""
    counted = itertools.count()
    made = [[ms * (1 + share * (next(counted) % every == first)) for ms in b] for b in blocks_ms]
    return launch_of(made)


def odd_share(case: str, every: int = 1, share: float = 0.0) -> float:
    """Return the share of a case's pairs that look odd, wherever the longer steps begin. A mean
    that they moved by more than PAIR_SDS is odd, too.
    """
    known = [one for one in json.loads(LAUNCHES.read_text()) if one["case"] == case]
    found = []
    for one, other in itertools.permutations(known, 2):
        for first in range(0, every, max(1, every // 4)) if one["gpu"] == other["gpu"] else ():
            head = longer(one["blocks_ms"], every, share, first)
            base = launch_of(other["blocks_ms"])
            moved_pct = 100 * abs(math.log(head.step_ms / base.step_ms))
            moved = share and moved_pct > PAIR_SDS * PRIOR.sd_pct
            found.append(bool(moved) or tail_excess(head, base) > TAIL_LIMIT)
    return fmean(found)


def odd(options: argparse.Namespace) -> dict[str, Any]:
    """Print and return how many pairs look odd, by case."""
    titles = " | ".join(f"1/{every} +{100 * share:g} %" for every, share in LONGER[1:])
    print(f"| case | unchanged | {titles} |\n" + "|---" * (1 + len(LONGER)) + "|")
    found = {}
    for case in dict.fromkeys(one["case"] for one in json.loads(LAUNCHES.read_text())):
        found[case] = [odd_share(case, *how) for how in LONGER]
        print(f"| `{case}` | " + " | ".join(f"{100 * one:.0f} %" for one in found[case]) + " |")
    turns = in_turns()
    print(
        "{pairs} pairs of forward in turns: sd {sd_pct:.2f} %; {beyond} beyond PAIR_SDS of "
        "PRIOR's".format_map(turns)
    )
    return {"odd": found, "in_turns": turns}


def in_turns() -> dict[str, Any]:
    """Return how much pairs of unchanged code that ran in turns scatter, and how many are further
    from zero than a rule allows. The sd is around zero.
    """
    runs = json.loads(gzip.decompress(IN_TURNS.read_bytes()))["runs"]
    steps = [pair for run in runs for pair in run["pairs"]]
    pairs = [(launch_of(pair["head"]), launch_of(pair["base"])) for pair in steps]
    moved_pct = [100 * math.log(head.step_ms / base.step_ms) for head, base in pairs]
    return {
        "pairs": len(pairs),
        "sd_pct": math.sqrt(fmean(pct**2 for pct in moved_pct)),
        "beyond": sum(abs(pct) > PAIR_SDS * PRIOR.sd_pct for pct in moved_pct),
    }


@dataclass(frozen=True)
class Steps:
    """Says how steps of unchanged code scatter; shares of a step, as logs."""

    device: str
    blocks: tuple[tuple[int, int], ...]  # of the first two pairs: the steps before, and timed
    sd: float
    follows: float = 0.0  # correlation from step to step
    odd: float = 0.0  # share of steps that are longer, by a third on average
    drift: float = 0.0  # over 100 steps
    burst: float = 0.0  # share of steps at which other work begins: half as long again, five steps


SHORT = ((12, 8), (23, 8))  # blocks of half a second
LONG = ((46, 47), (273, 47))
STEPS = {
    "GPU, even": Steps("cuda", LONG, 0.015, follows=0.5),
    "GPU, correlated": Steps("cuda", LONG, 0.025, follows=0.9),
    "GPU, some far out": Steps("cuda", LONG, 0.015, odd=0.02),
    "GPU, drift": Steps("cuda", LONG, 0.015, follows=0.5, drift=0.01),
    "GPU, long steps": Steps("cuda", ((8, 8), (34, 8)), 0.005, odd=0.02),
    "CPU, even": Steps("cpu", SHORT, 0.1),
    "CPU, busy": Steps("cpu", SHORT, 0.15, follows=0.5, odd=0.1),
    "CPU, bursts": Steps("cpu", SHORT, 0.08, burst=0.04),
    "CPU, short steps": Steps("cpu", ((40, 60), (150, 60)), 0.1, odd=0.1, burst=0.01),
}
LOOKS = (2, 4, 6, 8)


def launch_of_steps(rng: np.random.Generator, how: Steps, shift: int) -> Launch:
    """Draw a launch; every second pair begins some steps earlier."""
    blocks, rest = [], 0.0
    for ran, count in how.blocks:
        log = []
        busy = 0
        for step in range(ran - shift, ran - shift + count):
            busy = 5 if rng.random() < how.burst else max(0, busy - 1)
            noise = how.sd * math.sqrt(1 - how.follows**2) * rng.standard_normal()
            rest = how.follows * rest + noise
            more = rng.exponential(0.3) if rng.random() < how.odd else 0.0
            log.append(rest + more + 0.4 * (busy > 0) + how.drift * step / 100)
        ms = tuple(50.0 * np.exp(log))
        wall = (math.fsum(ms),)
        blocks.append(Block(count, wall, wall, ms, ran=ran - shift))
    return Launch(1, tuple(blocks), 0.0, 0.0, 0, "", 0.0)


def beside_itself(rng: np.random.Generator, how: Steps) -> Comparison:
    """Draw pairs of unchanged code, as many as the last look has."""
    sides = []
    for commit in ("f" * 40, "0" * 40):
        launches = tuple(launch_of_steps(rng, how, 3 * (i % 2)) for i in range(LOOKS[-1]))
        case = {"workload": "m:f", "params": {}, "device": how.device, "world_size": 1}
        side = Evidence("unchanged", case, "", commit, (), "", 1, ("step_ms",), launches=launches)
        sides.append(side)
    return Comparison("main", *sides)


def seen(comparison: Comparison) -> str:
    """Return what the looks at a comparison find: SLOWER, a wait for more pairs, or nothing."""
    waits = ""
    for pairs in LOOKS:
        sides = (comparison.head, comparison.base)
        head, base = (replace(side, launches=side.launches[:pairs]) for side in sides)
        few = replace(comparison, head=head, base=base)
        decided = slow_steps.rule(few) or pattern_of_head.rule(few)
        if decided and decided.status is Status.SLOWER:
            return decided.status.value
        waits = "waits" if decided else waits
    return waits


def patterns(options: argparse.Namespace) -> dict[str, Any]:
    """Print and return how often unchanged code has a pattern in HEAD's launches alone."""
    found = {}
    print("| steps | comparisons | SLOWER % [95 %] | waits % |\n|---|---|---|---|")
    for name, how in STEPS.items():
        rng = np.random.default_rng([43, *name.encode()])
        count = Counter(seen(beside_itself(rng, how)) for _ in range(options.trials))
        slower = count[Status.SLOWER.value]
        low, high = (100 * bound for bound in binomial_bounds(slower, options.trials))
        share = f"{100 * slower / options.trials:.2f} [{low:.2f}, {high:.2f}]"
        print(
            f"| {name} | {options.trials} | {share} | {100 * count['waits'] / options.trials:.2f} |"
        )
        found[name] = dict(count)
    return {"patterns": found}


def main() -> int:
    """Run one of the four; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("simulate", "repair", "odd", "patterns"))
    parser.add_argument("files", type=Path, nargs="*", help="of runs whose launches are repaired")
    parser.add_argument("--trials", type=int, default=2000, help="simulated runs a cell")
    parser.add_argument("--verdicts", type=int, default=300, help="of repaired launches")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    ways = {"simulate": simulate, "repair": repair, "odd": odd, "patterns": patterns}
    found = ways[options.what](options)
    if options.out:
        Document(options.out, about()).update(**found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
