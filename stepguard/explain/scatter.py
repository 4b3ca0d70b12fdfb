"""Decide whether a difference is beyond the scatter of the steps of one profile.

A profile has two or three steps, so the variance of a single term is nearly unknown. It is mixed
with the usual variance of such terms (Smyth 2004, as for pairs in judge/). The mix is never taken
as smaller than the term's own variance.

If a side has a single step, the scatter is unknown, and every difference above 1 us counts. A
difference above LARGE_SHARE of the step counts if each step of one side is longer than all of the
other: with two or three steps the scatter of a new term is a guess.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

import scipy

from stepguard.core.profile import Series, mean

FALSE_ALARMS = 0.01  # chance of one in a whole comparison, over all terms
PRIOR_STEPS = 4  # weight of the usual variance, in steps
_LEAST_US = 1.0
LARGE_SHARE = 0.25  # of the shorter step


class Usual(Enum):
    """The usual standard deviation between steps, as a share of the term."""

    KERNEL = 0.003  # at the pace of its class; more, if the other kernels scatter more
    PACE = 0.013  # of a class under a power cap: 0.5 to 1.3 % on an H200
    PART = 0.1  # exposed communication, copies, idle time


@dataclass(frozen=True)
class Term:
    """One term of the step on both sides, in us for each step."""

    part: str  # the class of kernels, or the part of the step
    before: Series
    after: Series
    usual: Usual = Usual.KERNEL
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
        counts = {usual: sum(term.usual == usual for term in terms) for usual in Usual}
        # Each kind has a third of the false alarms: hundreds of kernels do not widen the limits of
        # three parts.
        self._alpha = {usual: FALSE_ALARMS / 3 / max(1, counts[usual]) for usual in Usual}
        shares = [
            _own(term) ** 0.5 / term.level_us
            for term in terms
            if term.usual == Usual.KERNEL and term.level_us > 50
        ]
        self._share = {usual: usual.value for usual in Usual}
        self._share[Usual.KERNEL] = max(Usual.KERNEL.value, median(shares) if shares else 0.0)

    def beyond(self, term: Term) -> bool:
        """Tell whether the difference is beyond the scatter between steps. For other work, or if
        the scatter is unknown, any difference above 1 us is.
        """
        if term.certain or not self.known:
            return abs(term.change_us) > _LEAST_US
        if abs(term.change_us) > self._large_us and _apart(term):
            return True
        free = max(0, len(term.before) + len(term.after) - 2)
        own = _own(term)
        prior = max(_LEAST_US, self._share[term.usual] * term.level_us) ** 2
        variance_us2 = max(own, (free * own + PRIOR_STEPS * prior) / (free + PRIOR_STEPS))
        of_means = variance_us2 * (1 / len(term.before) + 1 / len(term.after))
        error = (of_means + term.unsure_us**2) ** 0.5
        limit = scipy.special.stdtrit(free + PRIOR_STEPS, 1 - self._alpha[term.usual] / 2) * error
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
