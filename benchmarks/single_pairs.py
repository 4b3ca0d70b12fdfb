"""How far a single pair of unchanged code goes, whichever of its kernels are said to differ.

The gate may call a large slowdown SLOWER after one pair. So no drift of a card between the two
profiles of a pair may look like one. benchmarks.kernel_rates prints the rows as ``single_pairs``.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from benchmarks.kernel_difference import (
    KernelTimes,
    Launch,
    LaunchPair,
    Mask,
    judged,
    step_differences_pct,
    times_of,
)
from stepguard.judge.time_rules import EQUAL_SHARE, bounds_of

SHARES_PCT = (10, 50)  # of a step, that the kernels of a random set take
SETS = 200  # of random kernels, of each kind


def single_pairs(alike: dict[str, list[Launch]], seed: int = 1) -> list[dict[str, Any]]:
    """Return a row for launches of one GPU and of two, and for each kind of sets of kernels: what
    the sets take longer in single pairs, at most and in all but one of 1,000 pairs, the highest low
    end of the step's interval (all in percent of a step), and how many pairs are SLOWER: the steps
    do not reject them. ``alike`` has launches of one code, by GPU and base.
    """
    rng, found = random.Random(seed), defaultdict[tuple[str, str], list[Any]](list)
    for gpus, pairs in _pairs(alike):
        times, steps_pct = times_of(pairs), step_differences_pct(pairs)
        for kind, mine in _sets(times, rng):
            longer = times.differences_pct(mine)[:, 0]
            known = times.known(mine)
            largest, red = bounds_of([math.log1p(longer.max() / 100)], known), 0
            if largest.fewest == 1:
                both = zip(longer.tolist(), steps_pct, strict=True)
                red = sum(judged([one], [step], known).slower for one, step in both)
            found[gpus, kind].append((longer, 100 * math.expm1(largest.low), red))
    rows = []
    for (gpus, kind), each in found.items():
        values = np.concatenate([longer for longer, *_ in each])
        row = {"gpus": gpus, "kernels": kind, "values": len(values)}
        row["largest_pct"] = round(float(values.max()), 3)
        row["of_1000_pct"] = round(float(np.quantile(abs(values), 0.999)), 3)
        row["low_end_pct"] = round(max(low for _, low, _ in each), 3)
        row["red"] = sum(red for *_, red in each)
        rows.append(row)
    return rows


def _pairs(alike: dict[str, list[Launch]]) -> Iterator[tuple[str, list[LaunchPair]]]:
    """Yield all ordered pairs of launches of each GPU, and of each two GPUs with the same base."""
    kept = {where: _usual(launches) for where, launches in alike.items()}
    for launches in kept.values():
        if len(launches) > 1:
            yield "one", [*permutations(launches, 2)]
    for one, other in permutations(kept, 2):
        if one < other and one.partition(", ")[2] == other.partition(", ")[2]:
            both = [(a, b) for a in kept[one] for b in kept[other]]
            yield "two", both + [(b, a) for a, b in both]


def _usual(launches: Sequence[Launch]) -> list[Launch]:
    """Return the launches that ran the kernels of most: the gate compares no others."""
    ran = [frozenset((row.key, row.code) for row in launch.turns[0].kernels) for launch in launches]
    most = max(ran, key=ran.count)
    return [launch for launch, kernels in zip(launches, ran, strict=True) if kernels == most]


def _sets(times: KernelTimes, rng: random.Random) -> Iterator[tuple[str, Mask]]:
    """Yield sets of kernels, each with its kind: a kernel, a random set, or a part of a class. The
    few kernels that are left of a class show its pace, so there drift counts most.
    """
    share, kinds = times.share_pct, times.matched.kinds
    every = np.arange(len(share))
    for place in every:
        yield "one", every == place
    for most in SHARES_PCT:
        for _ in range(SETS):
            yield f"{most} %", _up_to(most, every, share, rng)
    for kind in sorted({*kinds.tolist()}):
        its = np.flatnonzero(kinds == kind)
        for _ in range(SETS):
            mine = np.isin(every, rng.sample(its.tolist(), rng.randint(1, len(its))))
            if share[mine].sum() <= EQUAL_SHARE * share.sum():
                yield "of a class", mine


def _up_to(most: float, every: Any, share: Any, rng: random.Random) -> Mask:
    """Return random kernels that together take at most this share of a step."""
    mine, left = np.zeros(len(every), bool), most
    for place in rng.sample(every.tolist(), len(every)):
        if share[place] <= left:
            mine[place], left = True, left - share[place]
    return mine
