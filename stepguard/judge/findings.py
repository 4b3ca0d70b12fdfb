"""Findings: what the rules say of a case. Only this module makes a verdict of them."""

from dataclasses import dataclass
from datetime import date

import msgspec

from stepguard.core.explanation import Explanation
from stepguard.core.permission import Permission, PermissionOutcome
from stepguard.core.verdict import MetricVerdict, Straggler, Verdict, worst_of
from stepguard.judge.soundness import Refusal
from stepguard.judge.waiver_rules import permitted


@dataclass(frozen=True)
class Findings:
    """What the rules say of a case: its metrics, or why none decides. And its permissions."""

    case_id: str
    metrics: tuple[MetricVerdict, ...] = ()
    whole: Refusal | None = None
    otherwise: Refusal | None = None  # what decides if waivers cover each metric that fails
    recordings: int = 0
    against: str = ""
    p_value: float | None = None
    explanation: Explanation | None = None
    straggler: Straggler | None = None
    libraries: str = ""  # libraries whose versions differ from the recording's, in words
    permissions: tuple[Permission, ...] = ()  # of all cases
    today: date = date.min

    def permitted(self) -> tuple[tuple[MetricVerdict, ...], tuple[PermissionOutcome, ...]]:
        """Return the metrics under the case's permissions, and the effect of each of these."""
        its = [item for item in self.permissions if item.case == self.case_id]
        return permitted(self.metrics, its, self.whole is not None, self.today)


def verdict_of(findings: Findings, accepted: bool = False) -> Verdict:
    """Return the verdict. ``accepted``: the tree's own baseline accepts what failed."""
    metrics, outcomes = findings.permitted()
    failed = any(metric.gated and metric.outcome == "failed" for metric in metrics)
    whole = findings.whole or (None if failed else findings.otherwise)
    worst, until = worst_of(metrics), ""
    decides = whole or worst
    assert decides is not None
    if not whole and worst and worst.waived_until:
        # The first day on which a waiver ends: ISO 8601 days sort as text.
        until = min(metric.waived_until for metric in metrics if metric.waived_until)
    return Verdict(
        findings.case_id,
        decides.status,
        decides.reason,
        figures=whole.figures if whole else None,
        detail=whole.detail if whole else "",
        metrics=metrics,
        recordings=findings.recordings,
        accepted=accepted,
        against=findings.against,
        p_value=findings.p_value,
        waived_until=until,
        permissions=outcomes,
        explanation=findings.explanation.bounded() if findings.explanation else None,
        straggler=findings.straggler,
        libraries=findings.libraries or msgspec.UNSET,
    )
