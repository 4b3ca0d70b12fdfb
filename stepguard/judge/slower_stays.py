"""SLOWER stays: if pairs said SLOWER, no pairs are measured again until something changes. Pure.

SLOWER holds for the same two trees on the same machine, with the same software and environment.
Otherwise a run could be repeated until its pairs pass by chance (docs/judge.md).
"""

from collections.abc import Sequence
from dataclasses import replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.status import Status
from stepguard.judge.comparable import changed, comparable, conditions_of
from stepguard.judge.judge_pairs import refusal
from stepguard.judge.rules import decision


def says_slower(comparison: Comparison) -> bool:
    """Tell whether these pairs can be compared and say SLOWER."""
    decided = decision(comparison)
    slower = decided is not None and decided.status is Status.SLOWER
    return slower and refusal(comparison) is None


def still_slower(earlier: Sequence[Comparison], now: Evidence, base: str) -> Comparison | None:
    """Return the comparison of an earlier run whose SLOWER still holds, with this run's commits.
    None if pairs have to be measured. ``now`` is HEAD's evidence of this run, ``base`` the other
    commit.

    ``earlier`` are the comparisons of the same two trees, newest first. If one was measured on
    request (``fresh``), those before it do not count.
    """
    for kept in earlier:
        if says_slower(kept) and not changed_condition(kept, now):
            head = replace(kept.head, commit=now.commit, date=now.date, command=now.command)
            since = kept.stays or kept.head.date
            return replace(kept, head=head, base=replace(kept.base, commit=base), stays=since)
        if kept.fresh:
            return None
    return None


def changed_condition(earlier: Comparison, now: Evidence) -> str:
    """Return the first condition that differs between an earlier comparison and HEAD's present
    evidence, or why that is unknown; empty if all are equal.
    """
    for side in (now, earlier.head, earlier.base):
        if side.tree_changed:
            return "its tree changed while it was measured"
        if loose := (*side.dirty, *side.untracked):
            return f"its tree has files that are in no commit, {loose[0]}"
        if side.fingerprint is None:
            return "its machine is not known"
    return changed(comparable(conditions_of(earlier.head), conditions_of(now))[:1]).text
