"""The step that did not change: if all kernels are the same, a few pairs are enough.

This rule says `same` if every rank's step is known to be that of the other tree: the identities of
both steps are equal, and the GPU bounds the step. Counters take no part: each is judged by its own
rule. One pair is enough, or a few if the margins are narrow (``enough``). Step by step, these pairs
must look like pairs of unchanged code. If they do not, further ones may; after MOST_ALIKE the other
rules decide. docs/judge.md says what an identity contains, and what it lacks.
"""

import math
from dataclasses import replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts
from stepguard.core.margins import PRIOR
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.unchanged_pairs import unusual, why_not_bound

# The matter margin must be at least so many standard deviations of the pairs' mean. One pair is
# enough for that if its standard deviation is 0.2 % at most. A slowdown that no identity shows, and
# that is as large as the matter margin, then passes with a probability of 32 %.
MARGIN_SDS = 2.5
MOST_ALIKE = 4  # the most pairs of a step that is the same
# Other files (data, libraries, settings) may change what a later step does.
_CODE = (".py", ".pyi", ".md", ".rst")


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` if there are ``enough`` pairs, the steps are the same, and the pairs look like
    pairs of unchanged code.
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
    # git does not list these as different.
    if loose := (*head.untracked, *base.untracked):
        return f"a module is in no commit: {loose[0]}"
    if head.counts is None or base.counts is None:
        return "nothing was counted"
    return _why_steps_differ(head.counts, base.counts)


def _why_steps_differ(head: Counts, base: Counts) -> str:
    for counts in (head, base):
        identity = counts.identity
        if identity is None or identity.problem or not identity.parts:
            return f"not all of a step is known: {identity.problem if identity else 'no trace'}"
        if why := why_not_bound(counts):
            return why
    assert head.identity is not None and base.identity is not None
    parts = list(head.identity.differs_from(base.identity))
    return f"other {', '.join(parts)}" if parts else ""


def enough(comparison: Comparison) -> int:
    """Return how many pairs of an unchanged step are enough to show that nothing slowed it down:
    MARGIN_SDS standard deviations of their mean fit into the matter margin. 0 if that takes more
    than MOST_ALIKE pairs.
    """
    ratio = MARGIN_SDS * PRIOR.sd_pct / comparison.margins.matter_pct
    needed = math.ceil(ratio**2 - 1e-9)
    return needed if needed <= MOST_ALIKE else 0


def identical(comparison: Comparison) -> bool:
    """Tell whether there are ``enough`` pairs, the steps are the same, and the pairs look like
    pairs of unchanged code. If they do not, up to MOST_ALIKE pairs may do so.
    """
    few = 0 < enough(comparison) <= comparison.pairs <= MOST_ALIKE
    return few and not why_not_identical(comparison) and not unusual(comparison)


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
    return unusual(replace(comparison, head=head, base=base))
