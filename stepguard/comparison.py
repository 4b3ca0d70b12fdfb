"""A comparison: one case, measured in two trees that took turns on the same machine."""

import math
from dataclasses import dataclass, field

import msgspec

from stepguard.case import Case
from stepguard.evidence import Evidence
from stepguard.margins import Margins, Prior
from stepguard.metrics import METRICS

SCHEMA = 1
JUDGED_TIME = "step_ms"  # the median is shown: what costs time moves the mean, with less noise


@dataclass(frozen=True)
class Comparison:
    """What was measured of HEAD's tree and of the other one, and by which margins it is judged.

    Launch ``i`` of ``head`` and launch ``i`` of ``base`` took turns: they are a pair.
    """

    against: str  # the other revision, as it was asked for
    head: Evidence
    base: Evidence
    margins: Margins = field(default_factory=Margins)
    prior: Prior = field(default_factory=Prior)
    why: str = ""  # those margins and that prior
    together: bool = True  # both groups alive, one of them parked; else one after the other
    out_of_time: bool = False  # there were to be more pairs, and the budget was spent
    wall_s: float = 0.0
    schema: int = SCHEMA

    @property
    def pairs(self) -> int:
        """How many pairs are complete."""
        return min(len(self.head.launches), len(self.base.launches))

    def log_ratios(self, name: str = JUDGED_TIME) -> list[float]:
        """``log(head / base)`` of a time, a value a pair."""
        both = zip(self.head.launches, self.base.launches, strict=False)
        return [
            math.log(getattr(head, name)) - math.log(getattr(base, name)) for head, base in both
        ]


def judged(case: Case) -> tuple[str, ...]:
    """Which of the case's gates another revision is judged by: its counters, and the mean step.

    A difference of two ways to run the step would cost as much again, and is in the step's time,
    which is judged in its place.
    """
    kinds = {name: METRICS[name].kind for name in case.gates}
    times = (JUDGED_TIME,) if {"time", "difference"} & set(kinds.values()) else ()
    return times + tuple(name for name, kind in kinds.items() if kind == "counter")


def to_json(comparison: Comparison) -> bytes:
    """As a file holds it."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=1)


def from_json(data: bytes, source: str) -> Comparison:
    """Raises ValueError, with the place in ``source``, for anything that is not a comparison."""
    try:
        found = msgspec.json.decode(data, type=Comparison)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{source}: no comparison: {error}") from None
    if found.schema != SCHEMA:
        raise ValueError(f"{source}: schema {found.schema}, this version reads {SCHEMA}")
    return found
