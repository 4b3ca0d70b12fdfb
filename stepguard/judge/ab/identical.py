"""The step that did not change: the same kernels need not be timed until pairs decide.

Where every rank's step is known to be what the other tree's is, and the GPU bounds it, one pair is
enough: it has to look as pairs of unchanged code look, step by step, or there are pairs as ever.
What only the host does (a thread, a sleep, every n-th step, later on) is in no identity. It costs
time only where the GPU waits for it, and then that pair has it as any pair would.
"""

import math
from dataclasses import replace
from statistics import fmean, median

from stepguard.comparison import Comparison
from stepguard.evidence import Counts, Launch
from stepguard.judge.series import of_pairs
from stepguard.profile import mean

# A host that needs most of the step for its launches may bound it when it gets slower. It waits for
# room in the queue with more than some 1,000 launches: on H200s it needs 0.09 of a step for
# `forward`, 0.48 for a train step of 1,500 launches, 0.72 with two and four ranks.
HOST_SHARE = 0.8
# ... and then its GPU is idle: 1.0 and 1.2 % of these steps are gaps between queued kernels.
IDLE_SHARE = 0.03
PAIR_SDS = 2.0  # of pairs of one machine, that the sanity pair may be away from zero
# The ratio of the last blocks above that of the first ones: in 73 pairs of train steps on H200s
# (studies/judge_power) its sd was 0.45 %, the largest 0.96 %; in seven of `forward` 0.8 and 1.1 %.
RISE_LIMIT = 0.02
# By how much the eighth of the steps that HEAD is slowest in may be further from their median than
# the eighth that it is fastest in. Of 212 pairs of launches of unchanged code, paired anew, one is
# beyond it (studies/judge_power).
TAIL, TAIL_LIMIT = 1 / 8, 0.025
# What lies in other files (data, libraries, settings) may steer what a later step does.
_CODE = (".py", ".pyi", ".md", ".rst")


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
        idle = mean(profile.parts.idle_us) / mean(profile.parts.step_us)
        if not 0 <= idle <= IDLE_SHARE:
            return f"the GPU is idle for {100 * idle:.1f} % of a step"
        if counts.unstable:
            return f"{min(counts.unstable)} differs from step to step"
    assert head.identity is not None and base.identity is not None
    if parts := list(head.identity.differs_from(base.identity)):
        return f"other {', '.join(parts)}"
    if (head.values, head.detail, head.by_rank) != (base.values, base.detail, base.by_rank):
        return "other counts"
    return ""


def identical(comparison: Comparison) -> bool:
    """Tell whether one pair is all there is, of steps that are the same, and looks like it."""
    return comparison.pairs == 1 and not unlike(comparison) and not _odd(comparison)


def not_enough(comparison: Comparison) -> str:
    """Return why one pair was not enough on a GPU, "" where it never is: it is not known which
    files differ, or a commit is beside itself, of which all pairs are wanted.
    """
    possible = comparison.files is not None and comparison.head.on_gpu
    if comparison.pairs < 2 or comparison.same_commit or not possible:
        return ""
    if why := unlike(comparison):
        return why
    head, base = (
        replace(side, launches=side.launches[:1]) for side in (comparison.head, comparison.base)
    )
    return _odd(replace(comparison, head=head, base=base))


def _odd(comparison: Comparison) -> str:
    """Return what the pairs so far show that pairs of unchanged code hardly ever do."""
    if comparison.again:
        return "a pair before it was out of line"
    head, base = comparison.head.launches[0], comparison.base.launches[0]
    if not comparison.together or not (head.has_times() and base.has_times()):
        return "it was not measured in turns"
    if any(not _ahead(launch) for launch in (head, base)):
        return "the host is hardly ahead of the GPU"
    limit = PAIR_SDS * comparison.prior.sd_pct / 100
    if limit > comparison.margins.matter:
        return "one pair of this noise says nothing"
    if not abs(comparison.log_ratios()[0]) <= limit:
        return "the step time differs"
    if not _rise(head, base) <= RISE_LIMIT:
        return "the last block is slower"
    if not lopsided(head, base) <= TAIL_LIMIT:
        return "some steps are slower"
    return "steps get slower" if of_pairs(comparison, least=1) else ""


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
    steps = (zip(one.step_ms, other.step_ms, strict=False) for one, other in blocks)
    ratios = sorted(math.log(ms / base_ms) for block in steps for ms, base_ms in block)
    if not ratios:
        return math.inf
    count = math.ceil(TAIL * len(ratios))
    return fmean(ratios[-count:]) + fmean(ratios[:count]) - 2 * median(ratios)
