"""The same step: the GPU runs what it ran before, so one pair is enough, or a few.

The identities of both steps are equal on every rank, and the GPU bounds the step. No counter's
detail takes part: each counter is judged by its own rule.
"""

import math
from statistics import fmean

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts
from stepguard.core.profile import mean
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.pair_statistics import measured

# One pair may be so far from zero, the mean of n pairs by this divided by the root of n. Of 29
# pairs of unchanged code, which scatter by 0.45 %, 15 are within it (forward on H100s, 2026-11-27).
# A slowdown of 0.5 % that no identity shows passes in 32 % of cases; in 48 % if pairs scatter by
# 0.45 % (`alike` in benchmarks/judge_rates.py).
WITHIN_PCT = 0.4
MOST_ALIKE = 4  # pairs; with more the other rules decide


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` if the steps are the same and the pairs' mean is close to zero."""
    few = comparison.together and comparison.pairs <= MOST_ALIKE
    if not few or why_not_same(comparison) or not _within(comparison):
        return None
    return measured(comparison).say(Status.SAME, Reason.IDENTICAL_STEP)


def why_not_same(comparison: Comparison) -> str:
    """Return why the two steps are not known to be the same, times aside; else empty."""
    head, base = comparison.head, comparison.base
    if not head.on_gpu:
        return "there is no GPU"
    if comparison.margins.matter_pct < WITHIN_PCT:
        return "the case's matter margin is narrower"
    if head.counts is None or base.counts is None:
        return "nothing was counted"
    for counts in (head.counts, base.counts):
        identity = counts.identity
        if identity is None or identity.problem or not identity.parts:
            return f"not all of a step is known: {identity.problem if identity else 'no trace'}"
        if why := why_not_bound(counts):
            return why
    assert head.counts.identity is not None and base.counts.identity is not None
    parts = list(head.counts.identity.differs_from(base.counts.identity))
    return f"other {', '.join(parts)}" if parts else ""


def why_not_bound(counts: Counts) -> str:
    """Return why the GPU is not known to bound a step; empty if it is on every rank."""
    profile = counts.profile
    if profile is None or profile.incomplete or profile.lost_share:
        return "a profile is not whole"
    for rank in (*counts.parts_by_rank, profile.parts):
        if not mean(rank.step_us) > 0:
            return "a profile has no step"
        idle = mean(rank.idle_us) / mean(rank.step_us)
        if not 0 <= idle <= IDLE_SHARE:
            return f"a GPU is idle for {100 * idle:.1f} % of a step"
    return ""


def not_enough(comparison: Comparison) -> str:
    """Return why one pair was not enough on a GPU; empty if it was, or if all are wanted."""
    if comparison.pairs <= 1 or comparison.same_commit or not comparison.head.on_gpu:
        return ""
    if why := why_not_same(comparison):
        return why
    return "" if _within(comparison) else "the step time differs"


def _within(comparison: Comparison) -> bool:
    within_pct = WITHIN_PCT / math.sqrt(comparison.pairs)
    return abs(100 * fmean(comparison.log_ratios())) <= within_pct
