"""Alarms and permissions in tests: verdicts in, as a screen or a test makes them, verdicts out."""

from dataclasses import replace
from datetime import date

from stepguard.core.comparison import Answer
from stepguard.judge.findings import Findings, verdict_of
from stepguard.judge.judge_recordings import screen
from stepguard.judge.rule_book import alarm_of, settled
from stepguard.judge.soundness import Refusal, measurement_problem


def by_recordings(evidence, entry):
    """What recordings alone say: a time that moved is SLOWER or FASTER, an alarm that waits."""
    return verdict_of(screen(evidence, entry))


def findings_of(verdict, otherwise=None):
    """What rules found, if this verdict came of it."""
    whole = Refusal(verdict.status, verdict.reason, verdict.figures, verdict.detail)
    return Findings(verdict.case_id, verdict.metrics, whole if verdict.whole else None, otherwise,
                    verdict.recordings, verdict.against, verdict.p_value, verdict.explanation,
                    verdict.straggler)  # fmt: skip


def to_confirm(verdict):
    """The time that pairs are asked about."""
    return alarm_of(findings_of(verdict))


def confirmed(verdict, pairs, commit, own=True):
    """The verdict after these pairs beside a commit."""
    return ended(verdict, Answer(commit, pairs, own))


def same_code(verdict, commit):
    """The verdict where HEAD is the recording's commit."""
    return ended(verdict, Answer(commit, same_code=True))


def unconfirmed(verdict, why):
    """The verdict where no pairs could be had."""
    return ended(verdict, Answer(failed=why))


def ended(verdict, answer=None):
    """The verdict as a run ends with it."""
    return verdict_of(settled(findings_of(verdict), answer))


def permit(verdict, evidence, permissions, today=date(2026, 11, 21)):
    """The verdict under these permissions."""
    found = findings_of(verdict, measurement_problem(evidence))
    return verdict_of(replace(found, permissions=tuple(permissions), today=today))


def of_metrics(verdict, metrics):
    """The verdict, if the rules had found these metrics."""
    return verdict_of(replace(findings_of(verdict), whole=None, metrics=tuple(metrics)))
