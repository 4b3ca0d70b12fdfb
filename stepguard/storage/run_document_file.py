"""The document of a run as a file. It is read strictly, since anybody may have written it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from stepguard.core.device import GPU
from stepguard.core.margins import margins_of
from stepguard.core.metrics import METRICS
from stepguard.core.reason_sentences import Said
from stepguard.core.run_document import SCHEMA, RunDocument
from stepguard.machine.interpreter import as_typed
from stepguard.storage.json_file import FileError, read

# Fields that are data in this schema and were sentences and rounded figures in schema 2. They are
# dropped, since the lines of the text say the same.
_TEXT_OF_SCHEMA_2 = ("waivers", "expectations", "explanation")


def load_document(path: Path) -> RunDocument:
    """Return the document of a run.

    Raises FileError if there is none, or if it is not exactly such a document.
    """
    measure = as_typed("pytest perf_tests --perf-json=PATH")
    remedy = f"make it anew: {measure}"
    command = "pytest perf_tests --perf-json=PATH"
    document = read(path, RunDocument, SCHEMA, command, _problems, remedy, {2: _of_schema_2})
    if document is None:
        raise FileError(f"{path}: no such document; make it with: {measure}")
    return document


def _problems(document: RunDocument) -> Iterator[str]:
    """Yield what is wrong with a document whose fields all have their types."""
    yield from (
        f"{case_id!r} has two results" for case_id in _twice(r.case for r in document.results)
    )
    for result in document.results:
        if result.verdict.case_id != result.case:
            yield f"the verdict of {result.case!r} is of {result.verdict.case_id!r}"
        judged = [metric.metric for metric in result.verdict.metrics]
        # Of two verdicts on one metric the gate would believe the last.
        yield from (f"{result.case!r} has two verdicts on {name!r}" for name in _twice(judged))
        figures, reason = result.verdict.figures, result.verdict.reason
        if figures and not isinstance(figures, (*reason.figures, Said)):
            yield f"{result.case!r} is {reason}, with the figures of {type(figures).__name__}"
        for name in (*result.gates, *result.metrics, *judged):
            if name not in METRICS:
                yield f"{result.case!r} has {name!r}, which is no metric"
        try:
            margins_of(result.margins_pct, GPU)
        except ValueError:
            yield f"{result.case!r} has margins_pct {result.margins_pct}, which are none"


def _of_schema_2(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a document of schema 2 in this schema. Statuses, reasons and texts stay. In schema 2 a
    result's verdict had data and texts together. The sentence on a case as a whole had no figures.
    """
    results = raw.get("results")
    if isinstance(results, list):
        results = [_result_of_schema_2(result) for result in results]
    return raw | {"schema": SCHEMA, "results": results}


def _result_of_schema_2(raw: Any) -> Any:
    verdict = raw.get("verdict") if isinstance(raw, dict) else None
    if not isinstance(verdict, dict):  # this schema's types refuse it
        return raw
    result = {name: value for name, value in raw.items() if name != "steps"}
    texts = ("headline", "message", "detail", "lines", "place")
    text = {name: verdict[name] for name in texts if name in verdict}
    text |= {"notes": {}, "causes": [], "steps": raw.get("steps")}
    dropped = ("headline", "message", "lines", "place", "outcome", *_TEXT_OF_SCHEMA_2)
    data = {name: value for name, value in verdict.items() if name not in dropped}
    if verdict.get("message"):
        data["figures"] = {"type": "Said", "message": verdict["message"]}
    metrics = verdict.get("metrics")
    if isinstance(metrics, list):
        data["metrics"] = [_without_note(metric) for metric in metrics]
    return result | {"verdict": data, "text": text}


def _without_note(raw: Any) -> Any:
    return {n: v for n, v in raw.items() if n != "note"} if isinstance(raw, dict) else raw


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
