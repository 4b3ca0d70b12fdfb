"""Decide whether a difference is beyond the scatter of the steps of one profile.

A profile has two or three steps, so the variance of a single term is nearly unknown. It is mixed
with the usual variance of such terms (Smyth 2004, as for pairs in judge/). The mix is never taken
as smaller than the term's own variance.

If a side has a single step, the scatter is unknown, and every difference above 1 us counts. A
difference above LARGE_SHARE of the step counts if each step of one side is longer than all of the
other: with two or three steps the scatter of a new term is a guess.

On a card at its power cap the phases of a step run faster or slower by per cents, which is more
than most causes. Products and attention follow the clock. On an H200 they scatter by 2 to 4 % from
step to step, but agree to half a percent within a phase. Kernels that move memory do not follow the
clock: they scatter by 0.1 %.

So each phase has a pace in each step. The steps of one side show to which degree a kernel follows
the pace. The two sides are compared at one pace. A change that the kernels of a class still share
then is the class's own shift.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from stepguard.core.profile import Series, added, grouped, less, mean
from stepguard.core.student_t import t_quantile
from stepguard.explain.match_kernels import How, Match

FALSE_ALARMS = 0.01  # chance of one in a whole comparison, over all terms
PRIOR_STEPS = 4  # weight of the usual variance, in steps
_LEAST_US = 1.0
LARGE_SHARE = 0.25  # of the shorter step
# The usual standard deviation between steps, as a share of a term.
KERNEL = 0.003  # at the pace of its class; more, if the other kernels scatter more
PACE = 0.013  # of a class under a power cap: 0.5 to 1.3 % on an H200
PART = 0.1  # exposed communication, copies, idle time


@dataclass(frozen=True)
class Term:
    """One term of the step on both sides, in us for each step."""

    part: str  # the class of kernels, or the part of the step
    before: Series
    after: Series
    usual: float = KERNEL
    certain: bool = False  # other work: numbers of calls and names have no scatter
    size: float = 0.0  # us of which the scatter is a share; the term itself if it is larger
    unsure_us: float = 0.0  # a standard error of the difference beside that between steps

    @property
    def change_us(self) -> float:
        """Return the difference of the means, in us."""
        return mean(self.after) - mean(self.before)

    @property
    def level_us(self) -> float:
        """Return the time of which the scatter is a share, in us."""
        return max(self.size, abs(mean(self.before)), abs(mean(self.after)))


class Scatter:
    """The limits of all terms of one comparison."""

    def __init__(self, terms: Sequence[Term], step_us: float) -> None:
        self._large_us = LARGE_SHARE * step_us
        self.known = all(min(len(term.before), len(term.after)) > 1 for term in terms)
        counts = Counter(term.usual for term in terms)
        # Each kind has a third of the false alarms: hundreds of kernels do not widen the limits of
        # three parts.
        self._alpha = {usual: FALSE_ALARMS / 3 / count for usual, count in counts.items()}
        shares = [
            _own(term) ** 0.5 / term.level_us
            for term in terms
            if term.usual == KERNEL and term.level_us > 50
        ]
        self._kernel = max(KERNEL, median(shares) if shares else 0.0)

    def beyond(self, term: Term) -> bool:
        """Tell whether the difference is beyond the steps' scatter; for other work, above 1 us."""
        if term.certain or not self.known:
            return abs(term.change_us) > _LEAST_US
        if abs(term.change_us) > self._large_us and _apart(term):
            return True
        free = max(0, len(term.before) + len(term.after) - 2)
        own = _own(term)
        share = self._kernel if term.usual == KERNEL else term.usual
        prior = max(_LEAST_US, share * term.level_us) ** 2
        variance_us2 = max(own, (free * own + PRIOR_STEPS * prior) / (free + PRIOR_STEPS))
        of_means = variance_us2 * (1 / len(term.before) + 1 / len(term.after))
        error = (of_means + term.unsure_us**2) ** 0.5
        limit = t_quantile(self._alpha[term.usual] / 2, free + PRIOR_STEPS) * error
        return bool(abs(term.change_us) > limit)


def _apart(term: Term) -> bool:
    """Tell whether every step of one side takes longer than all of the other."""
    sides = sorted((term.before, term.after), key=mean)
    return max(sides[0]) < min(sides[1])


def _own(term: Term) -> float:
    """Return the variance between the steps of one side, in us^2, pooled over both sides."""
    free = len(term.before) + len(term.after) - 2
    if free <= 0:
        return 0.0
    middles = ((series, mean(series)) for series in (term.before, term.after))
    return sum((us - middle) ** 2 for series, middle in middles for us in series) / free


