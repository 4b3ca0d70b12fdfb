"""A waiver: a known regression that passes for a while, up to a size, visibly."""

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated

import msgspec

from stepguard.core.recording import Count, Text

MAX_PCT = 50


class Waiver(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One metric of one case, passed up to a size and a day."""

    case: Text
    metric: Text
    # A time: at most so many percent slower. A difference: so many points of a step above the last.
    limit_pct: Annotated[float, msgspec.Meta(gt=0, le=MAX_PCT)] | None = None
    # A counter: the most it may be; one of work has to be exactly this.
    value: Count | None = None
    reason: Text
    expires: date  # the last day on which it applies
    who: Text


class WaiverEffect(Enum):
    """The effect of a waiver in one run."""

    WAIVED = "the metric fails and passes"
    NOT_APPLIED = "the case as a whole was not measured, compared or decided"
    NOT_GATED = "the case does not gate the metric"
    NOT_NEEDED = "the metric does not fail"
    EXPIRED = "its last day is over"
    TOO_WIDE = "a counter's value is no limit beside what is recorded"
    EXCEEDED = "the metric is further off than is waived"
    OTHER_WORK = "a counter of work is not exactly what is waived"


@dataclass(frozen=True)
class WaiverOutcome:
    """A waiver of a case and what it did there."""

    waiver: Waiver
    effect: WaiverEffect
