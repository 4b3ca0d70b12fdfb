"""Slowdowns within launches: some begin late, some return at a fixed interval, some grow.

A launch's mean hides them (docs/judge.md). Steps are counted from the launch's first step. What the
code causes is at the same steps in every launch, and what the machine causes is not. Two revisions
are compared step by step, so a slowdown that both have is not reported.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median

import numpy as np

from stepguard.core.comparison import Comparison
from stepguard.core.device import CPU, GPU
from stepguard.core.evidence import Block, Launch
from stepguard.core.margins import PRIOR
from stepguard.core.reasons import Reason
from stepguard.judge.pattern_search import (
    ALPHA,
    LEAST_STEPS,
    SAME_SIZE,
    Pattern,
    Series,
    contrast,
    far_slower_steps,
    growth,
    search,
)
from stepguard.judge.sequential_plan import MIN_PAIRS, level_share

# The machine may cause a pattern in a single pair. On a CPU other work may slow down two pairs.
LEAST_PAIRS = {GPU: 2, CPU: MIN_PAIRS}
# The standard deviation between the two halves of a launch without a cause in the code. In a pair's
# log-ratios it is 0.5 %, two and a half times that of pairs. In a single launch it is 1 %, since
# the launch still warms up.
PAIR_SDS, LONE_SD_PCT = 2.5, 1.0
# In standard errors. It is below PERIODIC_T, since HEAD's launches give period and phase: pairs try
# only these.
KNOWN_T = 5.0
REASONS = {
    "late": Reason.LATE_SLOWDOWN,
    "periodic": Reason.PERIODIC_SLOWDOWN,
    "growing": Reason.GROWING_SLOWDOWN,
}


@lru_cache(maxsize=64)  # a verdict and its report call it a dozen times
def of_launches(launches: tuple[Launch, ...]) -> Pattern | None:
    """Return the slowdown that all launches of one tree have; None if there is none. Fewer than two
    launches show none.
    """
    series = [timed for launch in launches if (timed := _of_launch(launch))]
    if len(series) < 2 or len(series) < len(launches):
        return None
    return search(series, _without_places(series), LONE_SD_PCT, ALPHA)


def of_pairs(comparison: Comparison, least: int = 0) -> Pattern | None:
    """Return the slowdown that HEAD's steps have in all pairs, and the other tree's steps do not
    have. None if it costs HEAD no more than the ignore margin, or if there are fewer than ``least``
    pairs. By default (0) a verdict's LEAST_PAIRS are needed.
    """
    both = comparison.paired_launches()
    series = [timed for head, base in both if (timed := _of_pair(head, base))]
    device = comparison.head.case["device"]
    if len(series) < (least or LEAST_PAIRS[device]):
        return None
    margins = comparison.margins
    sd_pct = max(PAIR_SDS * PRIOR.sd_pct, margins.matter_pct / 2)
    pattern = search(series, series, sd_pct, ALPHA * level_share(comparison.alpha))
    if pattern is None and device == GPU:
        series, pattern = _far_slower(both)
    if pattern is None:
        return None
    # The cost of a late slowdown is measured from its begin on. Before, HEAD may have been faster.
    after = pattern.begin if pattern.kind == "late" else 0
    lasting = [
        timed.log[timed.steps >= after].mean() for timed in series if timed.steps[-1] >= after
    ]
    return pattern if min(float(np.mean(lasting)), pattern.adds) > margins.ignore else None


def _far_slower(both: Sequence[tuple[Launch, Launch]]) -> tuple[list[Series], Pattern | None]:
    """Return a slowdown of a few steps of pairs, with the series that show it. One of these steps
    may be the first of a block, or in no timed block. A disturbed step between the blocks does not
    hide what the blocks show.
    """
    series: list[Series] = []
    tries = [both]
    if any(launch.untimed for pair in both for launch in pair):
        tries += [[(replace(head, untimed=()), replace(base, untimed=())) for head, base in both]]
    for pairs in tries:
        series = [timed for head, base in pairs if (timed := _of_all_steps(head, base))]
        if series and (pattern := far_slower_steps(series)):
            return series, pattern
    return series, None


def of_head_alone(comparison: Comparison) -> Pattern | None:
    """Return a slowdown that HEAD's steps have in all launches, and the other tree's steps do not
    have, with its size in the pairs. None if it adds no more than the ignore margin. Its p-value is
    1 if the pairs do not prove it.
    """
    mine, others = (
        [timed for launch in side.launches if (timed := _of_launch(launch))]
        for side in (comparison.head, comparison.base)
    )
    both = comparison.paired_launches()
    pairs = [timed for head, base in both if (timed := _of_pair(head, base))]
    if len(pairs) < 2 or len(mine) < len(comparison.head.launches):
        return None
    # The pattern of places in a block, which both sides have, may hide another pattern. So the
    # search is repeated without it.
    for series in (mine, _without_places(mine)):
        pattern = search(series, series, LONE_SD_PCT, ALPHA)
        sized = _in_pairs(pattern, pairs, others) if pattern else None
        if sized and sized.adds > comparison.margins.ignore:
            return sized
    return None


def _in_pairs(
    pattern: Pattern, pairs: Sequence[Series], others: Sequence[Series]
) -> Pattern | None:
    """Return a pattern of HEAD's launches with its size in the pairs. None if its size is unknown
    there, or if the launches of the other tree (``others``) show at least SAME_SIZE of it.
    """
    slower, of_base = _size(pattern, pairs), _size(pattern, others)
    if slower is None or of_base is None or of_base >= SAME_SIZE * pattern.slower:
        return None
    share, p_value = 1.0, 1.0
    if pattern.kind == "periodic":
        steps = np.concatenate([timed.steps for timed in pairs])
        rest = np.concatenate([timed.levelled for timed in pairs])
        due = pattern.holds(steps)
        share = float(due.mean())
        p_value = 1e-6 if contrast(due, rest)[-1] >= KNOWN_T else 1.0
    ms = float(np.mean([timed.ms for timed in pairs])) * math.expm1(slower)
    adds = slower / 2 if pattern.kind == "growing" else math.log1p(share * math.expm1(slower))
    return replace(pattern, slower=slower, adds=adds, ms=ms, p_value=p_value)


def _size(pattern: Pattern, series: Sequence[Series]) -> float | None:
    """Return by how much the steps of a pattern are slower than the others, as a mean log-ratio
    over the series that have both kinds of steps; None if no series has.
    """
    if pattern.kind == "growing":
        rises = [growth(timed, pattern.after - pattern.begin) for timed in series]
        return float(np.mean(rises)) if rises else None
    sizes, least = [], LEAST_STEPS if pattern.kind == "late" else 1
    for timed in series:
        slow = pattern.holds(timed.steps)
        if min(slow.sum(), (~slow).sum()) >= least:
            log = timed.log if pattern.kind == "late" else timed.levelled
            sizes.append(float(log[slow].mean() - log[~slow].mean()))
    return float(np.mean(sizes)) if sizes else None


def lasting_ms(launch: Launch, begin: int) -> float:
    """Return the mean time of a launch's steps from step ``begin`` on, in ms; of all steps if none
    is that late.
    """
    times = [
        ms
        for block in launch.blocks
        for step, ms in zip(block.timed_steps, block.step_ms, strict=False)
        if step >= begin
    ]
    return math.fsum(times) / len(times) if times else launch.step_ms


def untimed_excess(head: Launch, base: Launch) -> float:
    """Return by how much the slowest step of HEAD that is in no timed block is slower than usual,
    as a log-ratio: slower than the base's same step, and than the base's timed steps at this place
    of their blocks, where a clock may dip (_without_places()). 0 if there is no such step.
    """
    timed, both = _of_pair(head, base), _of_all_steps(head, base)
    if timed is None or both is None:
        return 0.0
    beside = dict(zip(both.steps.tolist(), both.log - np.median(timed.log), strict=True))
    dips, usual = _dips(base), math.log(head.step_ms_median)
    excesses = [
        min(beside[step], math.log(ms) - usual - dips.get(place, 0.0))
        for block in head.untimed
        for place, (step, ms) in enumerate(zip(block.timed_steps, block.step_ms, strict=False))
        if step in beside
    ]
    return float(max(excesses, default=0.0))


def _dips(launch: Launch) -> dict[int, float]:
    """Return by how much a timed step at most exceeds the median, as a log-ratio, by its place in
    its block. A clock may dip a step earlier or later, so each place counts for its neighbours.
    """
    found: dict[int, float] = {}
    usual = math.log(launch.step_ms_median)
    for block in launch.blocks:
        for place, ms in enumerate(block.step_ms):
            longer = math.log(ms) - usual
            for near in range(place - 1, place + 2):
                found[near] = max(found.get(near, 0.0), longer)
    return found


def _of_launch(launch: Launch) -> Series | None:
    """Return a launch's series; None if its blocks do not say which steps they timed.

    The first step of each block is left out. In that step a GPU waits for its host, so its time
    includes host delays that are hidden in all other steps.
    """
    return _series([block for block in launch.blocks if block.steps > 1], first=1)


def _series(blocks: Sequence[Block], first: int = 0) -> Series | None:
    """Return the steps of blocks, each from its step ``first`` on; None if a block lacks times."""
    if not blocks or any(block.bad_times() or block.ran is None for block in blocks):
        return None
    ms = [ms for block in blocks for ms in block.step_ms[first:]]
    steps = np.concatenate([np.array(block.timed_steps[first:]) for block in blocks])
    number = np.repeat(np.arange(len(blocks)), [block.steps - first for block in blocks])
    return Series(steps, number, np.log(ms), median(ms))


def _of_pair(head: Launch, base: Launch) -> Series | None:
    """Return the series of log-ratios of the steps that both launches timed; None if there are
    none.
    """
    return _ratios(_of_launch(head), _of_launch(base))


def _of_all_steps(head: Launch, base: Launch) -> Series | None:
    """Return the log-ratios of the steps that both launches ran in blocks, timed or not."""
    own, other = (
        _series(sorted((*launch.blocks, *launch.untimed), key=lambda block: block.ran or 0))
        for launch in (head, base)
    )
    return _ratios(own, other)


def _ratios(own: Series | None, other: Series | None) -> Series | None:
    if own is None or other is None:
        return None
    steps, mine, its = np.intersect1d(own.steps, other.steps, return_indices=True)
    if not len(steps):
        return None
    return Series(steps, own.block[mine], own.log[mine] - other.log[its], other.ms)


def _without_places(series: Sequence[Series]) -> list[Series]:
    """Return the series, less the usual effect of a step's place in its block: the median over all
    blocks.

    At its power cap an H200's clock dips 0.65 to 0.83 s after a block begins, and once more a
    second later (studies/warm_up). In blocks of 38 steps this looks like a period of 19.
    """
    blocks = [block for timed in series for block in timed.by_block(timed.levelled)]
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
