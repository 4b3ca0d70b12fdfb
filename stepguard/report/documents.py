"""Results as parts of a run's document, and documents as JSON."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepguard.document import (
    LaunchDocument,
    MetricDocument,
    ResultDocument,
    VerdictDocument,
    WaiverDocument,
)
from stepguard.judge.summary import summarise
from stepguard.measure.suite import Result
from stepguard.metrics import METRICS
from stepguard.report import why, words
from stepguard.report.commands import Commands, next_steps
from stepguard.report.stored.waivers import described, sentences
from stepguard.sentences import message, note
from stepguard.storage.json_file import replace_file
from stepguard.text import printable_document
from stepguard.verdict import MetricVerdict, Verdict
from stepguard.waiver import Waiver


def verdict_document(verdict: Verdict) -> VerdictDocument:
    """Return a verdict as a document: statuses, names of reasons, the sentences of reports."""
    return VerdictDocument(
        case_id=verdict.case_id,
        status=verdict.status,
        reason=verdict.reason.name,
        outcome=verdict.outcome,
        headline=words.headline(verdict),
        message=message(verdict),
        detail=verdict.detail or words.detail(verdict),
        lines=words.evidence_lines(verdict),
        place=words.place(verdict),
        recordings=verdict.recordings,
        recorded=verdict.recorded,
        against=verdict.against,
        p_value=verdict.p_value,
        waived_until=verdict.waived_until,
        waivers=sentences(verdict),
        expectations=[one.sentence for one in verdict.expectations],
        metrics=[_metric(metric) for metric in verdict.metrics],
        explanation=why.document(verdict.explanation) if verdict.explanation else None,
    )


def _metric(found: MetricVerdict) -> MetricDocument:
    return MetricDocument(
        metric=found.metric,
        status=found.status,
        reason=found.reason.name,
        old=found.old,
        new=found.new,
        change_pct=found.change_pct,
        limit_pct=found.limit_pct,
        noise_pct=found.noise_pct,
        gated=found.gated,
        waived_until=found.waived_until,
        failing_ranks=list(found.failing_ranks),
        note=note(found),
        sites=list(found.sites),
    )


def result_document(result: Result, commands: Commands) -> ResultDocument:
    """Return one case: its parameters, every metric, the verdict, where the evidence is. Paths are
    relative to the folder of the ``commands``.
    """
    evidence, path = result.evidence, commands.relative(result.evidence_path)
    return ResultDocument(
        case=result.case.id,
        parameters=evidence.case,
        gates=list(evidence.gates),
        metrics=summarise(evidence).values(),
        launches=[
            LaunchDocument(step_ms=launch.step_ms, step_ms_median=launch.step_ms_median)
            for launch in evidence.launches
            if launch.has_times()
        ],
        verdict=verdict_document(result.verdict),
        steps=next_steps(result.verdict, path, commands, bool(evidence.dirty)),
        evidence=path,
        baseline=commands.relative(result.baseline_path),
        commit=evidence.commit,
        dirty=list(evidence.dirty),
        tree_changed=evidence.tree_changed,
        disturbed=words.disturbances(evidence),
    )


def waiver_documents(waivers: Sequence[Waiver], results: Sequence[Result]) -> list[WaiverDocument]:
    """Return every waiver, with what it did where its case was measured."""
    outcomes = {
        (one.waiver.case, one.waiver.metric): one.effect.name
        for result in results
        for one in result.verdict.waivers
    }
    return [
        WaiverDocument(
            case=waiver.case,
            metric=waiver.metric,
            expires=waiver.expires.isoformat(),
            effect=outcomes.get((waiver.case, waiver.metric), ""),
            text=described(waiver),
        )
        for waiver in waivers
    ]


def benchmark_info(result: Result) -> dict[str, Any]:
    """Return what a document of pytest-benchmark has of one case beside its samples."""
    values = summarise(result.evidence).values()
    return {
        "stepguard": {
            "case": result.case.id,
            "metrics": values,
            "units": {name: METRICS[name].unit for name in values},
            "launch_step_ms": [launch.step_ms for launch in result.evidence.launches],
            "verdict": result.verdict.status.value,
            "reason": result.verdict.reason.name,
        }
    }


def as_json(document: Any, indent: int = 1) -> str:
    """Return a document as JSON; a number that is not finite becomes null, which most readers take,
    and no text can steer whoever shows it. A negative ``indent`` leaves it in one line.
    """
    plain = printable_document(msgspec.to_builtins(document))
    return msgspec.json.format(msgspec.json.encode(plain), indent=indent).decode()


def put(path: Path, text: str) -> str:
    """Write a document, whole or not at all; return why that failed, or nothing."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def unwritable(path: Path) -> str:
    """Make the folder of a document; return why it cannot be written there, or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    # Before the run: found at its end, hours of measuring would be lost to it.
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        return "cannot be written"
    return ""
