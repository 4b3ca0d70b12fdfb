"""What is asked of the judge: evidence of a case beside its recordings, or an A/B comparison, for
which the case was measured in pairs in two trees on one machine.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from stepguard.core.case import Case
from stepguard.core.evidence import Evidence, Launch, decode, problems
from stepguard.core.margins import ALPHA, Margins, margins_of
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.permission import Permission
from stepguard.core.recording import Entry
from stepguard.core.text import revision

SCHEMA = 2


@dataclass(frozen=True)
class LaunchPair:
    """A pair: one launch of each side."""

    head: Launch
    base: Launch
    # A side compiled in a timed block. Later pairs take the compiled code from the cache.
    compiled: bool = False

    @property
    def log_ratio(self) -> float:
        """Return ``log(head / base)`` of the step time."""
        return math.log(self.head.step_ms) - math.log(self.base.step_ms)


@dataclass(frozen=True)
class Comparison:
    """HEAD's tree and the other tree, measured. Launches of one number ran in turns: a pair."""

    against: str  # the other revision, as it was asked for
    head: Evidence
    base: Evidence
    alpha: float = ALPHA  # the chance of SLOWER although nothing changed, over all analyses
    # True: both launches of a pair were alive, and one was parked while the other ran. False: one
    # ran after the other.
    together: bool = True
    out_of_time: bool = False  # more pairs were planned, but the budget was used up
    # Disturbed pairs: their blocks are out of line, or a side compiled. Other pairs replaced them.
    # They are kept for the record.
    again: tuple[LaunchPair, ...] = ()
    python: str = ""  # the other side's interpreter, as it was asked for; empty: HEAD's own
    schema: int = SCHEMA

    @property
    def margins(self) -> Margins:
        """Return the case's margins, which judge the pairs."""
        return margins_of(self.head.margins_pct, self.head.case["device"])

    @property
    def named(self) -> str:
        """Return the other revision as a reader knows it: "main (4f2a91c0d3e7)"."""
        return revision(self.against, self.base.commit)

    @property
    def same_commit(self) -> bool:
        """Tell whether both sides are one commit: then all that differs is noise."""
        # The base is a checkout of its own and never dirty.
        same = self.head.commit == self.base.commit and not self.head.dirty
        return same and not self.python

    @property
    def pairs(self) -> int:
        """Return how many pairs are complete."""
        return min(len(self.head.launches), len(self.base.launches))

    def log_ratios(self) -> list[float]:
        """Return ``log(head / base)`` of the step time, a value a pair."""
        return [LaunchPair(*launches).log_ratio for launches in self.paired_launches()]

    def paired_launches(self) -> list[tuple[Launch, Launch]]:
        """Return each complete pair's launches, of HEAD and of the base."""
        return list(zip(self.head.launches, self.base.launches, strict=False))


@dataclass(frozen=True)
class Answer:
    """What a run learned about an alarm: pairs of HEAD and a commit, or why there are none."""

    commit: str = ""  # the commit, and how it was chosen
    pairs: Comparison | None = None
    own: bool = True  # whether it is the recording's own commit, and not a substitute
    same_code: bool = False  # HEAD is that commit: only the machine can differ
    failed: str = ""  # why there are no pairs


@dataclass(frozen=True)
class Question:
    """A case so far, all that the judge may look at. ``now`` is compared with recordings. With
    ``pairs`` another tree judges, and ``now`` is None.
    """

    now: Evidence | None = None
    entry: Entry | None = None  # the case's baseline; None if it has none
    path: str = ""  # the file that should have it
    own: Entry | None = None  # the tree's own baseline, if another branch's judges
    pairs: Comparison | None = None
    answer: Answer | None = None  # to an alarm of recordings
    permissions: tuple[Permission, ...] = ()
    today: date = date.min
    # All that is planned is wanted: the run is recorded, or a commit is compared with itself.
    everything: bool = False


def other_side(rev: str, python: str) -> str:
    """Return what a case is compared with, as it was asked for: a revision, an interpreter."""
    return f"{rev or 'this tree'} under {python}" if python else rev


def judged(case: Case) -> tuple[str, ...]:
    """Return what pairs judge: gated counters, and the step time for all times and differences."""
    times = (JUDGED_TIME,) if gates_times(case) else ()
    return times + tuple(name for name in case.gates if METRICS[name].kind == "counter")


def gates_times(case: Case) -> bool:
    """Tell whether the case gates a time, or a difference of times."""
    return any(METRICS[name].kind in ("time", "difference") for name in case.gates)


def from_json(data: bytes, source: str) -> Comparison:
    """Read what to_json wrote. Raises ValueError, naming ``source``, for anything else."""
    return decode(data, Comparison, SCHEMA, source, _problems)


def _problems(comparison: Comparison) -> Iterator[str]:
    head, base = comparison.head, comparison.base
    for side, evidence in (("head", head), ("base", base)):
        yield from (f"{side}: {problem}" for problem in problems(evidence))
    if not 0 < comparison.alpha <= ALPHA:
        yield f"its level is {comparison.alpha}, not more than 0 and at most {ALPHA}"
    if (head.case_id, head.case) != (base.case_id, base.case):
        yield f"{head.case_id} is compared with another case, {base.case_id}"
