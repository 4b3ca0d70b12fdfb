"""Documents in schema 2, which a gate reads whose code is a version older than this one."""

from typing import Any

import msgspec

from stepguard.document import ResultDocument, RunDocument, VerdictText
from stepguard.explanation import Explanation, Side
from stepguard.report.documents import text_of
from stepguard.report.stored.waivers import sentences
from stepguard.report.trace.explanation import refused_because
from stepguard.verdict import MetricVerdict, Verdict

_SCHEMA = 2
_METRIC = (
    *("metric", "status", "reason", "old", "new", "change_pct", "limit_pct", "noise_pct", "gated"),
    *("waived_until", "failing_ranks"),
)
_VERDICT = ("case_id", "status", "reason", "recordings", "recorded", "against", "p_value")


def run(found: RunDocument) -> dict[str, Any]:
    """Return a run's document."""
    plain: dict[str, Any] = msgspec.structs.asdict(found)
    return plain | {"schema": _SCHEMA, "results": [result(one) for one in found.results]}


def result(found: ResultDocument) -> dict[str, Any]:
    """Return a result."""
    plain: dict[str, Any] = msgspec.structs.asdict(found)
    del plain["text"]
    return plain | {"verdict": verdict(found.verdict, found.text), "steps": found.text.steps}


def verdict(found: Verdict, text: VerdictText | None = None) -> dict[str, Any]:
    """Return a verdict with its sentences."""
    text = text or text_of(found)
    return {
        **{name: getattr(found, name) for name in _VERDICT},
        "outcome": found.outcome,
        "headline": text.headline,
        "message": text.message,
        "detail": text.detail,
        "lines": text.lines,
        "place": text.place,
        "waived_until": found.waived_until,
        "waivers": sentences(found),
        "metrics": [_metric(one, text.notes.get(one.metric, "")) for one in found.metrics],
        "expectations": [one.sentence for one in found.expectations],
        "explanation": found.explanation and _explanation(found.explanation, text.causes),
    }


def _metric(found: MetricVerdict, note: str) -> dict[str, Any]:
    fields = {name: getattr(found, name) for name in _METRIC}
    return {**fields, "note": note, "sites": found.sites}


def _explanation(found: Explanation, texts: list[str]) -> dict[str, Any]:
    causes = [
        {
            **{name: getattr(cause, name) for name in ("kind", "what", "phase", "place")},
            "us": round(cause.us, 3),
            "before": _side(cause.before),
            "after": _side(cause.after),
            "text": text,
        }
        for cause, text in zip(found.causes, texts, strict=True)
    ]
    return {
        "refused": [refused_because(one) for one in found.refused],
        "before_us": round(found.before_us, 3),
        "after_us": round(found.after_us, 3),
        "causes": causes,
        "smaller_us": round(found.smaller_us, 3),
        "scatter_us": round(found.scatter_us, 3),
    }


def _side(found: Side) -> dict[str, Any]:
    return {"names": found.names[:3], "calls": found.calls, "us": round(found.us, 3)}
