"""The document of a run as a file: read strictly, since whoever wrote it may be anybody."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from stepguard.ab_margins import margins_of
from stepguard.device import GPU
from stepguard.document import SCHEMA, RunDocument
from stepguard.metrics import METRICS
from stepguard.storage.json_file import FileError, read
from stepguard.worker.interpreter import as_typed


def load_document(path: Path) -> RunDocument:
    """Return the document of a run.

    Raises FileError where there is none, and for anything that is not exactly such a document.
    """
    measure = as_typed("pytest perf_tests --perf-json=PATH")
    remedy = f"make it anew: {measure}"
    found = read(path, RunDocument, SCHEMA, "pytest perf_tests --perf-json=PATH", _problems, remedy)
    if found is None:
        raise FileError(f"{path}: no such document; make it with: {measure}")
    return found


def _problems(found: RunDocument) -> Iterator[str]:
    """Yield what is wrong with a document although every field has its type."""
    yield from (f"{case_id!r} has two results" for case_id in _twice(r.case for r in found.results))
    for result in found.results:
        if result.verdict.case_id != result.case:
            yield f"the verdict of {result.case!r} is of {result.verdict.case_id!r}"
        judged = [metric.metric for metric in result.verdict.metrics]
        # The gate would believe the last one.
        yield from (f"{result.case!r} has two verdicts on {name!r}" for name in _twice(judged))
        for name in (*result.gates, *result.metrics, *judged):
            if name not in METRICS:
                yield f"{result.case!r} has {name!r}, which is no metric"
        try:
            margins_of(result.margins_pct, GPU)
        except ValueError:
            yield f"{result.case!r} has margins_pct {result.margins_pct}, which are none"


def _twice(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
