"""The judge's arithmetic: from pairs of launches that took turns to a verdict.

Every pair gives one log-ratio ``d = log(head / base)``. Bounds on its mean, with a standard
deviation that a machine's known noise steadies while pairs are few, are set against two margins.
Sources: Smyth 2004 (moderated t), Schuirmann 1987 (two one-sided tests), Benjamini and Hochberg
1995. The looks, and the noise expected, are in `looks.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit

from stepguard.judge.power import smallest_detectable_pct
from stepguard.judge.sequential_plan import (
    ALPHA,
    MIN_PAIRS,
    SEQUENTIAL_PLAN,
    InterimAnalysis,
    analysis_at,
)
from stepguard.margins import MARGINS, PRIOR, Margins, Prior
from stepguard.verdict import Status


@dataclass(frozen=True)
class Bounds:
    """What the pairs so far say of the true log-ratio, as one look of the plan sees it."""

    look: InterimAnalysis
    pairs: int
    mean: float
    low: float
    high: float
    surely: bool  # whether there is a change at all, in the direction of the mean
    sd: float  # of d, moderated
    degrees: float

    def status(self, margins: Margins) -> Status:
        """The rule; INCONCLUSIVE where it says nothing."""
        enough = self.pairs >= MIN_PAIRS and self.surely
        if enough and self.low > margins.ignore:
            return Status.SLOWER
        if enough and self.high < -margins.ignore:
            return Status.FASTER
        inside = -margins.matter < self.low and self.high < margins.matter
        # Wholly beyond what is ignored it is no `same`, were it ever so far inside what matters:
        # four quiet pairs would pass what six of them fail.
        reaches = self.low <= margins.ignore and self.high >= -margins.ignore
        said = inside and reaches and self.pairs >= SEQUENTIAL_PLAN[0].pairs
        return Status.SAME if said else Status.INCONCLUSIVE

    @property
    def p_value(self) -> float:
        """Of "not slower at all", one-sided, whenever the looking stopped.

        This look's own p-value times ALPHA / alpha: the chance that any look falls under x is at
        most the sum of the looks' chances. So SLOWER is never without ``p_value <= ALPHA``. 1
        under MIN_PAIRS.
        """
        if self.pairs < MIN_PAIRS:
            return 1.0
        distance = -self.mean / self.sd * math.sqrt(self.pairs)
        return min(1.0, float(stdtr(self.degrees, distance)) * ALPHA / self.look.alpha)


def bounds(log_ratios: Sequence[float], prior: Prior = PRIOR) -> Bounds:
    """The mean of the log-ratios and two bounds for the truth, ``mean -+ t * sd / sqrt(n)``.

    Each stands at the look's beta, so that each misses the truth with probability BETA at most,
    over all looks. ``surely`` is the bound at alpha, which must not reach zero. Raises ValueError
    without a pair, with more than SEQUENTIAL_PLAN has, or for one that is not finite.
    """
    count = len(log_ratios)
    if not 1 <= count <= SEQUENTIAL_PLAN[-1].pairs:
        raise ValueError(f"{count} pairs: the plan has 1 to {SEQUENTIAL_PLAN[-1].pairs}")
    if not all(map(math.isfinite, log_ratios)):
        raise ValueError(f"log-ratios {log_ratios!r}: not finite")
    mean = math.fsum(log_ratios) / count
    sample = math.fsum((d - mean) ** 2 for d in log_ratios) / max(count - 1, 1)
    sd, degrees = prior.moderated(sample, count)
    look, error = analysis_at(count), sd / math.sqrt(count)
    surely = abs(mean) > float(stdtrit(degrees, 1 - look.alpha)) * error
    reach = float(stdtrit(degrees, 1 - look.beta)) * error
    return Bounds(look, count, mean, mean - reach, mean + reach, surely, sd, degrees)


@dataclass(frozen=True)
class Decision:
    """What the pairs of one metric say; percent of the base's step time, positive is slower."""

    status: Status  # INCONCLUSIVE while pairs are wanted
    estimate_pct: float
    low_pct: float  # the two bounds that decide, 90 % together over all looks
    high_pct: float
    pairs: int
    sd_pct: float  # of 100 * d, moderated
    p_value: float  # that there is no slowdown at all; for all looks
    smallest_detectable_pct: float  # by the whole plan at this standard deviation
    final: bool

    @property
    def wants_more(self) -> bool:
        """Whether another pair should be measured."""
        return not self.final


def decide(
    log_ratios: Sequence[float],
    margins: Margins = MARGINS,
    prior: Prior = PRIOR,
    *,
    last: bool = False,
) -> Decision:
    """Judge the pairs so far, each a log(head / base) of the step time; all of them, in any order.

    Nothing is decided between the analyses of SEQUENTIAL_PLAN, unless ``last`` says that time is
    up; that must not depend on what the pairs say. It spends the next analysis' error, at the level
    of the one before. Raises ValueError as bounds() does.
    """
    found = bounds(log_ratios, prior)
    count, budget = found.pairs, SEQUENTIAL_PLAN[-1].pairs
    status = Status.INCONCLUSIVE
    if last or count == found.look.pairs:
        status = found.status(margins)
    return Decision(
        status=status,
        estimate_pct=100 * math.expm1(found.mean),
        low_pct=100 * math.expm1(found.low),
        high_pct=100 * math.expm1(found.high),
        pairs=count,
        sd_pct=100 * found.sd,
        p_value=found.p_value,
        smallest_detectable_pct=smallest_detectable_pct(budget, 100 * found.sd, margins, prior),
        final=last or status is not Status.INCONCLUSIVE or count == budget,
    )


def benjamini_hochberg(p_values: Sequence[float], q: float = 0.01) -> tuple[bool, ...]:
    """Which claims survive among all that a run makes, as Benjamini and Hochberg's step-up.

    At most a fraction ``q`` of the survivors is false on average, also for positively dependent
    p-values; if no code changed, a run has a survivor with probability ``q`` at most. Give every
    judged case, SLOWER or not. Raises ValueError for a p-value or q outside [0, 1].
    """
    if not all(0 <= p <= 1 for p in (*p_values, q)):
        raise ValueError(f"p-values {p_values!r}, q {q!r}: not in [0, 1]")
    ranked = sorted(p_values)
    count = len(ranked)
    passing = [p for rank, p in enumerate(ranked, start=1) if p <= q * rank / count]
    limit = max(passing, default=-1.0)
    return tuple(p <= limit for p in p_values)
