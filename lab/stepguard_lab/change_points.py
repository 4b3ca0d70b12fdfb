"""Finds where the level of a series changes, and how far it has crept from an anchor.

A time is noisy: its change points are found by PELT with squared error on logarithms (ruptures), at
a penalty of PENALTY * ln(n) * s**2. The noise s comes from the differences of neighbours, of which
a change of level moves only one. A counter has no noise: every difference is a change.
benchmarks/history_points.py measures how often the found changes are right.

https://centre-borelli.github.io/ruptures-docs/
"""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from stepguard.core.device import CPU, GPU
from stepguard.core.student_t import t_quantile

PENALTY = 6.0
LEAST_POINTS = 3  # of a segment: fewer are an outlier
LEAST_SERIES = 12  # points of a noisy series, below which s is too uncertain
NEWEST = 12  # points of a segment from which creep is computed, at most
# A level that moved by less is not named, by device: the same code moved by up to 0.6 % on an H100
# within an hour (benchmarks/history_points.py). A CPU's clock and its other work move more.
LEAST_CHANGE_PCT = {GPU: 0.65, CPU: 5.0}
CREEP_ALPHA = 0.001  # two-sided, as the gate's own level
INSTALL = "change points of times need ruptures: python -m pip install 'stepguard-lab[history]'"


@dataclass(frozen=True)
class Change:
    """A change of level: ``at`` is the first point of the new one."""

    at: int
    before: float
    after: float

    @property
    def change_pct(self) -> float:
        """Return by how many percent the level rose; infinite from zero."""
        return 100 * (self.after / self.before - 1) if self.before else math.inf


@dataclass(frozen=True)
class Creep:
    """How far the newest level is from the anchor's, in percent, with its interval."""

    change_pct: float
    low_pct: float
    high_pct: float

    def beyond(self, margin_pct: float) -> bool:
        """Tell whether the whole interval is slower than the margin allows."""
        return self.low_pct > margin_pct


def has_ruptures() -> bool:
    """Tell whether the extra is installed."""
    return importlib.util.find_spec("ruptures") is not None


def noise(logs: Sequence[float]) -> float:
    """Return the standard deviation of the noise in a series of logarithms. Changes of level hardly
    move it.
    """
    steps = [abs(after - before) for before, after in pairwise(logs)]
    return median(steps) / 0.6745 / math.sqrt(2)


def exact_changes(values: Sequence[float]) -> list[Change]:
    """Return every change of a series without noise."""
    both = enumerate(pairwise(values), start=1)
    return [Change(at, before, after) for at, (before, after) in both if before != after]


def level_changes(values: Sequence[float], least_pct: float = 0.0) -> list[Change]:
    """Return the changes of level of a noisy, positive series that are ``least_pct`` or more.

    A series of fewer points than LEAST_SERIES has none. Raises ModuleNotFoundError without
    ruptures.
    """
    if len(values) < LEAST_SERIES:
        return []
    logs = [math.log(value) for value in values]
    if not (scatter := noise(logs)):  # most neighbours are equal: as exact as a counter
        return exact_changes(values)
    borders = _borders(logs, PENALTY * math.log(len(logs)) * scatter**2)
    # The smallest change goes first: its neighbours are then measured on more points.
    while changes := _between(logs, borders):
        smallest = min(changes, key=lambda change: abs(change.change_pct))
        if abs(smallest.change_pct) >= least_pct:
            return changes
        borders.remove(smallest.at)
    return []


def _between(logs: Sequence[float], borders: Sequence[int]) -> list[Change]:
    """Return the change of level at each border."""
    parts = pairwise([0, *borders, len(logs)])
    levels = [math.exp(fmean(logs[begin:end])) for begin, end in parts]
    both = zip(borders, pairwise(levels), strict=True)
    return [Change(at, before, after) for at, (before, after) in both]


def _borders(logs: Sequence[float], penalty: float) -> list[int]:
    import numpy as np
    import ruptures

    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_POINTS)  # PELT, squared error, in C
    ends: list[int] = search.fit(np.array(logs)[:, None]).predict(pen=penalty)
    return [int(border) for border in ends[:-1]]


def creep(anchored: Sequence[float], newest: Sequence[float]) -> Creep | None:
    """Return how the newest values differ from those at the anchor, by Welch's interval at
    CREEP_ALPHA; None where either has fewer than LEAST_POINTS values.
    """
    if min(len(anchored), len(newest)) < LEAST_POINTS:
        return None
    old, new = ([math.log(value) for value in side] for side in (anchored, newest))
    (first, first_var), (last, last_var) = _mean(old), _mean(new)
    variance = first_var + last_var
    if variance:
        parts = (first_var**2 / (len(old) - 1), last_var**2 / (len(new) - 1))
        degrees = variance**2 / sum(parts)
        half = t_quantile(CREEP_ALPHA / 2, degrees) * math.sqrt(variance)
    else:
        half = 0.0
    moved = last - first
    return Creep(*(100 * math.expm1(log) for log in (moved, moved - half, moved + half)))


def _mean(logs: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and the variance of that mean."""
    mean = fmean(logs)
    return mean, sum((log - mean) ** 2 for log in logs) / (len(logs) - 1) / len(logs)
