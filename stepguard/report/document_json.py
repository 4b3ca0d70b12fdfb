"""Results as parts of a run's document, and documents as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from stepguard.core.comparison import Comparison
from stepguard.core.metrics import METRICS
from stepguard.core.permission import Permission
from stepguard.core.run_document import (
    JudgedDocument,
    LaunchDocument,
    ResultDocument,
    WaiverDocument,
)
from stepguard.core.text import printable_document
from stepguard.core.verdict import Verdict
from stepguard.judge.summarise_evidence import summarise
from stepguard.measure.suite import Result
from stepguard.report.metric_notes import described
from stepguard.report.next_steps import Commands
from stepguard.report.verdict_text import page_of, result_page


def judged_document(verdict: Verdict) -> JudgedDocument:
    """Return a verdict on kept evidence, with its text."""
    return JudgedDocument(verdict=verdict, text=page_of(verdict))


def result_document(result: Result, commands: Commands) -> ResultDocument:
    """Return a case with its metrics and its verdict, with relative paths."""
    evidence = result.evidence
    launches = [launch for launch in evidence.launches if launch.has_times()]
    return ResultDocument(
        case=result.case.id,
        parameters=evidence.case,
        gates=evidence.gates,
        metrics=summarise(evidence).values(),
        launches=[
            LaunchDocument(step_ms=launch.step_ms, step_ms_median=launch.step_ms_median)
            for launch in launches
        ],
        verdict=result.verdict,
        text=result_page(result, commands),
        evidence=commands.relative(result.evidence_path),
        baseline=commands.relative(result.baseline_path),
        commit=evidence.commit,
        dirty=list(evidence.dirty),
        tree_changed=evidence.tree_changed,
        disturbed=evidence.disturbances,
        margins_pct=evidence.margins_pct,
        judged_by=result.judged_by,
        environment=_environment(result.comparison),
    )


def _environment(comparison: Comparison | None) -> str | None:
    if comparison is None or comparison.base.fingerprint is None:
        return None
    return comparison.base.software_key().get("environment", "")


def waiver_documents(
    waivers: Sequence[Permission], results: Sequence[Result]
) -> list[WaiverDocument]:
    """Return all waivers, with their effect if their case was measured."""
    outcomes = {
        (outcome.permission.case, outcome.permission.metric): outcome.effect.value
        for result in results
        for outcome in result.verdict.permissions
    }
    return [
        WaiverDocument(
            case=waiver.case,
            metric=waiver.metric,
            expires=str(waiver.expires),
            effect=outcomes.get((waiver.case, waiver.metric), ""),
            text=described(waiver),
        )
        for waiver in waivers
    ]


def benchmark_info(result: Result) -> dict[str, Any]:
    """Return what pytest-benchmark's document says of a case beside its samples."""
    values = summarise(result.evidence).values()
    return {
        "stepguard": {
            "case": result.case.id,
            "metrics": values,
            "units": {name: METRICS[name].unit for name in values},
            "launch_step_ms": [launch.step_ms for launch in result.evidence.launches],
            "verdict": result.verdict.status.value,
            "reason": result.verdict.reason,
        }
    }


def as_json(document: Any, indent: int = 1) -> str:
    """Return a document as JSON that steers no terminal, with null for what is not finite."""
    plain = printable_document(msgspec.to_builtins(document, enc_hook=float))  # numpy's floats
    return msgspec.json.format(msgspec.json.encode(plain), indent=indent).decode()
