"""Comparisons of a step with itself whose truth is known: levels, launches and blocks as given."""

import math
from dataclasses import replace

import numpy as np
from builders import block as block_of
from builders import evidence, launch

from stepguard.core.comparison import Comparison

GATES = ("step_ms", "flops_per_step")


def comparison_of(head_ms, base_ms, **changes):
    """Pairs of launches of two blocks each: (first, second) in ms a step, in order of time."""
    sides = []
    for times in (head_ms, base_ms):
        launches = tuple(
            launch(index=number, blocks=tuple(block_of(ms) for ms in pair))
            for number, pair in enumerate(times, start=1)
        )
        sides.append(evidence((), launches=launches, gates=GATES, planned_launches=1))
    return replace(Comparison("HEAD", *sides), **changes)


def alike(ratios_pct, ms=250.0):
    """Pairs whose log-ratios are these percentages, without any other noise."""
    head = [(ms * math.exp(d / 100),) * 2 for d in ratios_pct]
    return comparison_of(head, [(ms, ms)] * len(ratios_pct))


def simulated(pairs, own_pct, block_pct, *, drift_pct=0.0, together=True, seed=0):
    """Normal noise: of a launch, of a block, and a drift by a straight line over all blocks."""
    draw = np.random.default_rng(seed)
    head, base = [], []
    for index in range(pairs):
        outer, inner = (100 * math.log(250.0) + own_pct * draw.standard_normal() for _ in "oi")
        levels = (outer, inner, inner, outer) if together else (outer, outer, inner, inner)
        drift = drift_pct * (4 * index + np.arange(4)) / (4 * pairs - 1)
        logs = np.array(levels) + drift + block_pct * draw.standard_normal(4)
        ms = np.exp(logs / 100)
        of_outer, of_inner = (0, 3), (1, 2)
        if not together:
            of_outer, of_inner = (0, 1), (2, 3)
        first, second = (base, head) if index % 2 == 0 else (head, base)
        first.append(tuple(float(ms[i]) for i in of_outer))
        second.append(tuple(float(ms[i]) for i in of_inner))
    return comparison_of(head, base, together=together)


def with_margins(found, ignore_pct, matter_pct):
    """The comparison of a case that has these margins."""
    sides = (replace(one, margins_pct=(ignore_pct, matter_pct)) for one in (found.head, found.base))
    head, base = sides
    return replace(found, head=head, base=base)
