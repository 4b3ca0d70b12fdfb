"""Arithmetic of time intervals: unions, their length inside windows, the gaps between them."""

from dataclasses import dataclass

import numpy as np

from stepguard.trace.columns import Floats


@dataclass(frozen=True)
class Union:
    """Intervals that neither overlap nor touch, in order; in us."""

    start_us: Floats
    end_us: Floats

    def inside(self, begin_us: Floats, end_us: Floats) -> Floats:
        """Return how many us of each window [begin, end) the union covers."""
        return self._up_to(end_us) - self._up_to(begin_us)

    def _up_to(self, when_us: Floats) -> Floats:
        """Return the length of the union before each moment, in us."""
        if not len(self.start_us):
            return np.zeros(len(when_us))
        before = np.concatenate([[0.0], np.cumsum(self.end_us - self.start_us)])
        at = np.searchsorted(self.start_us, when_us, side="right")
        last = np.maximum(at - 1, 0)
        partly = np.minimum(when_us, self.end_us[last]) - self.start_us[last]
        return np.where(at > 0, before[last] + partly, 0.0)

    def gaps(self) -> tuple[Floats, Floats]:
        """Return the begins and ends of the gaps between the intervals."""
        return self.end_us[:-1], self.start_us[1:]


def union(start_us: Floats, end_us: Floats) -> Union:
    """Return the union of intervals, which may overlap, in any order."""
    order = np.argsort(start_us, kind="stable")
    start, end = start_us[order], end_us[order]
    if not len(start):
        return Union(start, end)
    reached = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Union(start[first], reached[last])
