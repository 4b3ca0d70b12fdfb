"""What the rules find of a case, and the verdict that is made of it: once, and of nothing else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec

from stepguard.core.explanation import Explanation
from stepguard.core.permission import Permission, PermissionOutcome
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Straggler, Verdict, worst_of
from stepguard.judge.permission_rules import permitted
from stepguard.judge.soundness import Refusal


@dataclass(frozen=True)
class Findings:
    """All that is found of a case, before permissions: its metrics, or why it has no comparison."""

    case_id: str
    metrics: tuple[MetricVerdict, ...] = ()
    whole: Refusal | None = None
    sound: bool = True  # nothing of the evidence is missing or undecided
    recordings: int = 0
    against: str = ""
    p_value: float | None = None
    explanation: Explanation | None = None
    straggler: Straggler | None = None
    libraries: str = ""  # that are others than the recording's


@dataclass(frozen=True)
class Permits:
    """The permissions of one case on one day."""

    permissions: tuple[Permission, ...] = ()
    today: date = date.min

    @classmethod
    def of(cls, found: Findings, permissions: Iterable[Permission], today: date) -> "Permits":
        """Return those that apply to a case. Trailers count beside another revision alone."""
        mine = (one for one in permissions if one.case == found.case_id)
        return cls(tuple(one for one in mine if found.against or not one.is_trailer), today)

    def apply(
        self, found: Findings
    ) -> tuple[tuple[MetricVerdict, ...], tuple[PermissionOutcome, ...]]:
        """Return the metrics under these permissions, and what each of them did."""
        if not self.permissions:
            return found.metrics, ()
        whole = found.whole is not None
        # A counter that moved decides although others are unknown: a waiver of it would pass the
        # case undecided.
        unsound = whole or not found.sound
        return permitted(found.metrics, self.permissions, whole, unsound, self.today)

    def covers(self, found: Findings, metric: MetricVerdict) -> bool:
        """Tell whether a waiver lets a metric pass as it is."""
        only = Findings(found.case_id, (metric,), found.whole, found.sound)
        return any(one.waived_until for one in self.apply(only)[0])


NO_PERMITS = Permits()


def verdict_of(found: Findings, permits: Permits = NO_PERMITS, **marks: Any) -> Verdict:
    """Return the verdict on a case; ``marks`` are more of its fields."""
    metrics, outcomes = permits.apply(found)
    status, reason, until = _decided(found.whole, metrics)
    return Verdict(
        found.case_id,
        status,
        reason,
        figures=found.whole.figures if found.whole else None,
        detail=found.whole.detail if found.whole else "",
        metrics=metrics,
        recordings=found.recordings,
        against=found.against,
        p_value=found.p_value,
        waived_until=until,
        permissions=outcomes,
        explanation=found.explanation.bounded() if found.explanation else None,
        straggler=found.straggler,
        libraries=found.libraries or msgspec.UNSET,
        **marks,
    )


def _decided(whole: Refusal | None, metrics: Sequence[MetricVerdict]) -> tuple[Status, Reason, str]:
    """Return what decides, and until when it is waived. That the machine changed is the reason
    where all metrics pass, so that it is shown.
    """
    if whole:
        return whole.status, whole.reason, ""
    worst = worst_of(metrics)
    assert worst is not None
    moved = any(one.gated and one.reason is Reason.MACHINE_MOVED for one in metrics)
    reason = Reason.MACHINE_MOVED if worst.status is Status.SAME and moved else worst.reason
    # ISO 8601 days sort as text.
    until = min((one.waived_until for one in metrics if one.waived_until), default="")
    return worst.status, reason, until if worst.waived_until else ""