Floats = NDArray[np.float64]
FEWEST_ROWS = 5  # the median of fewer kernels may be one that changed
# The same for classes. With fewer, all kernels together give the pace, weighted by time.
FEWEST_CLASSES = 3
FOLLOWS = 0.5  # a kernel that follows the pace by at least this share helps to measure it
LEAST_SHARE = 0.03  # of a phase's time; a smaller class does not count for the phase's pace
_ALIKE = 0.02  # if ratios of classes differ by at most this, or by half their shift: one cause
_SHORTEST_US = 1e-3  # us a step; a shorter kernel is not used
# Scatter of a kernel at one pace, as a log-ratio. It limits how exactly it is known to which degree
# the kernel follows the pace.
_NOISE = 0.003


@dataclass(frozen=True)
class _Kernel:
    """The times of a kernel that is the same on both sides."""

    kind: str
    phase: str
    us: float  # its mean on the side before
    logs: tuple[Floats, Floats]  # of each step's time relative to ``us``, on each side

    @property
    def inner(self) -> Floats:
        """Return the logs of all steps, each relative to the mean of its own side."""
        return np.concatenate([side - side.mean() for side in self.logs])


class Pace:
    """The pace of kernels: a factor for each step on both sides, relative to the mean before."""

    def __init__(self, matches: Sequence[Match], steps: tuple[int, int]) -> None:
        self._matches, self._steps = matches, steps
        same = {id(match): kernel for match in matches if (kernel := _kernel(match))}
        self._phases: dict[str, tuple[Floats, Floats]] = {}
        self._follows: dict[int, float] = {}
        # By phase and class: for kernels that are not the same on both sides.
        self._usual: dict[tuple[str, str], float] = {}
        self._spread: dict[str, float] = {}
        for phase in dict.fromkeys(kernel.phase for kernel in same.values()):
            self._add_phase(
                phase, {i: kernel for i, kernel in same.items() if kernel.phase == phase}
            )
        self._shifts = self._class_shifts(same)
        self._kinds = grouped(matches, lambda match: match.rows[0].kind)

    def _add_phase(self, phase: str, kernels: dict[int, _Kernel]) -> None:
        weights = np.array([kernel.us for kernel in kernels.values()])
        inner = np.array([kernel.inner for kernel in kernels.values()])
        common = weights @ inner / weights.sum()
        spread = float(common @ common)
        # If the pace hardly scatters, all kernels are taken to follow it.
        follows = (inner @ common + _NOISE**2) / (spread + _NOISE**2)
        follows = dict(zip(kernels, np.clip(follows, 0.0, 2.0).tolist(), strict=True))
        pace = _of_classes([(kernel, follows[i]) for i, kernel in kernels.items()])
        if pace is None:
            return
        self._phases[phase], self._spread[phase] = pace, spread
        self._follows |= follows
        for kind in dict.fromkeys(kernel.kind for kernel in kernels.values()):
            mine = [(kernel.us, follows[i]) for i, kernel in kernels.items() if kernel.kind == kind]
            self._usual[phase, kind] = sum(us * x for us, x in mine) / sum(us for us, _ in mine)

    def _class_shifts(self, same: dict[int, _Kernel]) -> dict[str, float]:
        """Return by how much each class is slower than before, as a log-ratio."""
        rest: dict[str, list[float]] = {}
        for match in self._matches:
            if (kernel := same.get(id(match))) is not None:
                calm = [np.log(np.maximum(us, 1e-9)) for us in self._at_pace(match)]
                rest.setdefault(kernel.kind, []).append(float(calm[1].mean() - calm[0].mean()))
        return {kind: _shared(x) for kind, x in rest.items() if len(x) >= FEWEST_ROWS}

    def _at_pace(self, match: Match) -> tuple[Floats, Floats]:
        """Return a match's us in each step on both sides, at its phase's pace."""
        row = match.rows[0]
        follows = self._follows.get(id(match), self._usual.get((row.phase, row.kind), 0.0))
        sides = []
        for side, rows in enumerate((match.before, match.after)):
            us = np.array(_sum([row.us for row in rows], self._steps[side]))
            phase = self._phases.get(row.phase)
            sides.append(us if phase is None else us * np.exp(-follows * phase[side]))
        return sides[0], sides[1]

    def steady(self, match: Match) -> tuple[Series, Series]:
        """Return a match's us in each step on both sides, at the pace of its phase and class."""
        before, after = self._at_pace(match)
        after = after * np.exp(-self._shifts.get(match.rows[0].kind, 0.0))
        return tuple(before.tolist()), tuple(after.tolist())

    def unsure_us(self, match: Match) -> float:
        """Return the standard error of a match's difference: how far it follows is not exact."""
        row = match.rows[0]
        shifts = {phase: abs(b.mean() - a.mean()) for phase, (a, b) in self._phases.items()}
        us = max(sum(mean(row.us) for row in rows) for rows in (match.before, match.after))
        if row.phase not in shifts:
            return float(max(shifts.values(), default=0.0) * us)
        error = _NOISE / (self._spread[row.phase] + _NOISE**2) ** 0.5
        return float(shifts[row.phase] * error * us)

    def terms(self) -> Iterator[tuple[str, Term]]:
        """Yield each class with the term that its pace adds to the step."""
        for kind, mine in self._kinds.items():
            sums = self.sums(mine)
            before, after = (less(sums[i], self._steady_us(kind, i)) for i in (0, 1))
            yield kind, Term(kind, before, after, PACE, size=self.class_us(kind)[0])

    def _steady_us(self, kind: str, side: int) -> Series:
        return added([self.steady(match)[side] for match in self._kinds[kind]])

    def class_us(self, kind: str) -> tuple[float, float]:
        """Return a class's time on both sides, in us a step."""
        before, after = self.sums(self._kinds[kind])
        return mean(before), mean(after)

    def sums(self, matches: Sequence[Match]) -> tuple[Series, Series]:
        """Return the sum of all kernels on both sides, in us for each step."""
        before = [row.us for match in matches for row in match.before]
        after = [row.us for match in matches for row in match.after]
        return _sum(before, self._steps[0]), _sum(after, self._steps[1])

    def ratio(self, kind: str) -> float:
        """Return by which factor the pace alone makes a class's kernels take longer."""
        steady_us = mean(self._steady_us(kind, 1))
        return self.class_us(kind)[1] / steady_us if steady_us else 1.0

    def is_clock(self, kinds: Sequence[str]) -> bool:
        """Tell whether these classes moved with the clock. One alone did not."""
        ratios = [self.ratio(kind) for kind in kinds]
        if len(ratios) < 2:
            return False
        shift = abs(mean(ratios) - 1)
        alike = max(ratios) - min(ratios) <= max(_ALIKE, shift / 2)
        # Classes that follow the pace to different degrees have different ratios. They moved with
        # the clock if hardly any of the shift is their own.
        shared = all(2 * abs(self._shifts.get(k, 0.0)) <= abs(self.ratio(k) - 1) for k in kinds)
        return alike or shared


