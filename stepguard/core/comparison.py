"""An A/B comparison: one case, measured in two trees in pairs on the same machine."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stepguard.core.case import Case
from stepguard.core.device import is_gpu
from stepguard.core.evidence import Evidence, Launch, decode, problems
from stepguard.core.margins import ALPHA, Margins, margins_of
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.text import revision

SCHEMA = 2


@dataclass(frozen=True)
class LaunchPair:
    """A pair: a launch of each side."""

    head: Launch
    base: Launch
    compiled: bool = False  # in a timed block, by one side, what later pairs take from the cache

    @property
    def log_ratio(self) -> float:
        """Return ``log(head / base)`` of the step time."""
        return math.log(self.head.step_ms) - math.log(self.base.step_ms)


@dataclass(frozen=True)
class Comparison:
    """HEAD's tree and the other one, measured.

    Launch ``i`` of ``head`` and launch ``i`` of ``base`` ran alternately: they are a pair.
    """

    against: str  # the other revision, as it was asked for
    head: Evidence
    base: Evidence
    alpha: float = ALPHA  # the chance of SLOWER where nothing changed, over all analyses
    together: bool = True  # both groups alive, one of them parked; else one after the other
    out_of_time: bool = False  # there were to be more pairs, and the budget was spent
    # Whose blocks were out of line, so that others were measured in their place: for the record.
    again: tuple[LaunchPair, ...] = ()
    glance: bool = False  # at a CPU's time, which the case does not gate: only a slowdown counts
    files: tuple[str, ...] | None = None  # in which HEAD's tree differs; None: not known
    fresh: bool = False  # measured although an earlier run said SLOWER: that was asked for
    stays: str = ""  # the day and time of the run that measured it, where its SLOWER stays
    schema: int = SCHEMA

    @property
    def margins(self) -> Margins:
        """Return the margins that judge: the case's own."""
        return margins_of(self.head.margins_pct, self.head.case["device"])

    @property
    def named(self) -> str:
        """Return the other revision as a reader knows it: "main (4f2a91c0d3e7)"."""
        return revision(self.against, self.base.commit)

    @property
    def same_commit(self) -> bool:
        """Tell whether both sides are one commit: then the truth is zero, and the rest noise."""
        # The base is a checkout of its own and never dirty.
        return self.head.commit == self.base.commit and not self.head.dirty

    @property
    def pairs(self) -> int:
        """Return how many pairs are complete."""
        return min(len(self.head.launches), len(self.base.launches))

    def log_ratios(self) -> list[float]:
        """Return ``log(head / base)`` of the step time, a value a pair."""
        both = zip(self.head.launches, self.base.launches, strict=False)
        return [LaunchPair(*launches).log_ratio for launches in both]


def judged(case: Case) -> tuple[str, ...]:
    """Return the gates that another revision is judged by: the case's counters, and the step time.

    A difference of two variants of the step would cost as much again, and is in the step's time,
    which is judged in its place.
    """
    times = (JUDGED_TIME,) if gates_times(case) or glances(case) else ()
    return times + tuple(name for name in case.gates if METRICS[name].kind == "counter")


def glances(case: Case) -> bool:
    """Tell whether the case is on a CPU and gates no time. Beside another revision its step time is
    judged all the same, but only for a slowdown that is beyond doubt.
    """
    return not is_gpu(case.device) and not gates_times(case)


def gates_times(case: Case) -> bool:
    """Tell whether a time, or a difference of times, is among a case's gates."""
    return any(METRICS[name].kind in ("time", "difference") for name in case.gates)


def from_json(data: bytes, source: str) -> Comparison:
    """Read what to_json wrote. Raises ValueError, naming ``source``, for anything else."""
    return decode(data, Comparison, SCHEMA, source, _problems)


def _problems(comparison: Comparison) -> Iterator[str]:
    """Yield what is wrong with a comparison although every field has its type."""
    head, base = comparison.head, comparison.base
    for side, evidence in (("head", head), ("base", base)):
        yield from (f"{side}: {problem}" for problem in problems(evidence))
    if not 0 < comparison.alpha <= ALPHA:
        yield f"its level is {comparison.alpha}, not more than 0 and at most {ALPHA}"
    if (head.case_id, head.case) != (base.case_id, base.case):
        yield f"{head.case_id} is compared with another case, {base.case_id}"
