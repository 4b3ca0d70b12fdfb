"""A permission: one metric of one case may be worse. Somebody answers for it and gives a reason.

There are two kinds:

* A *waiver* is an entry of ``baselines/waivers.json``. It has a size and a last day.
* A *trailer* is a line of a commit's message, ``Perf-Expect: CASE METRIC: reason``. It has no size.
  It counts only in a comparison of a range that holds the commit.
"""

from datetime import date
from enum import StrEnum

import msgspec

KEY = "Perf-Expect"
FORM = f"{KEY}: CASE METRIC: reason"


class Permission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Permission for one metric of one case to be worse: how much, until when, why, and by whom.

    A waiver has ``expires`` and exactly one of ``limit_pct`` and ``value``. A trailer has
    ``commit`` and none of these three.
    """

    case: str
    metric: str
    reason: str
    who: str  # the person who answers for it: named in a waiver, the author of a trailer's commit
    # For a time: at most so many percent slower. For a difference: at most so many points of a step
    # more.
    limit_pct: float | None = None
    # For a counter: the most that it may be. A counter of work must be exactly this.
    value: int | None = None
    expires: date | None = None  # the last day on which it applies
    commit: str = ""  # the full hash of the commit whose message has the trailer

    @property
    def is_trailer(self) -> bool:
        """Tell whether it is a trailer of a commit, not a waiver."""
        return bool(self.commit)


class Effect(StrEnum):
    """The effect of a permission in one run."""

    ALLOWED = "ALLOWED"  # the metric fails, and the case passes nevertheless
    NOT_APPLIED = "NOT_APPLIED"  # the case as a whole was not measured, not compared or not decided
    NOT_GATED = "NOT_GATED"  # the case does not gate the metric
    NOT_NEEDED = "NOT_NEEDED"  # the metric does not fail
    # Only waivers: a trailer has neither a last day nor a size.
    EXPIRED = "EXPIRED"  # its last day is over
    TOO_WIDE = "TOO_WIDE"  # a value so large limits nothing: the metric fails
    EXCEEDED = "EXCEEDED"  # the metric is worse than allowed, or a counter of work is another


class PermissionOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A permission of a case, and its effect."""

    permission: Permission
    effect: Effect
