"""The step that did not change: if all kernels are the same, a few pairs are enough.

This rule says `same` if every rank's step is known to be that of the other tree. Either no process
opened a file that differs between the trees. Or the identities of both steps are equal, and the GPU
bounds the step. Counters take no part: each is judged by its own rule. One pair is enough, or a few
if the margins are narrow (``enough``). Step by step, these pairs must look like pairs of unchanged
code. If they do not, further ones may; after MOST_ALIKE the other rules decide. docs/judge.md says
what an identity contains, and what it lacks.
"""

import math
from dataclasses import replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Counts
from stepguard.core.margins import PRIOR
from stepguard.core.metrics import METRICS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.unchanged_pairs import shown_sd_pct, unusual, why_not_bound

# The matter margin must be at least so many standard deviations of the pairs' mean. One pair is
# enough for that if its standard deviation is 0.2 % at most. A slowdown that no identity shows, and
# that is as large as the matter margin, then passes with a probability of 32 %.
MARGIN_SDS = 2.5
# If no file that differs was opened, the pairs' mean may be so many standard deviations from zero,
# as large as their blocks show them. A choice: only a gross difference speaks against the files. Of
# slowdowns that are as large as the matter margin 70 % pass, and 99 % if pairs scatter by 0.45 %.
UNREAD_SDS = 3.0
MOST_ALIKE = 4  # the most pairs of a step that is the same
# Other files (data, libraries, settings) may change what a later step does.
_CODE = (".py", ".pyi", ".md", ".rst")


def rule(comparison: Comparison) -> Decision | None:
    """Say `same` if there are ``enough`` pairs, the steps are the same, and the pairs look like
    pairs of unchanged code.
    """
    if not identical(comparison):
        return None
    reason = Reason.UNREAD_FILES if unread(comparison) else Reason.IDENTICAL_STEP
    return mean_of_pairs.measured(comparison).say(Status.SAME, reason)


def why_not_identical(comparison: Comparison) -> str:
    """Return why the two steps are not known to be the same; empty if they are known to be. Times
    do not matter here. Anything unknown is such a reason.
    """
    head, base = comparison.head, comparison.base
    if not head.on_gpu:
        return "there is no GPU"
    if comparison.files is None:
        return "it is not known which files differ"
    if unread(comparison):
        return ""
    other = [path for path in comparison.files if not path.endswith(_CODE)]
    if other:
        return f"other files than code differ: {other[0]}"
    if loose := _loose(comparison):
        return f"a module is in no commit: {loose[0]}"
    if head.counts is None or base.counts is None:
        return "nothing was counted"
    return _why_steps_differ(head.counts, base.counts)


def unread(comparison: Comparison) -> bool:
    """Tell whether no process opened a file that differs between the trees while the launches of
    either ran. Then both steps run the same code on the same data.
    """
    sides = (comparison.head, comparison.base)
    return not _loose(comparison) and all(side.changed_read == () for side in sides)


def without_counters(comparison: Comparison) -> Comparison:
    """Return the comparison without gated counters if nothing was counted because no file that
    differs was opened. The same code on the same data costs the same.
    """
    sides = comparison.head, comparison.base
    if all(side.counts for side in sides) or not unread(comparison):
        return comparison
    head, base = (
        replace(side, gates=tuple(gate for gate in side.gates if METRICS[gate].kind != "counter"))
        for side in sides
    )
    return replace(comparison, head=head, base=base)


def _loose(comparison: Comparison) -> tuple[str, ...]:
    """Return the modules that git does not list as different, since they are in no commit."""
    return (*comparison.head.untracked, *comparison.base.untracked)


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
    return few and not why_not_identical(comparison) and not _unusual(comparison)


def _unusual(comparison: Comparison) -> str:
    """Return what these pairs show and pairs of an unchanged step hardly ever do. Where the base's
    own code ran, they may scatter as much as their blocks show. Other code could make its blocks
    scatter, and hide a slowdown so.
    """
    if not unread(comparison):
        return unusual(comparison)
    shown_pct = shown_sd_pct(comparison.paired_launches())
    return unusual(comparison, limit_pct=UNREAD_SDS * shown_pct)


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
    return _unusual(replace(comparison, head=head, base=base))
