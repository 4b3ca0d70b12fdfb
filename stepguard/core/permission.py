"""A permission, or waiver: one metric of one case may be worse, up to a size and until a day.
Somebody answers for it and gives a reason. It is an entry of ``baselines/waivers.json``.
"""

from datetime import date
from enum import StrEnum

from stepguard.core.strict_json import DocumentPart


class Permission(DocumentPart, frozen=True, kw_only=True):
    """Permission for one metric to be worse. It has one of ``limit_pct`` and ``value``."""

    case: str
    metric: str
    reason: str
    who: str  # the person who answers for it
    # For a time: at most so many percent slower. For a difference: at most so many points of a step
    # more.
    limit_pct: float | None = None
    # For a counter: the most that it may be. A counter of work must be exactly this.
    value: int | None = None
    expires: date | None = None  # the last day on which it applies
    # The full hash of the commit, if the measured change itself adds the waiver.
    commit: str = ""


class Effect(StrEnum):
    """The effect of a permission in one run."""

    ALLOWED = "ALLOWED"  # the metric fails, and the case passes nevertheless
    NOT_APPLIED = "NOT_APPLIED"  # the case or the metric was not measured, compared or decided
    NOT_GATED = "NOT_GATED"  # the case does not gate the metric
    NOT_NEEDED = "NOT_NEEDED"  # the metric does not fail
    EXPIRED = "EXPIRED"  # its last day is over
    TOO_WIDE = "TOO_WIDE"  # a value so large limits nothing: the metric fails
    EXCEEDED = "EXCEEDED"  # the metric is worse than allowed, or a counter of work is another


class PermissionOutcome(DocumentPart, frozen=True):
    """A permission of a case, and its effect."""

    permission: Permission
    effect: Effect
