"""Step times within launches: slowdowns that begin late, return at a fixed interval, or grow.

A launch's mean hides them (docs/judge.md). Steps are counted from the launch's first. So what the
code does is at the same steps in every launch, and what the machine does is not. Two revisions are
compared step by step, so what both do is not reported.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from stepguard.core.comparison import Comparison
from stepguard.core.device import CPU, GPU
from stepguard.core.evidence import Launch
from stepguard.core.margins import PRIOR
from stepguard.core.reasons import Reason
from stepguard.judge.pattern_search import (
    ALPHA,
    LEAST_STEPS,
    SAME_SIZE,
    Pattern,
    Series,
    contrast,
    growth,
    levelled,
    search,
)
from stepguard.judge.sequential_plan import MIN_PAIRS, level_share

# A pattern in a single launch may be the machine's. On a CPU other work slows down a pair or two.
LEAST_PAIRS = {GPU: 2, CPU: MIN_PAIRS}
# How much the two halves of a launch differ without a cause in the code. Blocks of a pair: 0.5 %,
# two and a half times the scatter of pairs. A launch alone still warms up by a percent.
PAIR_SDS, LONE_SD_PCT = 2.5, 1.0
KNOWN_T = 5.0  # of pairs, at the period and phase that HEAD's launches show: none is tried
REASONS = {
    "late": Reason.LATE_SLOWDOWN,
    "periodic": Reason.PERIODIC_SLOWDOWN,
    "growing": Reason.GROWING_SLOWDOWN,
}


@lru_cache(maxsize=64)  # a verdict and its report ask a dozen times
def of_launches(launches: tuple[Launch, ...]) -> Pattern | None:
    """Return the slowdown that all launches of one tree have; None for fewer than two launches."""
    series = [timed for launch in launches if (timed := _of_launch(launch))]
    if len(series) < 2 or len(series) < len(launches):
        return None
    return search(series, _without_places(series), LONE_SD_PCT, ALPHA)


def of_pairs(comparison: Comparison, least: int = 0) -> Pattern | None:
    """Return the slowdown that HEAD's steps have in all pairs, and the other tree's steps do not
    have. None if it costs HEAD no more than the ignore margin, or if there are fewer than ``least``
    pairs. ``least`` 0 stands for as many pairs as a verdict needs.
    """
    both = zip(comparison.head.launches, comparison.base.launches, strict=False)
    series = [timed for head, base in both if (timed := _of_pair(head, base))]
    if len(series) < (least or LEAST_PAIRS[comparison.head.case["device"]]):
        return None
    margins = comparison.margins
    sd_pct = max(PAIR_SDS * PRIOR.sd_pct, margins.matter_pct / 2)
    pattern = search(series, series, sd_pct, ALPHA * level_share(comparison.alpha))
    if pattern is None:
        return None
    # A late slowdown is measured from its begin on: before it HEAD may have been faster.
    after = pattern.begin if pattern.kind == "late" else 0
    lasting = [
        timed.log[timed.steps >= after].mean() for timed in series if timed.steps[-1] >= after
    ]
    return pattern if min(float(np.mean(lasting)), pattern.adds) > margins.ignore else None


def of_head_alone(comparison: Comparison) -> Pattern | None:
    """Return what HEAD's steps do in all its launches and the other tree's do not, with its size in
    the pairs; None where it adds no more than the ignore margin. If the pairs do not prove it, its
    p-value is 1.
    """
    mine, others = (
        [timed for launch in side.launches if (timed := _of_launch(launch))]
        for side in (comparison.head, comparison.base)
    )
    both = zip(comparison.head.launches, comparison.base.launches, strict=False)
    pairs = [timed for head, base in both if (timed := _of_pair(head, base))]
    if len(pairs) < 2 or len(mine) < len(comparison.head.launches):
        return None
    # What steps do by their place in a block both sides do; without it, another one may be hidden.
    for series in (mine, _without_places(mine)):
        pattern = search(series, series, LONE_SD_PCT, ALPHA)
        sized = _in_pairs(pattern, pairs, others) if pattern else None
        if sized and sized.adds > comparison.margins.ignore:
            return sized
    return None


def _in_pairs(
    pattern: Pattern, pairs: Sequence[Series], others: Sequence[Series]
) -> Pattern | None:
    """Return a pattern of HEAD's launches with its size in the pairs; None where the launches of
    the other tree show at least half of it.
    """
    slower, of_base = _size(pattern, pairs), _size(pattern, others)
    if slower is None or of_base is None or of_base >= SAME_SIZE * pattern.slower:
        return None
    share, p_value = 1.0, 1.0
    if pattern.kind == "periodic":
        steps = np.concatenate([timed.steps for timed in pairs])
        rest = np.concatenate([levelled(timed) for timed in pairs])
        due = pattern.holds(steps)
        share = float(due.mean())
        p_value = 1e-6 if contrast(due, rest)[-1] >= KNOWN_T else 1.0
    ms = float(np.mean([timed.ms for timed in pairs])) * math.expm1(slower)
    adds = slower / 2 if pattern.kind == "growing" else math.log1p(share * math.expm1(slower))
    return replace(pattern, slower=slower, adds=adds, ms=ms, p_value=p_value)


def _size(pattern: Pattern, series: Sequence[Series]) -> float | None:
    """Return by how much the steps of a pattern are slower than the others, as a log-ratio averaged
    over the launches that have both; None where none has.
    """
    if pattern.kind == "growing":
        rises = [growth(timed, pattern.after - pattern.begin) for timed in series]
        return float(np.mean(rises)) if rises else None
    sizes, least = [], LEAST_STEPS if pattern.kind == "late" else 1
    for timed in series:
        slow = pattern.holds(timed.steps)
        if min(slow.sum(), (~slow).sum()) >= least:
            log = timed.log if pattern.kind == "late" else levelled(timed)
            sizes.append(float(log[slow].mean() - log[~slow].mean()))
    return float(np.mean(sizes)) if sizes else None


def lasting_ms(launch: Launch, begin: int) -> float:
    """Return the mean of a launch's timed steps from ``begin`` on, in ms; of all steps if none is
    that late.
    """
    times = [
        ms
        for block in launch.blocks
        for step, ms in zip(block.timed_steps, block.step_ms, strict=False)
        if step >= begin
    ]
    return math.fsum(times) / len(times) if times else launch.step_ms


def _of_launch(launch: Launch) -> Series | None:
    """Return a launch's series; None if its blocks do not say which steps they timed.

    The first step of each block is left out. A GPU waits there for its host, so that step also
    shows host delays that are hidden in all other steps.
    """
    blocks = [block for block in launch.blocks if block.steps > 1]
    if not (blocks and launch.has_times()) or any(block.ran is None for block in blocks):
        return None
    ms = np.array([ms for block in blocks for ms in block.step_ms[1:]])
    steps = np.concatenate([np.array(block.timed_steps[1:]) for block in blocks])
    number = np.repeat(np.arange(len(blocks)), [block.steps - 1 for block in blocks])
    return Series(steps, number, np.log(ms), float(np.median(ms)))


def _of_pair(head: Launch, base: Launch) -> Series | None:
    """Return the log-ratios of the steps that both launches timed; None if there are none."""
    own, other = _of_launch(head), _of_launch(base)
    if own is None or other is None:
        return None
    steps, mine, its = np.intersect1d(own.steps, other.steps, return_indices=True)
    if not len(steps):
        return None
    return Series(steps, own.block[mine], own.log[mine] - other.log[its], other.ms)


def _without_places(series: Sequence[Series]) -> list[Series]:
    """Return the series without what steps do by their place in a block, in most blocks.

    At its power cap an H200's clock dips 0.65 to 0.83 s after a block begins, and once more a
    second later (studies/warm_up): in blocks of 38 steps that is every 19th.
    """
    blocks = [block for timed in series for block in timed.by_block(levelled(timed))]
    level = np.full((len(blocks), max(map(len, blocks))), np.nan)
    for row, block in zip(level, blocks, strict=True):
        row[: len(block)] = block
    usual = np.nanmedian(level, axis=0)
    return [
        replace(
            timed,
            log=timed.log - np.concatenate([usual[: len(b)] for b in timed.by_block(timed.log)]),
        )
        for timed in series
    ]
