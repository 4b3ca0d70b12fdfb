"""Margins for judging another revision, and the noise that pairs are expected to have.

Formulas: Smyth 2004 (moderated variance).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stepguard.core.device import CPU, GPU

BUDGET_MIN = 30.0  # minutes of pairs in a run, by default
ALPHA = 0.001  # the chance that a step is called slower although nothing changed


@dataclass(frozen=True)
class Margins:
    """The slowdown that is ignored, and the one that must not be missed, in percent of a step time.

    Between the two either answer is right. With a single margin, a change of just that size would
    need endless pairs. Raises ValueError unless ``0 <= ignore_pct < matter_pct < inf``.
    """

    ignore_pct: float = 0.2
    matter_pct: float = 0.5

    def __post_init__(self) -> None:
        if not (0 <= self.ignore_pct < self.matter_pct < math.inf):
            raise ValueError(f"{self}: 0 <= ignore_pct < matter_pct is needed")

    @cached_property
    def ignore(self) -> float:
        """Return the ignore margin as a log-ratio."""
        return math.log1p(self.ignore_pct / 100)

    @cached_property
    def matter(self) -> float:
        """Return the matter margin as a log-ratio."""
        return math.log1p(self.matter_pct / 100)


@dataclass(frozen=True)
class Prior:
    """The known noise of pairs of a commit with itself (A/A), and the weight of that knowledge.

    ``sd_pct`` is the standard deviation of 100 * d, where d is a pair's log-ratio. The default is
    near that of H200s: pairs on six of them scattered by 0.13 to 0.34 %, and by 0.24 % all
    together. ``degrees`` is the weight, in degrees of freedom. Raises ValueError unless both are
    positive and finite.
    """

    sd_pct: float = 0.2
    degrees: float = 4.0

    def __post_init__(self) -> None:
        if not (0 < self.sd_pct < math.inf and 0 < self.degrees < math.inf):
            raise ValueError(f"{self}: both must be positive and finite")

    def moderated(
        self, sample_variance: Any, pairs: int, larger: Callable[..., Any] = max
    ) -> tuple[Any, Any]:
        """Return the standard deviation of d and its degrees of freedom, moderated by the prior.

        This is Smyth's ``(f0 * s0**2 + (n - 1) * s**2) / (f0 + n - 1)`` with ``f0 + n - 1``
        degrees. Once the sample's s exceeds s0, f0 is multiplied by ``(s0 / s)**4``: otherwise a
        prior that the pairs contradict would make noise look like proof (up to 24 times the nominal
        level). With ``larger=numpy.maximum`` it takes an array of variances, and returns arrays.
        """
        prior = (self.sd_pct / 100) ** 2
        weight = self.degrees * (prior / larger(sample_variance, prior)) ** 2
        degrees = weight + pairs - 1
        pooled = (weight * prior + (pairs - 1) * sample_variance) / degrees
        return pooled**0.5, degrees


MARGINS = Margins()
# By device, for a case that states none. A CPU's clock and its other work move a step by percents.
MARGINS_PCT = {GPU: (MARGINS.ignore_pct, MARGINS.matter_pct), CPU: (5.0, 20.0)}
PRIOR = Prior()


def margins_of(percents: Sequence[float], device: str) -> Margins:
    """Return the percentages as margins; by default the device's. Raises ValueError."""
    ignore, matter = percents or MARGINS_PCT[device]
    return Margins(ignore, matter)
