"""When pairs of launches may decide, at which error, against what noise.

Pairs are measured until they decide or there are no more. Looking several times costs error at
every look: PLAN says how much. What the whole plan then errs by, at any standard deviation, is in
`docs/judge.md`. Formulas: Smyth 2004 (moderated variance); the errors of looks add up (Bonferroni).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

ALPHA = 0.001  # of all looks together: SLOWER although nothing changed at all
# Of all looks together: SLOWER although the true change is only the ignore margin, and `same`
# although it is the matter margin.
BETA = 0.05

# Two modes of a launch put a pair above zero at most one time in four, so that six pairs agree by
# chance 0.02 % of the time, but four do 0.4 %, however far apart the modes are.
MIN_PAIRS = 6


class Look(NamedTuple):
    """A moment at which the pairs so far may decide; one-sided nominal levels."""

    pairs: int
    alpha: float  # of SLOWER and of FASTER, where nothing changed
    beta: float  # of a bound, on either side: what is said of a margin


# Each look is worth about 1.4 times the pairs of the one before. The levels are nominal: where the
# true standard deviation is two to three times the prior's they are exceeded, most with few pairs.
# They are chosen so that ALPHA and BETA still hold there, hence their sums are below them. To call
# a step slower that did not change is much worse than to call one slower that changed by what we
# ignore: at ALPHA for both, noise of 0.27 % would hide 0.5 %.
PLAN = (
    Look(4, 0.00005, 0.0055),  # alpha only for what is shown: under MIN_PAIRS
    Look(6, 0.00005, 0.0055),
    Look(8, 0.00008, 0.0055),
    Look(12, 0.0001, 0.0055),
    Look(17, 0.00012, 0.0055),
    Look(24, 0.00014, 0.0055),
)


@dataclass(frozen=True)
class Margins:
    """How much slower is nothing, and how much must not be missed; percent of a step time.

    Between the two either answer is right, and without that gap a change equal to the one margin
    would want pairs for ever. Raises ValueError unless ``0 <= ignore_pct < matter_pct``, finite.
    """

    ignore_pct: float = 0.2
    matter_pct: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.ignore_pct < self.matter_pct < math.inf):
            raise ValueError(f"{self}: 0 <= ignore_pct < matter_pct is needed")

    @property
    def ignore(self) -> float:
        """As a log-ratio."""
        return math.log1p(self.ignore_pct / 100)

    @property
    def matter(self) -> float:
        """As a log-ratio."""
        return math.log1p(self.matter_pct / 100)


@dataclass(frozen=True)
class Prior:
    """What a machine's own A/A pairs say of the noise, and how many pairs that is worth.

    ``sd_pct`` is the standard deviation of 100 * d. The default is that of H200s: pairs on six of
    them scattered by 0.13 to 0.34 %, 0.24 % all together. Raises ValueError unless both are
    positive and finite.
    """

    sd_pct: float = 0.2
    degrees: float = 4.0

    def __post_init__(self) -> None:
        if not (0 < self.sd_pct < math.inf and 0 < self.degrees < math.inf):
            raise ValueError(f"{self}: both must be positive and finite")

    def moderated(self, sample_variance: float, pairs: int) -> tuple[float, float]:
        """Standard deviation of d and its degrees of freedom, with the prior taken in.

        Smyth's ``(f0 * s0**2 + (n - 1) * s**2) / (f0 + n - 1)`` on ``f0 + n - 1`` degrees, but f0
        is multiplied by ``(s0 / s)**4`` once the sample's s exceeds s0: a prior that the pairs
        contradict would else make noise look like proof (up to 24 times the nominal level).
        """
        prior = (self.sd_pct / 100) ** 2
        weight = self.degrees * min(1.0, prior / max(sample_variance, prior)) ** 2
        degrees = weight + pairs - 1
        pooled = (weight * prior + (pairs - 1) * sample_variance) / degrees
        return math.sqrt(pooled), degrees


MARGINS = Margins()
# By device, where a case says nothing. A CPU's clock and its other work move a step by percents.
MARGINS_PCT = {"cuda": (MARGINS.ignore_pct, MARGINS.matter_pct), "cpu": (5.0, 20.0)}
PRIOR = Prior()


def look_at(pairs: int) -> Look:
    """The latest look that ``pairs`` have reached; the first one before it is reached."""
    return max((look for look in PLAN if look.pairs <= pairs), default=PLAN[0])
