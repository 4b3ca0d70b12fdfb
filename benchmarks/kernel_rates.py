"""Judge a file of benchmarks.kernel_pairs: what was found, and how often that is wrong.

    python -m benchmarks.kernel_rates kernels.json --out rates.json

It prints, among other tables (benchmarks/kernel_pairs.md has all of them):

1. ``changes``: for each change, by the pairs as they were recorded, which kernels differ, and by
   how much.
2. ``scatter``: how each kernel scatters between launches of equal code. All launches of the base on
   one GPU are compared with each other.
3. ``single_pairs``: how far a single pair of equal code goes (benchmarks/single_pairs.py).
4. ``rates``: verdicts on equal code. Launches are paired anew at random. Each kernel in turn, or a
   random set of kernels, counts as the one that differs. It takes as long as recorded, or longer by
   a share of the step.
5. ``planted``: verdicts on what was planted, as recorded and at other sizes. Its launches are
   paired at random with launches of the base.

The gate's rule gives the verdicts, by the first profile of each launch. No verdict uses a launch
twice. The exit status is 1 if more verdicts on equal code are red than their level allows.
"""

import argparse
import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.kernel_difference import (
    Floats,
    Judged,
    KernelTimes,
    Launch,
    LaunchPair,
    Mask,
    judged,
    launch_of,
    step_differences_pct,
    times_of,
)
from benchmarks.shared import Document, about, binomial_bounds
from benchmarks.single_pairs import single_pairs
from stepguard.core.margins import ALPHA
from stepguard.judge.time_rules import LEAST_PAIRS, PROFILED_PAIRS

SIZES_PCT = (0.05, 0.1, 0.2, 0.3)  # of a step, by which a kernel is made longer
RECORDED = "recorded"  # the size of a plant
PAIRS = range(LEAST_PAIRS, PROFILED_PAIRS + 1)  # of a verdict
LEAST_PCT = 0.05  # share of a step; a shorter kernel changes the step by little
SETS = 50  # of random kernels
DRAWS = 300  # of launches, for each number of pairs


@dataclass(frozen=True)
class Recorded:
    """The pairs of a file that have profiles."""

    # The change, the GPU with the base's name, whether both sides have the same code; the launches.
    pairs: tuple[tuple[str, str, bool, LaunchPair], ...]

    @staticmethod
    def read(path: Path) -> "Recorded":
        """Read a file of kernel_pairs. A pair that lacks profiles which others have is left out."""
        known = json.loads(path.read_text())
        pairs = []
        for one in known["pairs"]:
            base, head = (launch_of(one[side], known) for side in ("base", "head"))
            where = f"{one['gpu']}, base {one['base_is']}"
            pairs.append((one["change"], where, one["same"], (base, head)))
        most = max((len(launch.turns) for *_, pair in pairs for launch in pair), default=0)
        whole = [one for one in pairs if all(len(launch.turns) == most for launch in one[3])]
        return Recorded(tuple(whole) if most else ())

    def of_change(self, name: str) -> list[LaunchPair]:
        """Return the pairs of a change."""
        return [pair for change, *_, pair in self.pairs if change == name]

    def alike(self) -> dict[str, list[Launch]]:
        """Return the launches of the base's code, by GPU and base."""
        found: dict[str, list[Launch]] = defaultdict(list)
        for _, gpu, same, (base, head) in self.pairs:
            found[gpu] += [base, head] if same else [base]
        return {gpu: launches for gpu, launches in found.items() if len(launches) > 1}


