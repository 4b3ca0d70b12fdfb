"""Pairs of an earlier run of the same commits: a retry is no new draw. Pure.

Who repeats a red run until it is green draws pairs anew each time, and one draw in twenty may miss
a slowdown of the matter margin. So a run of the same two commits on the same machine goes on from
the pairs that are there: what they decided stays, what they left undecided takes more pairs, and an
interim analysis is made once (`pairs.decide`). What a run took back as not proven among all that it
tried takes more pairs, too: those that chose the claim cannot prove it alone.

What passes by earlier pairs alone takes one more pair: what changed since then may be in no
fingerprint. Where that one is slower than they are, they do not count.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import scipy  # as in pairs.py

from stepguard.comparison import Comparison, LaunchPair
from stepguard.evidence import Launch
from stepguard.judge.ab.decision import by_plan, decision, problem
from stepguard.judge.ab.identical import identical
from stepguard.judge.ab.pairs import bounds
from stepguard.judge.ab.sequential_plan import SEQUENTIAL_PLAN
from stepguard.judge.conditions import first_change
from stepguard.judge.series import of_pairs
from stepguard.text import listed
from stepguard.verdict import Status

MACHINE = ("device_uuid", "device_name", "driver", "torch", "python", "cpu_threads")
# At which a fresh pair is called slower than the earlier ones: 0.42 % above the mean of four pairs,
# 0.35 % above that of 24, where they scatter as the prior says. To be wrong costs a comparison that
# begins anew, and no verdict.
CHECK_LEVEL = 0.05


@dataclass(frozen=True)
class EarlierPairs:
    """What a run goes on from; nothing at first."""

    head: tuple[Launch, ...] = ()
    base: tuple[Launch, ...] = ()
    again: tuple[LaunchPair, ...] = ()
    together: bool = True
    spent: tuple[int, ...] = ()  # pairs at which an earlier run was judged since its time was up
    status: Status = Status.INCONCLUSIVE  # what the pairs say
    out_of_time: bool = False  # they say it since their run's time was up
    refused: str = ""  # why there are pairs of these commits that do not count

    @property
    def decided(self) -> bool:
        """Tell whether no further pair may change what they say."""
        return self.status is not Status.INCONCLUSIVE

    @property
    def passes(self) -> bool:
        """Tell whether they say that the step is not slower."""
        return self.status in (Status.SAME, Status.FASTER)

    @property
    def pairs(self) -> int:
        """Return how many there are."""
        return len(self.head)


def pooled(earlier: Sequence[Comparison], now: Comparison) -> EarlierPairs:
    """Return what ``now``, of which no pair is measured yet, goes on from: of the earlier runs,
    newest first, the first that it can, since that holds the pairs of those before it. Of two that
    ran at the same time neither does: one that says SLOWER goes before all others. The few pairs of
    a step that was the same are measured again: one of them costs as much as a check.
    """
    refused = [_unlike(one, now) for one in earlier]
    alike = [one for one, why in zip(earlier, refused, strict=True) if not why]
    usable = [_from(one) for one in alike if not identical(one)]
    if not usable:
        return EarlierPairs(refused=refused[0] if refused else "")
    return next((one for one in usable if one.status is Status.SLOWER), usable[0])


def contradicts(fresh: LaunchPair, before: Comparison) -> str:
    """Return how much slower a ``fresh`` pair is than the pairs ``before`` it are; empty if it may
    well be one of them (a one-sided prediction interval of a moderated t).
    """
    if not (fresh.head.has_times() and fresh.base.has_times()):
        return "a fresh pair has no times"
    if problem(before) is None and (found := problem(_with(fresh, before))):
        return f"a fresh pair is {found.status.value}: {found.reason.name}"
    known = bounds(before.log_ratios())
    reach = float(scipy.special.stdtrit(known.degrees, 1 - CHECK_LEVEL)) * known.sd
    if fresh.log_ratio <= known.mean + reach * math.sqrt(1 + 1 / known.pairs):
        return ""
    now_pct, then_pct = (100 * math.expm1(one) for one in (fresh.log_ratio, known.mean))
    return f"HEAD is {now_pct:+.2f} % in a fresh pair and was {then_pct:+.2f} % in those"


def _with(fresh: LaunchPair, before: Comparison) -> Comparison:
    head = replace(before.head, launches=(*before.head.launches, fresh.head))
    base = replace(before.base, launches=(*before.base.launches, fresh.base))
    return replace(before, head=head, base=base)


def says_slower(earlier: Sequence[Comparison]) -> bool:
    """Tell whether one of these runs said that the step is slower, and did not take it back."""
    return any(decision(one) and _from(one).status is Status.SLOWER for one in earlier)


def _from(earlier: Comparison) -> EarlierPairs:
    status = Status.SLOWER if of_pairs(earlier) else by_plan(earlier).status
    status = Status.INCONCLUSIVE if earlier.unproven else status
    decided, spent = status is not Status.INCONCLUSIVE, earlier.spent
    # Fewer pairs than the first analysis has decide nothing, so that nothing was spent.
    ended = earlier.out_of_time and earlier.pairs >= SEQUENTIAL_PLAN[0].pairs
    if earlier.unproven or ended and not decided:
        spent = (*spent, earlier.pairs)
    return EarlierPairs(
        head=earlier.head.launches,
        base=earlier.base.launches,
        again=earlier.again,
        together=earlier.together,
        spent=spent,
        status=status,
        out_of_time=earlier.out_of_time and decided,
    )


def _unlike(earlier: Comparison, now: Comparison) -> str:
    """Return why the earlier pairs are not of what is measured now; empty if they are."""
    for side, then in ((now.head, earlier.head), (now.base, earlier.base)):
        for one, when in ((then, "had"), (side, "has")):
            if one.tree_changed:
                return "its tree changed while it was measured"
            if loose := (*one.dirty, *one.untracked):
                return f"its tree {when} files that are in no commit, {loose[0]}"
            if one.fingerprint is None:
                return "its machine is not known"
    if differs := first_change(zip(_conditions(earlier), _conditions(now), strict=True)):
        return differs
    if decision(earlier) is None or problem(earlier) is not None:
        return "it failed, or timed no pair"
    return ""


def _conditions(one: Comparison) -> Iterator[Mapping[str, Any]]:
    """Yield all that has to be equal for pairs to be of one comparison."""
    for side in (one.head, one.base):
        yield side.case
        yield {"gates": listed(side.gates, len(side.gates))}
        yield {name: getattr(side.fingerprint, name) for name in MACHINE}
        # Of the environment what steers; other variables name folders, some a fresh one each run.
        yield side.software_key()
    yield asdict(one.margins)
    yield {"glance": one.glance}
    yield {"files": "unknown" if one.files is None else listed(one.files, len(one.files))}
