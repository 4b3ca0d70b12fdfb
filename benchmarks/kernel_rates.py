"""Judge a file of benchmarks.kernel_pairs: what was found, and how often that is wrong.

    python -m benchmarks.kernel_rates kernels.json --out rates.json

It makes five tables:

1. Each change, by the pairs as they were recorded: which kernels differ, and by how much.
2. The scatter of each kernel between launches of equal code, as if it alone differed. All launches
   of the base on one GPU are compared with each other.
3. Verdicts on equal code. Launches are paired anew at random. Each kernel in turn, or a random set
   of kernels, counts as the one that differs.
4. The same verdicts, with that kernel longer by a share of the step.
5. Verdicts on what was planted. Its launches are paired at random with launches of the base.

A verdict uses no launch twice. The exit status is 1 if more verdicts on equal code are red than
their level allows.
"""

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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
    differences_pct,
    interval,
    judged,
    launch_of,
    step_differences_pct,
    times_of,
)
from benchmarks.shared import Document, about, binomial_bounds
from stepguard.core.margins import ALPHA, Prior

SIZES_PCT = (0.05, 0.1, 0.2, 0.3)  # of a step, by which a kernel is made longer
PAIRS = (1, 2, 3, 4)  # of a verdict; a single pair has bounds only if the scatter is known
LEAST_PCT = 0.05  # share of a step; a shorter kernel could not be longer by much of a step
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
            base, head = (launch_of(one[side], known["kernels"]) for side in ("base", "head"))
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

    def alone(self) -> Iterator[tuple[int, Floats]]:
        """Yield each kernel of LEAST_PCT or more, and the pairs' differences in it alone."""
        share = self.times.share_pct
        for at in np.argsort(-share).tolist():
            if share[at] >= LEAST_PCT:
                yield at, differences_pct(self.times, _mask(self.times, [at]))

    def sets(self, rng: random.Random) -> Iterator[Floats]:
        """Yield every pair's difference as if a random set of kernels differed: one to twenty."""
        kernels = range(len(self.times.names))
        for _ in range(SETS):
            chosen = rng.sample(kernels, rng.randint(1, min(20, len(kernels) // 2)))
            yield differences_pct(self.times, _mask(self.times, chosen))


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
            [text, times.kinds[at], times.names[at][:90], round(float(times.share_pct[at]), 4)]
            for at, text in enumerate(times.differs)
            if text
        ]
        row["idle_pct"] = round(100 * fmean(_idle(launch) for p in pairs for launch in p), 2)
        steps = step_differences_pct(pairs)
        row["step_differences_pct"] = [round(value, 3) for value in steps]
        if times.changed.any():
            values = differences_pct(times, times.changed).tolist()
            row["differences_pct"] = [round(value, 4) for value in values]
            if len(pairs) > 1:
                row |= _said(values, steps)
        rows.append(row)
    return rows


def _idle(launch: Launch) -> float:
    return fmean(turn.idle_us / turn.step_us for turn in launch.turns)


def _said(values: Sequence[float], steps: Sequence[float]) -> dict[str, Any]:
    said, wide = judged(values, steps), interval(values, 0.025)
    return {
        "mean_pct": round(wide.mean_pct, 4),
        "interval_95": [round(wide.low_pct, 4), round(wide.high_pct, 4)],
        "slower": said.slower,
        "low_pct": round(said.kernels.low_pct, 4),
        "vetoed": said.vetoed,
    }


def scatter_rows(scatters: dict[str, Scatter]) -> list[dict[str, Any]]:
    """Return a row for each kernel of LEAST_PCT or more: root mean squares of the differences, in
    percent of a step, between launches and between the turns of one launch.
    """
    seen: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for scatter in scatters.values():
        within = _within(scatter)
        inside = dict(within.alone())
        for at, values in scatter.alone():
            key = (scatter.times.kinds[at], scatter.times.labels[at])
            share = float(scatter.times.share_pct[at])
            seen[key].append((share, _rms(values), _rms(inside[at]) if at in inside else 0.0))
    return [
        {
            "kind": kind,
            "kernel": label,
            "share_pct": round(fmean(one[0] for one in each), 4),
            "between_launches_pct": round(_rms([one[1] for one in each]), 5),
            "within_a_launch_pct": round(_rms([one[2] for one in each]), 5),
        }
        for (kind, label), each in seen.items()
    ]


def by_class(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return for each class the kernels, and the root mean squares of both their scatters."""
    names = ("between_launches_pct", "within_a_launch_pct")
    found = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        each = [round(_rms([row[name] for row in mine]), 5) for name in names]
        found[kind] = [float(len(mine)), *each]
    return found


def _within(scatter: Scatter) -> Scatter:
    """Return the differences between the turns of each launch, as if these were launches."""
    times = scatter.times
    turns = replace(
        times,
        base_us=times.base_us[:, :-1],
        head_us=times.base_us[:, 1:],
        step_us=times.step_us[:, :-1],
    )
    return replace(scatter, times=turns)


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


def rates(scatters: dict[str, Scatter], known: bool, seed: int = 1) -> list[dict[str, Any]]:
    """Return a row for each number of pairs: how often equal code is red, and how often a kernel
    that takes longer is. With ``known`` a kernel's scatter on the other GPUs counts, too (on the
    same GPU if there is no other).
    """
    rng, rows = random.Random(seed), []
    for count in PAIRS[0 if known else 1 :]:
        red: Counter[str] = Counter()
        trials: Counter[str] = Counter()
        for gpu, scatter in scatters.items():
            verdicts = draws(scatter, count, rng)
            for at, values in scatter.alone() if verdicts else ():
                prior = prior_of(scatters, gpu, [scatter.times.labels[at]]) if known else None
                for said in _judged(scatter, values, verdicts, prior):
                    trials.update(map(str, (0.0, *SIZES_PCT)))
                    red.update(str(size) for size in (0.0, *SIZES_PCT) if _red(said, size))
            for values in scatter.sets(rng) if verdicts and not known else ():
                for said in _judged(scatter, values, verdicts, None):
                    trials["sets"] += 1
                    red["sets"] += said.slower
        each = {name: [red[name], n, *_bounds(red[name], n)] for name, n in trials.items()}
        rows += [{"pairs": count, "prior": known, "red": each}] if each else []
    return rows


def _judged(
    scatter: Scatter, values: Floats, verdicts: Sequence[list[int]], prior: Prior | None
) -> Iterator[Judged]:
    for places in verdicts:
        steps = [scatter.steps_pct[place] for place in places]
        yield judged(values[places].tolist(), steps, prior=prior)


def _red(said: Judged, size_pct: float) -> bool:
    """Tell whether the verdict is red if kernels, and so steps, take that much longer. All bounds
    move by as much, so a veto stays.
    """
    return said.kernels.low_pct + size_pct > 0 and not said.vetoed


def _bounds(red: int, trials: int) -> list[float]:
    return [round(bound, 6) for bound in binomial_bounds(red, trials)]


def prior_of(scatters: dict[str, Scatter], gpu: str, labels: Sequence[str]) -> Prior | None:
    """Return how the base's kernels of these labels scatter together in the other groups of
    launches (in this group if there is no other). A group are a GPU's launches of one base. Each of
    its launches but the first weighs one degree of freedom. Return None if no group has the
    kernels.
    """
    seen: list[tuple[float, int]] = []
    for scatter in [one for name, one in scatters.items() if name != gpu] or [scatters[gpu]]:
        chosen = [at for at, label in enumerate(scatter.times.labels) if label in labels]
        if chosen:
            values = differences_pct(scatter.times, _mask(scatter.times, chosen))
            launches = len({launch for pair in scatter.pairs for launch in pair})
            seen.append((_rms(values), launches - 1))
    if not seen:
        return None
    return Prior(max(1e-6, _rms([sd for sd, _ in seen])), float(sum(n for _, n in seen)))


def planted_rates(
    recorded: Recorded, scatters: dict[str, Scatter], seed: int = 1
) -> list[dict[str, Any]]:
    """Return how many verdicts find a change. There is a row for each change and number of pairs,
    with known scatter and without.
    """
    rng, red, trials = random.Random(seed), Counter[Any](), Counter[Any]()
    changes = {(name, gpu) for name, gpu, same, _ in recorded.pairs if not same}
    for name, gpu in sorted(changes):
        heads = [
            pair[1] for change, where, _, pair in recorded.pairs if (change, where) == (name, gpu)
        ]
        bases = recorded.alike().get(gpu, [])
        pairs = [(base, head) for head in heads for base in bases]
        if not pairs:
            continue
        times, steps = times_of(pairs), step_differences_pct(pairs)
        values = differences_pct(times, times.changed)
        differing = [label for label, one in zip(times.labels, times.changed, strict=True) if one]
        prior = prior_of(scatters, gpu, differing)
        for count in PAIRS[: min(len(heads), len(bases))]:
            for known in (None, prior) if count > 1 else filter(None, [prior]):
                for _ in range(DRAWS):
                    both = [rng.sample(range(len(side)), count) for side in (heads, bases)]
                    places = [h * len(bases) + b for h, b in zip(*both, strict=True)]
                    said = judged(
                        values[places].tolist(), [steps[at] for at in places], prior=known
                    )
                    row = name, count, known is not None
                    red[row] += said.slower
                    trials[row] += 1
    return [
        {
            "change": name,
            "pairs": count,
            "prior": known,
            "red": red[name, count, known],
            "of": total,
        }
        for (name, count, known), total in sorted(trials.items())
    ]


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
            gpu: [n for n, text in zip(one.times.labels, one.times.differs, strict=True) if text]
            for gpu, one in scatters.items()
        },
        "scatter_by_class": by_class(rows),
        "scatter": rows,
        "rates": rates(scatters, known=False) + rates(scatters, known=True),
        "planted": planted_rates(recorded, scatters),
    }
    if options.out:
        Document(options.out, about()).update(**result)
    for name, table in result.items():
        print(f"{name}:")
        each = table.items() if isinstance(table, dict) else table
        for row in each:
            print(f"  {json.dumps(row)}")
    nothing = [row["red"]["0.0"] for row in result["rates"]]
    return 1 if any(red > ALPHA * trials for red, trials, *_ in nothing) else 0


if __name__ == "__main__":
    sys.exit(main())
