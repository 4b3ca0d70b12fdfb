"""Rules of expectations: what a commit of the range declared is a notice, and no failure. Pure.

Only beside another revision, where the range is known, and only of what was measured and decided:
never of what is BROKEN, UNFIT, NOT COMPARABLE or INCONCLUSIVE.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from stepguard.expectation import Expectation, ExpectationEffect, ExpectationOutcome
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict

_EXPECTABLE = (Status.SLOWER, Status.CHANGED)


def expect(verdict: Verdict, expectations: Sequence[Expectation]) -> Verdict:
    """Return an A/B comparison's verdict with the case's expectations, and what each one did."""
    mine = [one for one in expectations if one.case == verdict.case_id]
    if not mine or not verdict.against:
        return verdict
    metrics = {one.metric: one for one in verdict.metrics}
    outcomes = tuple(ExpectationOutcome(one, _effect(verdict, metrics, one)) for one in mine)
    declared = {
        one.expectation.metric for one in outcomes if one.effect is ExpectationEffect.EXPECTED
    }
    if declared:
        verdict = verdict.with_metrics(
            tuple(_expected(one) if one.metric in declared else one for one in verdict.metrics)
        )
    return replace(verdict, expectations=outcomes)


def _effect(
    verdict: Verdict, metrics: dict[str, MetricVerdict], expectation: Expectation
) -> ExpectationEffect:
    if verdict.whole:
        return ExpectationEffect.NOT_APPLIED
    found = metrics.get(expectation.metric)
    if found is None or not found.gated:
        return ExpectationEffect.NOT_GATED
    failing = found.status in _EXPECTABLE
    return ExpectationEffect.EXPECTED if failing else ExpectationEffect.NOT_NEEDED


def _expected(found: MetricVerdict) -> MetricVerdict:
    return replace(found, status=Status.SAME, reason=Reason.EXPECTED)
