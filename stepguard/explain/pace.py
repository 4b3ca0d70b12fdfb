"""The pace of a class of kernels: the common factor of all that are the same on both sides.

Clocks and power limits move a whole class of kernels from step to step, by more than most causes
are. So each kernel is compared at the pace of its class in that step, and the pace by itself.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from stepguard.explain.match import How, Match
from stepguard.explain.scatter import Term, Usual
from stepguard.profile import KernelRow, Series, added, mean

FEWEST_ROWS = 5  # a median of fewer kernels may be one that changed
_ALIKE = 0.02  # ratios of classes that differ by no more, or by half their shift, have one cause


class Pace:
    """For each class, the factor of each step on both sides, against the mean of ``before``."""

    def __init__(
        self,
        matches: Sequence[Match],
        factors: dict[str, tuple[Series, Series]],
        steps: tuple[int, int],
    ) -> None:
        self._matches = matches
        self._factors = factors
        self._steps = steps

    def steady(self, one: Match) -> tuple[Series, Series]:
        """Return a match's us for each step on both sides, at the pace of its class."""
        kind = one.rows[0].kind
        found = []
        for side, rows in enumerate((one.before, one.after)):
            us = _sum([row.us for row in rows], self._steps[side])
            factor = self._factors[kind][side] if kind in self._factors else None
            found.append(us if factor is None else _divided(us, factor))
        return found[0], found[1]

    def terms(self) -> Iterator[tuple[str, Term]]:
        """Yield what each class's pace adds to the step."""
        for kind in self._factors:
            mine = [one for one in self._matches if one.rows[0].kind == kind]
            series = []
            for side in (0, 1):
                raw = self._raw(mine, side)
                calm = added([self.steady(one)[side] for one in mine])
                series.append(tuple(x - y for x, y in zip(raw, calm, strict=True)))
            yield kind, Term(kind, series[0], series[1], Usual.PACE, size=self.class_us(kind)[0])

    def _raw(self, mine: Sequence[Match], side: int) -> Series:
        rows = [row.us for one in mine for row in (one.before, one.after)[side]]
        return _sum(rows, self._steps[side])

    def class_us(self, kind: str) -> tuple[float, float]:
        """Return a class's time a step on both sides."""
        mine = [one for one in self._matches if one.rows[0].kind == kind]
        return mean(self._raw(mine, 0)), mean(self._raw(mine, 1))

    def sums(self, matches: Sequence[Match]) -> tuple[Series, Series]:
        """Return the sum of all kernels for each step on both sides."""
        return self._raw(matches, 0), self._raw(matches, 1)

    def ratio(self, kind: str) -> float:
        """Return how much longer the same kernels of a class take."""
        before, after = self._factors[kind]
        return mean(after) / mean(before)

    def is_clock(self, kinds: Sequence[str], clock_ratio: float | None) -> bool:
        """Return whether these classes moved as a clock moves them: by one ratio, or, where
        telemetry knows the clock, by its own.
        """
        ratios = [self.ratio(kind) for kind in kinds]
        if clock_ratio is not None and abs(clock_ratio - 1) > _ALIKE / 2:
            return all(abs(ratio * clock_ratio - 1) <= _ALIKE for ratio in ratios)
        shift = abs(mean(ratios) - 1)
        return len(ratios) > 1 and max(ratios) - min(ratios) <= max(_ALIKE, shift / 2)


def paces(matches: Sequence[Match], before_steps: int, after_steps: int) -> Pace:
    """Return the paces of the classes that have enough kernels which are the same on both sides."""
    same: dict[str, list[Match]] = {}
    for one in matches:
        if one.how == How.SAME and _calls(one.before) == _calls(one.after):
            if mean(one.before[0].us) > 0:
                same.setdefault(one.rows[0].kind, []).append(one)
    factors = {
        kind: (_factor(rows, 0, before_steps), _factor(rows, 1, after_steps))
        for kind, rows in same.items()
        if len(rows) >= FEWEST_ROWS
    }
    return Pace(matches, factors, (before_steps, after_steps))


def _calls(rows: Sequence[KernelRow]) -> float:
    return sum(mean(row.calls) for row in rows)


def _factor(rows: Sequence[Match], side: int, steps: int) -> Series:
    """Return the median over kernels of their time in each step against the mean of ``before``."""
    return tuple(
        median((one.before, one.after)[side][0].us[step] / mean(one.before[0].us) for one in rows)
        for step in range(steps)
    )


def _divided(series: Series, factor: Series) -> Series:
    return tuple(us / by if by > 0 else us for us, by in zip(series, factor, strict=True))


def _sum(rows: Sequence[Series], steps: int) -> Series:
    return added(rows) if rows else (0.0,) * steps