@dataclass(frozen=True)
class Scatter:
    """Differences in percent of a step between launches of the same code, on one GPU."""

    times: KernelTimes  # of every ordered pair of its launches
    pairs: dict[tuple[int, int], int]  # launches -> the pair's place
    steps_pct: list[float]

    @staticmethod
    def of(launches: Sequence[Launch]) -> "Scatter":
        """Pair every launch with every other one."""
        order = list(permutations(range(len(launches)), 2))
        pairs = [(launches[a], launches[b]) for a, b in order]
        places = {pair: at for at, pair in enumerate(order)}
        return Scatter(times_of(pairs), places, step_differences_pct(pairs))

    def alone(self) -> Iterator[tuple[int, Mask]]:
        """Yield each kernel of LEAST_PCT or more: its place, and that it alone differs."""
        share = self.times.share_pct
        for at in np.argsort(-share).tolist():
            if share[at] >= LEAST_PCT:
                yield at, _mask(self.times, [at])

    def sets(self, rng: random.Random) -> Iterator[Mask]:
        """Yield random sets of kernels that differ: one to twenty."""
        kernels = range(len(self.times.names))
        for _ in range(SETS):
            yield _mask(self.times, rng.sample(kernels, rng.randint(1, min(20, len(kernels) // 2))))

    def values(self, mine: Mask) -> Floats:
        """Return every pair's difference, by the first profile of each launch."""
        first: Floats = self.times.differences_pct(mine)[:, 0]
        return first


def _mask(times: KernelTimes, chosen: Sequence[int]) -> Mask:
    mask = np.zeros(len(times.names), bool)
    mask[list(chosen)] = True
    return mask


def found_changes(recorded: Recorded) -> list[dict[str, Any]]:
    """Return a row for each change, by its pairs as they were recorded."""
    rows = []
    for name in dict.fromkeys(change for change, *_ in recorded.pairs):
        pairs = recorded.of_change(name)
        times = times_of(pairs)
        row: dict[str, Any] = {"change": name, "pairs": len(pairs)}
        row["differ"] = [
            [text, kind, label[:90], round(float(share), 4)]
            for text, kind, label, share in zip(
                times.matched.differs,
                times.matched.kinds.tolist(),
                times.labels,
                times.share_pct,
                strict=True,
            )
            if text
        ]
        row["idle_pct"] = round(100 * fmean(_idle(launch) for p in pairs for launch in p), 2)
        steps = step_differences_pct(pairs)
        row["step_differences_pct"] = [round(value, 3) for value in steps]
        changed = times.matched.changed
        if changed.any():
            values = times.differences_pct(changed)[:, 0].tolist()
            row["differences_pct"] = [round(value, 4) for value in values]
            if len(pairs) >= LEAST_PAIRS:
                first = values[:PROFILED_PAIRS], steps[:PROFILED_PAIRS]
                row |= _said(judged(*first, times.known(changed)))
        rows.append(row)
    return rows


def _idle(launch: Launch) -> float:
    return fmean(turn.idle_us / turn.step_us for turn in launch.turns)


def _said(said: Judged) -> dict[str, Any]:
    found = said.kernels
    bounds = [round(100 * math.expm1(one), 4) for one in (found.low, found.high)]
    mean_pct = round(100 * math.expm1(found.mean), 4)
    return {"mean_pct": mean_pct, "bounds": bounds, "slower": said.slower, "vetoed": said.vetoed}


def scatter_rows(scatters: dict[str, Scatter]) -> list[dict[str, Any]]:
    """Return a row for each kernel of LEAST_PCT or more: root mean squares of the differences, in
    percent of a step, between launches and between the turns of one launch.
    """
    seen: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for scatter in scatters.values():
        within, labels = _within(scatter.times), scatter.times.labels
        for at, mine in scatter.alone():
            key = str(scatter.times.matched.kinds[at]), labels[at]
            inside = _rms(within.differences_pct(mine)) if within else 0.0
            known = scatter.times.known(mine).sd_pct
            share = float(scatter.times.share_pct[at])
            seen[key].append((share, _rms(scatter.values(mine)), inside, known))
    return [
        {
            "kind": kind,
            "kernel": label,
            "share_pct": round(fmean(one[0] for one in each), 4),
            "between_launches_pct": round(_rms([one[1] for one in each]), 5),
            "within_a_launch_pct": round(_rms([one[2] for one in each]), 5),
            "expected_pct": round(fmean(one[3] for one in each), 5),
        }
        for (kind, label), each in seen.items()
    ]


def by_class(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return for each class the kernels, and the root mean squares of their scatters."""
    names = ("between_launches_pct", "within_a_launch_pct", "expected_pct")
    found = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        each = [round(_rms([row[name] for row in mine]), 5) for name in names]
        found[kind] = [float(len(mine)), *each]
    return found


def _within(times: KernelTimes) -> KernelTimes | None:
    """Return the differences between the turns of each launch, as if these were launches. None if
    launches have one turn.
    """
    if times.step_us.shape[1] < 2:
        return None
    base_us = times.times.base_us
    turns = replace(times.times, base_us=base_us[:, :-1], head_us=base_us[:, 1:])
    return replace(times, times=turns, step_us=times.step_us[:, :-1])


def _rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def draws(scatter: Scatter, count: int, rng: random.Random) -> list[list[int]]:
    """Return random verdicts. A verdict is a list of the places of ``count`` pairs that share no
    launch. There is none if there are too few launches.
    """
    launches = sorted({launch for pair in scatter.pairs for launch in pair})
    if 2 * count > len(launches):
        return []
    verdicts = []
    for _ in range(DRAWS):
        drawn = rng.sample(launches, 2 * count)
        verdicts.append([scatter.pairs[a, b] for a, b in zip(drawn[::2], drawn[1::2], strict=True)])
    return verdicts


@dataclass
class Tally:
    """Counts verdicts by the kernels alone, and by what is left of them with the steps' veto."""

    by_kernels: int = 0
    red: int = 0
    verdicts: int = 0

    def add(self, said: Iterable[Judged]) -> None:
        """Count some verdicts."""
        for one in said:
            self.by_kernels += one.by_kernels
            self.red += one.slower
            self.verdicts += 1

    def row(self) -> dict[str, Any]:
        """Return the counts, each followed by 95 % bounds of its rate."""
        counts = {"by_kernels": self.by_kernels, "red": self.red}
        total = self.verdicts
        rows = {name: [hits, *_bounds(hits, total)] for name, hits in counts.items()}
        return {"verdicts": total} | rows


def rates(scatters: dict[str, Scatter], seed: int = 1) -> list[dict[str, Any]]:
    """Return a row for each number of pairs: how often equal code is red, if one kernel or a set is
    said to differ, and how often a kernel that takes longer is.
    """
    rng, rows = random.Random(seed), []
    for count in PAIRS:
        found: dict[str, Tally] = defaultdict(Tally)
        for scatter in scatters.values():
            verdicts = draws(scatter, count, rng)
            for _, mine in scatter.alone() if verdicts else ():
                for size in (0.0, *SIZES_PCT):
                    found[str(size)].add(_judged(scatter, mine, verdicts, size))
            for mine in scatter.sets(rng) if verdicts else ():
                found["sets"].add(_judged(scatter, mine, verdicts))
        each = {size: tally.row() for size, tally in found.items()}
        rows += [{"pairs": count, "found": each}] if each else []
    return rows


def _judged(
    scatter: Scatter, mine: Mask, verdicts: Sequence[list[int]], size_pct: float = 0.0
) -> Iterator[Judged]:
    """Yield each verdict if these kernels, and so the steps, take that much longer than they were
    recorded.
    """
    values, known = scatter.values(mine) + size_pct, scatter.times.known(mine)
    for places in verdicts:
        steps = [scatter.steps_pct[place] + size_pct for place in places]
        yield judged(values[places].tolist(), steps, known)


def _bounds(red: int, trials: int) -> list[float]:
    return [round(bound, 6) for bound in binomial_bounds(red, trials)]


def planted_rates(recorded: Recorded, seed: int = 1) -> list[dict[str, Any]]:
    """Return a row for each change and number of pairs: how many verdicts find the change as it was
    recorded, and at each of SIZES_PCT.

    For another size the same amount is added to each pair's difference of the kernels and to its
    difference of the unprofiled steps: that size, minus the mean of the kernels' differences on the
    GPU. So all scatter stays as recorded. If the recorded steps slowed down by less than the
    kernels, a plant that is made smaller slows the steps down by too little. Then the steps reject
    too many of its verdicts, and too few of a plant that is made larger.
    """
    rng, found = random.Random(seed), defaultdict[Any, Tally](Tally)
    changes = {(name, gpu) for name, gpu, same, _ in recorded.pairs if not same}
    for name, gpu in sorted(changes):
        heads = [
            pair[1] for change, where, _, pair in recorded.pairs if (change, where) == (name, gpu)
        ]
        bases = recorded.alike().get(gpu, [])
        pairs = [(base, head) for head in heads for base in bases]
        if not pairs:
            continue
        times, steps = times_of(pairs), np.array(step_differences_pct(pairs))
        changed = times.matched.changed
        values, known = times.differences_pct(changed)[:, 0], times.known(changed)
        added_pct = {RECORDED: 0.0} | {str(size): size - values.mean() for size in SIZES_PCT}
        for count in [count for count in PAIRS if count <= min(len(heads), len(bases))]:
            for _ in range(DRAWS):
                both = [rng.sample(range(len(side)), count) for side in (heads, bases)]
                places = [h * len(bases) + b for h, b in zip(*both, strict=True)]
                for size, more in added_pct.items():
                    sides = [(of[places] + more).tolist() for of in (values, steps)]
                    found[name, count, size].add([judged(*sides, known)])
    rows: dict[Any, dict[str, Any]] = defaultdict(dict)
    for (name, count, size), tally in found.items():
        rows[name, count][size] = tally.row()
    return [{"change": name, "pairs": count, "found": each} for (name, count), each in rows.items()]


def main() -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recorded", type=Path, help="a file of benchmarks.kernel_pairs")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    recorded = Recorded.read(options.recorded)
    if not recorded.pairs:
        parser.error(f"{options.recorded}: no pair has profiles; they need a GPU")
    scatters = {gpu: Scatter.of(launches) for gpu, launches in recorded.alike().items()}
    rows = scatter_rows(scatters)
    result: dict[str, Any] = {
        "changes": found_changes(recorded),
        "launches": {gpu: len(launches) for gpu, launches in recorded.alike().items()},
        "odd_kernels": {
            gpu: [
                label
                for label, text in zip(one.times.labels, one.times.matched.differs, strict=True)
                if text
            ]
            for gpu, one in scatters.items()
        },
        "scatter_by_class": by_class(rows),
        "scatter": rows,
        "single_pairs": single_pairs(recorded.alike()),
        "rates": rates(scatters),
        "planted": planted_rates(recorded),
    }
    if options.out:
        Document(options.out, about()).update(**result)
    for name, table in result.items():
        print(f"{name}:")
        each = table.items() if isinstance(table, dict) else table
        for row in each:
            print(f"  {json.dumps(row)}")
    nothing = [row["found"]["0.0"] for row in result["rates"]]
    return 1 if any(one["red"][0] > ALPHA * one["verdicts"] for one in nothing) else 0


if __name__ == "__main__":
    sys.exit(main())
