"""The step that did not change: if all kernels are the same, a few pairs are enough.

This rule says `same` if every rank's step is known to be that of the other tree, and if the GPU
bounds it. One pair is enough, or a few if pairs are noisy (``enough``). Step by step, these pairs
must look like pairs of unchanged code; otherwise the other rules decide. docs/judge.md says what an
identity contains, and what it lacks.
"""

import math
from dataclasses import replace
from statistics import fmean, median

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts, Launch
from stepguard.core.margins import ALPHA, PRIOR
from stepguard.core.profile import mean
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.pair_statistics import out_of_line
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.slow_step_patterns import of_pairs, untimed_excess

# If the host needs more than this share of a step to launch it, the GPU may wait for the host. On
# H200s the share is 0.09 for `forward`, 0.48 for a train step of 1,500 launches, and 0.72 with two
# and four ranks. With more than some 1,000 launches it is high because the host itself waits, for
# room in the queue.
HOST_SHARE = 0.8
PAIR_SDS = 2.0  # the pairs' mean may differ from zero by so many of its standard deviations
# The matter margin must be at least so many standard deviations of the pairs' mean. One pair is
# enough for that if its standard deviation is 0.2 % at most. A slowdown that no identity shows, and
# that is as large as the matter margin, then passes with a probability of at most 31 %.
MARGIN_SDS = 2.5
MOST_ALIKE = 4  # the most pairs for which `enough` asks
# A pair's rise is the log-ratio of its last blocks less that of its first blocks. In 73 pairs of
# train steps on H200s (studies/judge_power) its standard deviation was 0.45 %, and the largest rise
# 0.96 %. In seven pairs of `forward` these were 0.8 and 1.1 %.
RISE_LIMIT = 0.02
# The tails of a pair are the eighth of its steps with the highest log-ratios, and the eighth with
# the lowest. The slow tail may be further from the median than the fast one, by this limit at most.
# Launches of unchanged code were put together to 212 new pairs: one of these is beyond the limit
# (studies/judge_power).
TAIL, TAIL_LIMIT = 1 / 8, 0.025
# A step between the blocks of a pair may be longer than usual by this log-ratio. A choice: a pause
# of the host lengthened such a step by 0.67 on an H100, and two pairs of unchanged code had none
# beyond it (studies/core_suite).
UNTIMED_LIMIT = 0.1
# Other files (data, libraries, settings) may change what a later step does.
_CODE = (".py", ".pyi", ".md", ".rst")


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` if there are exactly ``enough`` pairs, the steps are the same, and the pairs look
    like pairs of unchanged code.
    """
    if not identical(comparison):
        return None
    return mean_of_pairs.measured(comparison).say(Status.SAME, Reason.IDENTICAL_STEP)


def why_not_identical(comparison: Comparison) -> str:
    """Return why the two steps are not known to be the same; empty if they are known to be. Times
    do not matter here. Anything unknown is such a reason.
    """
    head, base = comparison.head, comparison.base
    if not head.on_gpu:
        return "there is no GPU"
    if comparison.files is None:
        return "it is not known which files differ"
    other = [path for path in comparison.files if not path.endswith(_CODE)]
    if other:
        return f"other files than code differ: {other[0]}"
    if loose := (*head.untracked, *base.untracked):  # git does not list them as different
        return f"a module is in no commit: {loose[0]}"
    if head.counts is None or base.counts is None:
        return "nothing was counted"
    return _why_counts_differ(head.counts, base.counts)


def _why_counts_differ(head: Counts, base: Counts) -> str:
    for counts in (head, base):
        identity, profile = counts.identity, counts.profile
        if identity is None or identity.problem or not identity.parts:
            return f"not all of a step is known: {identity.problem if identity else 'no trace'}"
        if profile is None or profile.incomplete or profile.lost_share:
            return "a profile is not whole"
        for rank in counts.parts_by_rank or (profile.parts,):
            idle = mean(rank.idle_us) / mean(rank.step_us)
            if not 0 <= idle <= IDLE_SHARE:
                return f"a GPU is idle for {100 * idle:.1f} % of a step"
        if counts.unstable:
            return f"{min(counts.unstable)} differs from step to step"
    assert head.identity is not None and base.identity is not None
    if parts := list(head.identity.differs_from(base.identity)):
        return f"other {', '.join(parts)}"
    if (head.values, head.detail, head.by_rank) != (base.values, base.detail, base.by_rank):
        return "other counts"
    return ""


def enough(comparison: Comparison) -> int:
    """Return how many pairs of an unchanged step are enough to show that nothing slowed it down:
    MARGIN_SDS standard deviations of their mean fit into the matter margin. 0 if that takes more
    than MOST_ALIKE pairs.
    """
    ratio = MARGIN_SDS * PRIOR.sd_pct / comparison.margins.matter_pct
    needed = math.ceil(ratio**2 - 1e-9)
    return needed if needed <= MOST_ALIKE else 0


def identical(comparison: Comparison) -> bool:
    """Tell whether there are exactly ``enough`` pairs, the steps are the same, and the pairs look
    like pairs of unchanged code.
    """
    just = 0 < comparison.pairs == enough(comparison)
    return just and not why_not_identical(comparison) and not _unusual_in_pairs(comparison)


def not_enough(comparison: Comparison) -> str:
    """Return why a few pairs were not enough on a GPU; empty if they were.

    Also empty if they never are: it is not known which files differ, or a commit is compared with
    itself, and all pairs are wanted.
    """
    few = enough(comparison)
    possible = comparison.files is not None and comparison.head.on_gpu
    if comparison.pairs <= max(1, few) or comparison.same_commit or not possible:
        return ""
    if why := why_not_identical(comparison):
        return why
    if not few:
        return "with this noise a few pairs say nothing"
    head, base = (
        replace(side, launches=side.launches[:few]) for side in (comparison.head, comparison.base)
    )
    return _unusual_in_pairs(replace(comparison, head=head, base=base))


def _unusual_in_pairs(comparison: Comparison) -> str:
    """Return what pairs of unchanged code hardly ever show, and these do; empty if nothing."""
    if comparison.again:
        return "an earlier pair was disturbed"
    pairs = list(zip(comparison.head.launches, comparison.base.launches, strict=False))
    launches = [launch for pair in pairs for launch in pair]
    if not comparison.together or not all(launch.has_times() for launch in launches):
        return "it was not measured in turns"
    if any(out_of_line(*pair) for pair in pairs):
        return "a pair is out of line"
    if not all(map(_ahead, launches)):
        return "the host is hardly ahead of the GPU"
    limit = PAIR_SDS * PRIOR.sd_pct / 100 / math.sqrt(len(pairs))
    if not abs(fmean(comparison.log_ratios())) <= limit:
        return "the step time differs"
    if not all(_rise(*pair) <= RISE_LIMIT for pair in pairs):
        return "the last block is slower"
    if not all(tail_excess(*pair) <= TAIL_LIMIT for pair in pairs):
        return "some steps are slower"
    if not all(untimed_excess(*pair) <= UNTIMED_LIMIT for pair in pairs):
        return "a step between the blocks is slower"
    # The level is that of a single case: with a stricter level more patterns would pass here.
    slower = of_pairs(replace(comparison, alpha=ALPHA), least=1)
    return "steps get slower" if slower else ""


def _ahead(launch: Launch) -> bool:
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
