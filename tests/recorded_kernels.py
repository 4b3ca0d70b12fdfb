"""Launches whose kernels were profiled: a train step on two H200s, as benchmarks/data has them.

Base launches have one code. HEAD's gelu of one layer does 30 or 70 multiply-adds more, or nothing
differs. Each launch has two profiles.
"""

import gzip
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from builders import block_of, evidence, launch, replace

from benchmarks.kernel_difference import identity
from stepguard.core.comparison import Comparison
from stepguard.core.profile import KernelRow, Parts, Profile

STEPS = 6
FILES = ("model/gpt.py",)  # that differ between the sides


DATA = Path(__file__).parents[1] / "benchmarks" / "data" / "kernel_pairs_h200_2026-11-26.json.gz"


@dataclass(frozen=True)
class Recorded:
    """One recorded launch."""

    gpu: str
    step: tuple[str, ...]  # keys of the kernels that it ran
    kernels_us: tuple[tuple[float, ...], ...]  # of each profile, in that order
    blocks_ms: tuple[tuple[float, ...], ...]


@cache
def _document():
    return json.loads(gzip.decompress(DATA.read_bytes()))


@cache
def launches(side):
    """The launches of a side, in the order of the pairs."""
    found = []
    for pair in _document()["pairs"]:
        one = pair[side]
        step = tuple(sorted(one["turns"][0]["kernels"]))
        us = tuple(tuple(_us(turn["kernels"][key]) for key in step) for turn in one["turns"])
        blocks = tuple(map(tuple, one["block_step_ms"]))
        found.append(Recorded(pair["gpu"], step, us, blocks))
    return tuple(found)


def _us(series):
    return round(fmean(series[1]), 3)


BASE = launches("base")[0].step
COLD = launches("head")[0].step  # of the same code as the base's, compiled with another grid


@cache
def profile(step=BASE):
    """The profile of a launch that ran these kernels, as a counting pass keeps it."""
    document = _document()
    turn = next(
        turn
        for pair in document["pairs"]
        for side in ("base", "head")
        for turn in pair[side]["turns"]
        if tuple(sorted(turn["kernels"])) == step
    )
    rows = tuple(
        KernelRow(
            calls=(float(turn["kernels"][key][0]),) * STEPS,
            us=(_us(turn["kernels"][key]),) * STEPS,
            **identity(document["kernels"][key]),
        )
        for key in step
    )
    step_us, idle_us = ((fmean(turn[name]),) * STEPS for name in ("step_us", "idle_us"))
    busy, none = tuple(a - b for a, b in zip(step_us, idle_us, strict=True)), (0.0,) * STEPS
    return Profile("NVIDIA H200", 1, Parts(step_us, busy, none, none, idle_us), rows, ())


def measured(number, kernels_us, blocks_ms):
    """A launch of a pair with these kernels and blocks; the host is well ahead of the GPU."""
    blocks = [block_of(list(each), ran) for each, ran in zip(blocks_ms, (20, 40), strict=True)]
    ahead = tuple(replace(block, enqueue_ms=0.5 * block.step_ms[0]) for block in blocks)
    return launch(index=number, blocks=ahead, kernels_us=kernels_us)


def compared(pairs, head_profile, base_profile, **changes):
    """A comparison of pairs (head, base), each (kernels' us, blocks' ms)."""
    sides = []
    for side, counted in enumerate((head_profile, base_profile)):
        found = evidence(planned_launches=1, commit=("f" * 40, "0" * 40)[side])
        each = tuple(measured(n, *pair[side]) for n, pair in enumerate(pairs, start=1))
        counts = replace(found.counts, profile=counted)
        sides.append(replace(found, launches=each, counts=counts))
    return replace(Comparison("main", *sides), **changes)


def steady(ratio=1.0, ms=250.0):
    """Blocks of equal steps."""
    return ((ms * ratio,) * 8,) * 2


def edited(counted, *names):
    """The profile, with another source of the kernels whose names begin so."""
    rows = (
        replace(row, code=f"{row.code} edited") if row.name.startswith(names) else row
        for row in counted.kernels
    )
    return replace(counted, kernels=tuple(rows))


def longer(counted, name, us):
    """The profile, whose kernel of this name takes so many us a step longer, as does the step."""
    rows = tuple(
        replace(row, us=tuple(one + us for one in row.us)) if row.name == name else row
        for row in counted.kernels
    )
    parts = counted.parts
    both = {
        field: tuple(one + us for one in getattr(parts, field))
        for field in ("step_us", "compute_us")
    }
    return replace(counted, kernels=rows, parts=replace(parts, **both))


def as_recorded(chosen, turn=0, steps=None, edit=(), **changes):
    """A comparison of recorded pairs. ``steps``: log-ratios in percent of their unprofiled blocks,
    in place of the recorded ones. ``edit``: names of kernels that HEAD changed otherwise.
    """
    pairs, heads = [], []
    for number, at in enumerate(chosen):
        head, base = launches("head")[at], launches("base")[at]
        blocks = [one.blocks_ms for one in (head, base)]
        if steps is not None:
            blocks = [steady(math.exp(steps[number] / 100)), steady()]
        us = (one.kernels_us[turn] for one in (head, base))
        pairs.append(tuple(zip(us, blocks, strict=True)))
        heads.append(head.step)
    return compared(pairs, edited(profile(heads[-1]), *edit), profile(), **changes)
