"""A permission: one metric of one case may be worse, since somebody says so and why.

It is written in one of two places:

* A *waiver* is an entry of ``baselines/waivers.json``. It has a size and a last day.
* A *trailer* is a line of a commit's message, ``Perf-Expect: CASE METRIC: reason``. It has no size.
  It counts in a comparison of a range that holds the commit, and nowhere else.
"""

from datetime import date
from enum import StrEnum

import msgspec

KEY = "Perf-Expect"
FORM = f"{KEY}: CASE METRIC: reason"


class Permission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One metric of one case that may be worse: how much, until when, why, and who says so.

    A waiver has ``expires`` and exactly one of ``limit_pct`` and ``value``; a trailer has
    ``commit`` and none of the three.
    """

    case: str
    metric: str
    reason: str
    who: str  # answers for it: a waiver's person, a commit's author
    # A time: at most so many percent slower. A difference: so many points of a step above the last.
    limit_pct: float | None = None
    # A counter: the most it may be; one of work has to be exactly this.
    value: int | None = None
    expires: date | None = None  # the last day on which it applies
    commit: str = ""  # in full, whose message has the trailer

    @property
    def is_trailer(self) -> bool:
        """Tell whether it is in a commit's message, and not in the file of waivers."""
        return bool(self.commit)


class Effect(StrEnum):
    """The effect of a permission in one run."""

    ALLOWED = "ALLOWED"  # the metric fails, and the case passes all the same
    NOT_APPLIED = "NOT_APPLIED"  # the case as a whole was not measured, compared or decided
    NOT_GATED = "NOT_GATED"  # by the case
    NOT_NEEDED = "NOT_NEEDED"  # the metric does not fail
    # Of waivers alone: a trailer has neither a day nor a size.
    EXPIRED = "EXPIRED"  # its last day is over
    TOO_WIDE = "TOO_WIDE"  # a counter's value is no limit beside what is recorded
    EXCEEDED = "EXCEEDED"  # the metric is further off than is allowed, or is other work


class PermissionOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A permission of a case, and what it did there."""

    permission: Permission
    effect: Effect
