"""What a commit declared: a notice of exactly that metric, and never more."""

from datetime import date

import pytest
from alarms import of_metrics, permit
from builders import evidence, replace
from test_judge_pairs import WASTE, fault, metric, shifted, turns

from stepguard.core.permission import Effect, Permission
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import judge_ab
from stepguard.report.document_json import text_of
from stepguard.report.next_steps import Commands
from stepguard.report.verdict_text import block as shown_block

ID = "train_step[124m-bf16]"


def declared(name="step_ms", case=ID):
    """A trailer that permits a metric."""
    reason, who = "a larger vocabulary", "A. Author"
    return Permission(case=case, metric=name, reason=reason, commit="c" * 40, who=who)


def expect(verdict, trailers):
    """The verdict under these trailers."""
    return permit(verdict, evidence(), trailers, date(2026, 11, 21))


def effects(verdict):
    """What each permission did."""
    return [one.effect for one in verdict.permissions]


def test_a_declared_slowdown_passes_as_a_notice():
    """It says by how much, who declared it and why, in every output; and a run's other claims do
    not take it back.
    """
    verdict = expect(judge_ab(turns(shifted(2.0))), [declared()])
    step = metric(verdict, "step_ms")
    assert verdict.outcome == "passed" and verdict.has_notice
    assert (step.status, step.reason) == (Status.SAME, Reason.EXPECTED)
    assert step.change_pct == pytest.approx(2.0, abs=0.05)
    text = text_of(verdict)
    assert verdict.has_notice
    for shown in ("\n".join(text.lines), shown_block(verdict, "x", Commands())):
        assert "worse, as a commit of the range declares" in shown and "+2.00 %" in shown
        assert "expected: step_ms, cccccccccccc by A. Author: a larger vocabulary" in shown


def test_only_that_metric_of_that_case_passes():
    """Another metric that fails, or another case's, fails as before."""
    found = judge_ab(turns(shifted(2.0)))
    assert expect(found, [declared(case="forward[nano-cpu]")]) == found
    other = expect(found, [declared(WASTE)])
    assert other.status is Status.SLOWER and effects(other) == [Effect.NOT_NEEDED]
    both = replace(found, metrics=found.metrics)
    risen = tuple(
        replace(one, status=Status.CHANGED, reason=Reason.COUNTER_ROSE)
        if one.metric == WASTE
        else one
        for one in both.metrics
    )
    half = expect(of_metrics(both, risen), [declared()])
    assert half.status is Status.CHANGED and half.worst.metric == WASTE
    whole = expect(of_metrics(both, risen), [declared(), declared(WASTE)])
    assert whole.outcome == "passed"


def test_what_was_not_needed_is_said():
    """The metric is `same`: passed, with a line on the trailer."""
    verdict = expect(judge_ab(turns(shifted(0.0))), [declared()])
    assert verdict.status is Status.SAME and verdict.has_notice
    assert effects(verdict) == [Effect.NOT_NEEDED]
    assert "expected and not needed" in "\n".join(text_of(verdict).lines)


@pytest.mark.parametrize(
    "found",
    [
        turns(shifted(1.0, (0.03, -0.03) * 3), out_of_time=True),
        turns(shifted(2.0), head=fault("RAISED")),
        turns(shifted(2.0), base=fault("BAD_WORKLOAD")),
        turns(shifted(2.0), head=fault("FOREIGN_PROCESS")),
    ],
    ids=["INCONCLUSIVE", "BROKEN", "NOT COMPARABLE", "UNFIT"],
)
def test_what_could_not_be_judged_is_never_expected(found):
    """Undecided, broken, not comparable, unfit: an error as before."""
    before = judge_ab(found)
    after = expect(before, [declared()])
    assert before.status is after.status and after.outcome == "error"


def test_against_recordings_it_says_nothing():
    """A verdict of the screen has no range of commits."""
    found = replace(judge_ab(turns(shifted(2.0))), against="")
    assert expect(found, [declared()]) == found