def _kernel(match: Match) -> _Kernel | None:
    """Return a match's kernel if it is one, of equal work and calls on both sides; else None."""
    if match.how != How.SAME or len(match.rows) != 2 or match.other_work or match.more_calls:
        return None
    sides = [np.array(row.us) for row in (match.before[0], match.after[0])]
    if min(side.min(initial=np.inf) for side in sides) < _SHORTEST_US or not all(map(len, sides)):
        return None
    row, usual = match.before[0], float(sides[0].mean())
    return _Kernel(row.kind, row.phase, usual, (np.log(sides[0] / usual), np.log(sides[1] / usual)))


def _of_classes(kernels: Sequence[tuple[_Kernel, float]]) -> tuple[Floats, Floats] | None:
    """Return a phase's pace in each step, on both sides, as logs: the median over classes of their
    weighted medians. None if too few kernels follow it.
    """
    whole = sum(kernel.us for kernel, _ in kernels)
    telling = [(kernel, follows) for kernel, follows in kernels if follows >= FOLLOWS]
    classes = grouped(telling, lambda pair: pair[0].kind)
    large = [mine for mine in classes.values() if sum(k.us for k, _ in mine) >= LEAST_SHARE * whole]
    if sum(map(len, large)) < FEWEST_ROWS:
        return None
    if len(large) < FEWEST_CLASSES:
        large = [[kernel for mine in large for kernel in mine]]
    sides = []
    for side in (0, 1):
        paces = [
            _weighted_median(
                np.array([kernel.logs[side] / follows for kernel, follows in mine]),
                np.array([kernel.us for kernel, _ in mine]),
            )
            for mine in large
        ]
        sides.append(np.median(paces, axis=0))
    return sides[0], sides[1]


def _shared(logs: Sequence[float]) -> float:
    """Return the median of the shifts of a class's kernels, if most kernels share it; else 0."""
    low, middle, high = np.quantile(logs, (0.25, 0.5, 0.75)).tolist()
    return float(middle) if low * high > 0 and min(abs(low), abs(high)) >= abs(middle) / 2 else 0.0


def _weighted_median(rows: Floats, weights: Floats) -> Floats:
    order = np.argsort(rows, axis=0)
    share = np.cumsum(weights[order], axis=0) / weights.sum()
    at = (share >= 0.5).argmax(axis=0)
    columns = np.arange(rows.shape[1])
    return np.asarray(rows[order[at, columns], columns])


def _sum(rows: Sequence[Series], steps: int) -> Series:
    return added(rows) if rows else (0.0,) * steps
