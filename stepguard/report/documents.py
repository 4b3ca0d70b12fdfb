"""A run as documents: JSON for machines, Markdown for a pull request."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepguard.judge.summary import summarise
from stepguard.measure.suite import Result
from stepguard.metrics import METRICS
from stepguard.report import table, words
from stepguard.report.commands import Commands
from stepguard.report.waivers import sentences
from stepguard.sentences import message, note
from stepguard.text import markdown, printable_document
from stepguard.verdict import MetricVerdict, Status, Verdict

SCHEMA = 1
_OF_A_CASE = ("case_id", "recordings", "recorded", "against", "p_value", "waived_until")
_OF_A_METRIC = (
    "metric",
    "old",
    "new",
    "change_pct",
    "limit_pct",
    "noise_pct",
    "gated",
    "waived_until",
    "failing_ranks",
)


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON: names of statuses and reasons, and the sentences of reports."""
    return _document(verdict, _OF_A_CASE) | {
        "message": message(verdict),
        "detail": verdict.detail or words.detail(verdict),
        "waivers": sentences(verdict),
        "metrics": [
            _document(metric, _OF_A_METRIC)
            | {"note": note(metric), "sites": msgspec.to_builtins(metric.sites)}
            for metric in verdict.metrics
        ],
    }


def _document(found: Verdict | MetricVerdict, fields: tuple[str, ...]) -> dict[str, Any]:
    document = {name: getattr(found, name) for name in fields}
    return document | {"status": found.status.value, "reason": found.reason.name}


def result_document(result: Result) -> dict[str, Any]:
    """Return one case: its parameters, every metric, the verdict, where the evidence is."""
    return {
        "case": result.case.id,
        "parameters": result.evidence.case,
        "metrics": summarise(result.evidence).values(),
        "launches": [
            {"step_ms": launch.step_ms, "step_ms_median": launch.step_ms_median}
            for launch in result.evidence.launches
        ],
        "verdict": verdict_document(result.verdict),
        "evidence": str(result.evidence_path),
        "baseline": str(result.baseline_path),
    }


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


def suite_json(results: Sequence[Result]) -> str:
    """Return the whole run as one JSON document."""
    document = {"schema": SCHEMA, "cases": [result_document(result) for result in results]}
    return json.dumps(printable_document(document), indent=1)


def suite_markdown(results: Sequence[Result], commands: Commands) -> str:
    """Return counts, the table, then a folded block for every case that has more to say."""
    verdicts = [result.verdict for result in results]
    rows = table.rows(verdicts)
    lines = [f"**Performance:** {table.counts(verdicts) or 'nothing was measured'}", ""]
    lines += ["| " + " | ".join(table.COLUMNS) + " |"]
    lines += ["|" + "---|" * len(table.COLUMNS)]
    lines += ["| " + " | ".join(markdown(cell) or "-" for cell in row.cells) + " |" for row in rows]
    for result in sorted(results, key=lambda r: r.verdict.status.rank):
        silent = result.verdict.word in (Status.SAME.value, "recorded")
        if silent and not result.verdict.has_notice:
            continue
        title = markdown(words.headline(result.verdict))
        body = words.block(result.verdict, str(result.evidence_path), commands)
        # Longer than any in the text: a docstring in a traceback may contain a fence.
        fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", body))]))
        # As code, where neither "@" nor "#" is a link.
        summary = f"<details><summary><code>{title}</code></summary>"
        lines += ["", summary, "", fence, body, fence, "</details>"]
    return "\n".join(lines) + "\n"
