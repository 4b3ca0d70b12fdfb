"""What pairs of unchanged code look like.

A rule that knows what changed asks this: nothing (identical_step.py) or some kernels
(changed_kernels.py). What these kernels explain is taken out of the pairs. The rest must look like
pairs of unchanged code.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts, Launch
from stepguard.core.margins import ALPHA, PRIOR
from stepguard.core.profile import mean
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.kernel_times import range_in_step
from stepguard.judge.pair_statistics import out_of_line
from stepguard.judge.slow_step_patterns import of_pairs, untimed_excess

# If the host needs more than this share of a step to launch it, the GPU may wait for the host. On
# H200s the share is 0.09 for `forward`, 0.48 for a train step of 1,500 launches, and 0.72 with two
# and four ranks. With more than some 1,000 launches it is high because the host itself waits, for
# room in the queue.
HOST_SHARE = 0.8
PAIR_SDS = 2.0  # the pairs' mean may differ from zero by so many of its standard deviations
# A pair's rise is the log-ratio of its last blocks less that of its first blocks. In 73 pairs of
# train steps on H200s (studies/judge_power) its standard deviation was 0.45 %, and the largest rise
# 0.96 %. In seven pairs of `forward` these were 0.8 and 1.1 %.
RISE_LIMIT = 0.02
# The tails of a pair are the eighth of its steps with the highest log-ratios, and the eighth with
# the lowest. The slow tail may be further from the median than the fast one, by this limit at most.
# Of 212 pairs that were made anew of launches of unchanged code, one is beyond the limit
# (studies/judge_power).
TAIL, TAIL_LIMIT = 1 / 8, 0.025
# A step between the blocks of a pair may be longer than usual by this log-ratio. A choice: a pause
# of the host lengthened such a step by 0.67 on an H100, and 29 pairs of unchanged code had none
# beyond 0.07 (studies/core_suite).
UNTIMED_LIMIT = 0.1


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


def unusual(
    comparison: Comparison,
    explained: Sequence[float] = (),
) -> str:
    """Return what these pairs show and pairs of unchanged code hardly ever do; empty if nothing.
    ``explained`` has the part of each pair's log-ratio that is taken out; by default none is.
    """
    if comparison.again:
        return "an earlier pair was disturbed"
    pairs = comparison.paired_launches()
    launches = [launch for pair in pairs for launch in pair]
    if not comparison.together or not all(launch.has_times() for launch in launches):
        return "it was not measured in turns"
    if any(out_of_line(*pair) for pair in pairs):
        return "a pair is out of line"
    if not all(map(ahead, launches)):
        return "the host is hardly ahead of the GPU"
    if not abs(unexplained_sds(comparison.log_ratios(), explained)) <= PAIR_SDS:
        return "the step time differs"
    return uneven(comparison)


def uneven(comparison: Comparison) -> str:
    """Return what shows within the launches of these pairs, and hardly ever within those of
    unchanged code: some steps or the last blocks are slower than the rest; empty if nothing.
    """
    pairs = comparison.paired_launches()
    if not all(_rise(*pair) <= RISE_LIMIT for pair in pairs):
        return "the last block is slower"
    if not all(tail_excess(*pair) <= TAIL_LIMIT for pair in pairs):
        return "some steps are slower"
    if not all(untimed_excess(*pair) <= UNTIMED_LIMIT for pair in pairs):
        return "a step between the blocks is slower"
    # The level is that of a single case: with a stricter level more patterns would pass here.
    slower = of_pairs(replace(comparison, alpha=ALPHA), least=1)
    return "steps get slower" if slower else ""


def unexplained_sds(steps: Sequence[float], explained: Sequence[float] = ()) -> float:
    """Return the part of the steps' mean that the kernels do not explain, in standard deviations of
    such a mean of unchanged code. ``steps`` and ``explained`` have a log-ratio for each pair.
    """
    longer = fmean(steps)
    least, most = range_in_step(fmean(explained) if explained else 0.0)
    rest = longer - min(max(longer, least), most)
    return rest * math.sqrt(len(steps)) / (PRIOR.sd_pct / 100)


def ahead(launch: Launch) -> bool:
    """Tell whether even the slowest host launches a step well before the GPU finishes it."""
    return all(
        block.enqueue_ms is not None and block.enqueue_ms <= HOST_SHARE * block.mean_ms
        for block in launch.blocks
    )


def _rise(head: Launch, base: Launch) -> float:
    """Return the log-ratio of the last blocks less that of the first blocks."""
    first, last = (math.log(head.blocks[i].mean_ms / base.blocks[i].mean_ms) for i in (0, -1))
    return last - first


def tail_excess(head: Launch, base: Launch) -> float:
    """Return by how much the slow tail of a pair's steps is further from their median than the fast
    tail, as a log-ratio. A cause that slows only some steps down lengthens one tail; scatter
    lengthens both.
    """
    blocks = zip(head.blocks, base.blocks, strict=False)
    steps = (zip(block.step_ms, other.step_ms, strict=False) for block, other in blocks)
    ratios = sorted(math.log(ms / base_ms) for block in steps for ms, base_ms in block)
    if not ratios:
        return math.inf
    count = math.ceil(TAIL * len(ratios))
    return fmean(ratios[-count:]) + fmean(ratios[:count]) - 2 * median(ratios)
