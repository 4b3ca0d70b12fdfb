"""The document of a run as a file: read strictly, since whoever wrote it may be anybody."""

from collections import Counter
from pathlib import Path

from stepguard.document import SCHEMA, RunDocument
from stepguard.metrics import METRICS
from stepguard.storage.json_file import FileError, contents
from stepguard.strict_json import parse
from stepguard.verdict import Reason
from stepguard.worker.interpreter import as_typed


def load_document(path: Path) -> RunDocument:
    """Return the document of a run.

    Raises FileError where there is none, and for anything that is not exactly such a document.
    """
    measure = as_typed("pytest perf_tests --perf-json=PATH")
    remedy = f"make it anew: {measure}"
    data = contents(path, remedy)
    if data is None:
        raise FileError(f"{path}: no such document; make it with: {measure}")
    try:
        found = parse(data.decode("utf-8"), RunDocument, SCHEMA)
        if problem := _problem(found):
            raise ValueError(problem)
    except ValueError as error:
        raise FileError(f"{path}: {error}; {remedy}") from None
    return found


def _problem(found: RunDocument) -> str:
    """Return what is wrong with a document although every field has its type."""
    ids = Counter(result.case for result in found.results)
    if twice := next((case_id for case_id, count in ids.items() if count > 1), ""):
        return f"{twice!r} has two results"
    for result in found.results:
        if result.verdict.case_id != result.case:
            return f"the verdict of {result.case!r} is of {result.verdict.case_id!r}"
        judged = [metric.metric for metric in result.verdict.metrics]
        # The gate would believe the last one.
        if twice := next((one for one, count in Counter(judged).items() if count > 1), ""):
            return f"{result.case!r} has two verdicts on {twice!r}"
        for name in (*result.gates, *result.metrics, *judged):
            if name not in METRICS:
                return f"{result.case!r} has {name!r}, which is no metric"
        reasons = (result.verdict.reason, *(one.reason for one in result.verdict.metrics))
        if unknown := next((one for one in reasons if one not in Reason.__members__), ""):
            return f"{result.case!r} has the reason {unknown!r}, which is none"
    return ""
