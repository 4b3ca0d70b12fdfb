"""Limits of times and differences against recordings: how far a run is from them, and how far it
may be. docs/method.md has the recordings that they were checked with.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, stdev

from stepguard.core.student_t import t_quantile

# A time raises an alarm if it is so far from the mean of the level's recordings: of this card, or
# of other cards. Pairs answer an alarm. Of 26 accepted recordings on a card that was known none is
# beyond 0.46 % of the others, of 70 beside other cards one is beyond 2 %, by 2.02 % (baselines/).
OWN_CARD_PCT, OTHER_CARD_PCT = 0.7, 2.0
DIFFERENCE_LIMIT_PCT = 0.5  # of a step: hosts differ in how fast they wake up and launch


@dataclass(frozen=True)
class Paired:
    """A difference of two variants of a step, from segments that were measured in turns."""

    mean_ms: float
    mean_pct: float  # of the plain step
    half_width_pct: float  # of the 95 % interval, Student's t over the pairs; inf for one pair


def paired(pairs_ms: Sequence[tuple[float, float]]) -> Paired:
    """Return the mean of other minus plain over (plain, other) pairs, each in ms a step.

    The differences themselves are averaged, not ratios or logarithms, since a difference may be
    zero. Raises ValueError without a pair, or for a time that is not positive and finite.
    """
    if not pairs_ms:
        raise ValueError("paired() needs at least one pair")
    for ms in chain(*pairs_ms):
        if not 0 < ms < math.inf:
            raise ValueError(f"step time {ms!r} ms: not a positive finite number")
    plain_ms = fmean(plain for plain, _ in pairs_ms)
    differences = [other - plain for plain, other in pairs_ms]
    count, mean = len(differences), fmean(differences)
    half = math.inf
    if count > 1:
        half = t_quantile(0.025, count - 1) * stdev(differences) / math.sqrt(count)
    return Paired(mean, 100 * mean / plain_ms, 100 * half / plain_ms)
