"""The step that did not change: the same kernels need not be timed until pairs decide.

Where every rank's step is known to be what the other tree's is, and the GPU bounds it, one pair is
enough, or as many as tell something at this noise: they have to look as pairs of unchanged code
look, step by step, or there are pairs as ever. What only the host does (a thread, a sleep, every
n-th step, later on) is in no identity. It costs time only where the GPU waits for it, and then
these pairs have it as any pair would.
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
from stepguard.judge.slow_step_patterns import of_pairs

# A host that needs most of the step for its launches may bound it when it gets slower. It waits for
# room in the queue with more than some 1,000 launches: on H200s it needs 0.09 of a step for
# `forward`, 0.48 for a train step of 1,500 launches, 0.72 with two and four ranks.
HOST_SHARE = 0.8
PAIR_SDS = 2.0  # of the mean of such pairs, that it may be away from zero
# ... and that the matter margin has to be. So at most 31 % of what is slower by that margin, and
# shows in no identity, would pass; one pair is enough up to a sd of 0.2 %.
MARGIN_SDS = 2.5
MOST_ALIKE = 4  # pairs, as by margins that are as wide as their noise
# The ratio of the last blocks above that of the first ones: in 73 pairs of train steps on H200s
# (studies/judge_power) its sd was 0.45 %, the largest 0.96 %; in seven of `forward` 0.8 and 1.1 %.
RISE_LIMIT = 0.02
# By how much the eighth of the steps that HEAD is slowest in may be further from their median than
# the eighth that it is fastest in. Of 212 pairs of launches of unchanged code, paired anew, one is
# beyond it (studies/judge_power).
TAIL, TAIL_LIMIT = 1 / 8, 0.025
# What lies in other files (data, libraries, settings) may steer what a later step does.
_CODE = (".py", ".pyi", ".md", ".rst")


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` where there are just enough pairs of steps that are the same, and look like it."""
    if not identical(comparison):
        return None
    return mean_of_pairs.measured(comparison).say(Status.SAME, Reason.IDENTICAL_STEP)


def unlike(comparison: Comparison) -> str:
    """Return why the two steps are not known to be the same, "" if they are; no time is looked at.

    Anything that is not known makes them unlike.
    """
    head, base = comparison.head, comparison.base
    if not head.on_gpu:
        return "there is no GPU"
    if comparison.files is None:
        return "it is not known which files differ"
    other = [path for path in comparison.files if not path.endswith(_CODE)]
    if other:
        return f"other files than code differ: {other[0]}"
    if loose := (*head.untracked, *base.untracked):  # which git does not list as different
        return f"a module is in no commit: {loose[0]}"
    if head.counts is None or base.counts is None:
        return "nothing was counted"
    return _unlike(head.counts, base.counts)


def _unlike(head: Counts, base: Counts) -> str:
    for counts in (head, base):
        identity, profile = counts.identity, counts.profile
        if identity is None or identity.problem or not identity.parts:
            return f"a step is not known whole: {identity.problem if identity else 'no trace'}"
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
    """Return how many pairs of a step that is the same say that nothing slowed it down: MARGIN_SDS
    of their mean are within the matter margin. 0 where more than MOST_ALIKE would be needed.
    """
    ratio = MARGIN_SDS * PRIOR.sd_pct / comparison.margins.matter_pct
    needed = math.ceil(ratio**2 - 1e-9)
    return needed if needed <= MOST_ALIKE else 0


def identical(comparison: Comparison) -> bool:
    """Tell whether there are just enough pairs, of steps that are the same, and look like it."""
    just = 0 < comparison.pairs == enough(comparison)
    return just and not unlike(comparison) and not _odd(comparison)


def not_enough(comparison: Comparison) -> str:
    """Return why so few pairs were not enough on a GPU, "" where they never are: it is not known
    which files differ, or a commit is beside itself, of which all pairs are wanted.
    """
    few = enough(comparison)
    possible = comparison.files is not None and comparison.head.on_gpu
    if comparison.pairs <= max(1, few) or comparison.same_commit or not possible:
        return ""
    if why := unlike(comparison):
        return why
    if not few:
        return "a few pairs of this noise say nothing"
    head, base = (
        replace(side, launches=side.launches[:few]) for side in (comparison.head, comparison.base)
    )
    return _odd(replace(comparison, head=head, base=base))


def _odd(comparison: Comparison) -> str:
    """Return what the pairs so far show that pairs of unchanged code hardly ever do."""
    if comparison.again:
        return "a pair before it was out of line"
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
    if not all(lopsided(*pair) <= TAIL_LIMIT for pair in pairs):
        return "some steps are slower"
    # At the level of a case alone: a stricter one would let more pass here.
    slower = of_pairs(replace(comparison, alpha=ALPHA), least=1)
    return "steps get slower" if slower else ""


def _ahead(launch: Launch) -> bool:
    """Tell whether the slowest rank's host launches a step well before the GPU is done with it."""
    return all(
        block.enqueue_ms is not None and block.enqueue_ms <= HOST_SHARE * block.mean_ms
        for block in launch.blocks
    )


def _rise(head: Launch, base: Launch) -> float:
    """Return by how much the ratio of the last blocks is above that of the first ones, as a log."""
    first, last = (math.log(head.blocks[i].mean_ms / base.blocks[i].mean_ms) for i in (0, -1))
    return last - first


def lopsided(head: Launch, base: Launch) -> float:
    """Return by how much more the log-ratios of steps of the same place lie above their median than
    below it, at the ends: what slows only some steps down is at one of them, and scatter at both.
    """
    blocks = zip(head.blocks, base.blocks, strict=False)
    steps = (zip(block.step_ms, other.step_ms, strict=False) for block, other in blocks)
    ratios = sorted(math.log(ms / base_ms) for block in steps for ms, base_ms in block)
    if not ratios:
        return math.inf
    count = math.ceil(TAIL * len(ratios))
    return fmean(ratios[-count:]) + fmean(ratios[:count]) - 2 * median(ratios)
