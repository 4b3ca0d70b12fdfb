"""A run as a check run of GitHub: its verdict, and an annotation at each line that is to blame.

https://docs.github.com/rest/checks/runs
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from stepguard.core.run_document import RunDocument
from stepguard.core.text import bounded, cut, printable
from stepguard.report.comment_and_annotations import Annotation, annotated
from stepguard.report.markdown_page import page

NAME = "stepguard"
MOST_A_REQUEST = 50  # annotations; GitHub appends those of later requests, without a limit
TITLE_CHARACTERS = 255
MESSAGE_CHARACTERS = 16_000  # GitHub takes 64 KiB, and a character may be four bytes
SUMMARY_BYTES = 60_000  # GitHub takes 65,535 characters


def requests(document: RunDocument, head_sha: str, conclusion: str) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the requests that make a check run of a commit: the first one creates it,
    each of the others adds annotations to it.

    ``conclusion`` is that of the workflow's run, which its gate decided: the document is only what
    the measuring job says of itself.
    """
    good = conclusion == "success"
    outcome = "success" if good else "failure"
    summary = page(document, SUMMARY_BYTES, for_comment=True)
    placed = [_body(item) for item in annotated(document, document.problems) if _has_place(item)]
    output = {"title": _title(document, good), "summary": summary}
    first, *others = _split(placed)
    created = {"name": NAME, "head_sha": head_sha, "status": "completed", "conclusion": outcome}
    yield {**created, "output": {**output, "annotations": first}}
    for part in others:
        yield {"output": {**output, "annotations": part}}


def unread(head_sha: str, problem: str) -> dict[str, Any]:
    """Return the body of the one request for a run whose document cannot be read."""
    output = {"title": "nothing was measured", "summary": bounded(printable(problem), 2_000)}
    created = {"name": NAME, "head_sha": head_sha, "status": "completed", "conclusion": "failure"}
    return {**created, "output": {**output, "annotations": []}}


def _title(document: RunDocument, good: bool) -> str:
    failing = sum(result.verdict.outcome != "passed" for result in document.results)
    if good:
        return f"{len(document.results)} cases pass"
    if failing:
        return f"{failing} of {len(document.results)} cases do not pass"
    return "the run is no pass" if document.problems else "the gate did not accept the run"


def _split(bodies: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return parts of at most MOST_A_REQUEST; one of none where there are none."""
    starts = range(0, max(1, len(bodies)), MOST_A_REQUEST)
    return [bodies[start : start + MOST_A_REQUEST] for start in starts]


def _has_place(item: Annotation) -> bool:
    """Tell whether an annotation is at a line of a file of the repository."""
    path = PurePosixPath(item.file)
    inside = bool(item.file) and not path.is_absolute() and ".." not in path.parts
    return inside and item.line > 0


def _body(item: Annotation) -> dict[str, Any]:
    return {
        "path": item.file,
        "start_line": item.line,
        "end_line": item.line,
        "annotation_level": "failure",
        "title": cut(printable(item.title), TITLE_CHARACTERS),
        "message": bounded(printable(item.text), MESSAGE_CHARACTERS) or item.title,
    }
