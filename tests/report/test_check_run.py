"""A run as a check run of GitHub: every annotation, fifty a request, as its schema wants it."""

import json
import os
from pathlib import Path

import pytest
from builders import entry, evidence, with_counts
from msgspec.structs import replace
from run_documents import measured, run_document

from stepguard.core.run_document import Problem, ProblemCode
from stepguard.core.site import Site
from stepguard.core.text import markdown
from stepguard.report.document_json import as_json
from stepguard.report.github import MARKER, MOST_A_REQUEST, check_run, comment, unread_check_run
from stepguard.report.markdown_page import page

HEAD = "b" * 40
SAME = measured(entry())
CHANGED = measured(entry(), counts=with_counts(evidence(), graph_breaks=3).counts)
# Of the npm package @octokit/openapi, where somebody has it: generated/api.github.com.json.
PUBLISHED = os.environ.get("STEPGUARD_GITHUB_OPENAPI", "")
CHECK_RUNS = "/repos/{owner}/{repo}/check-runs"


def placed(number, file="model/gpt.py"):
    """A case of its own that changed at a line of its own."""
    case = f"step[{number}]"
    place = Site("graph break", file, number)
    verdict = replace(CHANGED.verdict, case_id=case)
    return replace(CHANGED, case=case, verdict=verdict, text=replace(CHANGED.text, place=place))


def bodies(document):
    """The requests, as they are sent."""
    return json.loads(as_json(list(check_run(document, HEAD))))


@pytest.mark.parametrize("count", [0, 1, MOST_A_REQUEST, MOST_A_REQUEST + 1, 120])
def test_every_annotation_is_there(count):
    """Fifty a request, in one check run: the first request has its head and its end."""
    document = run_document(*(placed(number) for number in range(1, count + 1)), passed=not count)
    first, *others = bodies(document)
    assert (first["name"], first["head_sha"], first["status"]) == ("stepguard", HEAD, "completed")
    assert all(body.keys() == {"output"} for body in others)
    parts = [body["output"]["annotations"] for body in (first, *others)]
    assert all(len(part) == MOST_A_REQUEST for part in parts[:-1])
    assert len(parts[-1]) <= MOST_A_REQUEST
    lines = [(item["path"], item["start_line"]) for part in parts for item in part]
    assert sorted(lines) == [("model/gpt.py", number) for number in range(1, count + 1)]
    assert {body["output"]["title"] for body in (first, *others)} == {first["output"]["title"]}


@pytest.mark.parametrize("file", ["", "/etc/passwd", "../other/a.py", "model/../../a.py"])
def test_what_is_at_no_line_of_the_repository_is_in_the_summary_alone(file):
    """One that GitHub refuses would cost all the others of its request."""
    ((request),) = bodies(run_document(placed(3, file), placed(4), passed=False))
    kept = [item["start_line"] for item in request["output"]["annotations"]]
    assert 4 in kept and 3 not in kept
    assert "graph_breaks" in request["output"]["summary"]


PROBLEM = Problem(code=ProblemCode.CASE_MISSING, text="gone")
WHY = f"failed: {CHANGED.text.headline}"


@pytest.mark.parametrize(("document", "conclusion", "title"), [
    (run_document(SAME), "success", "passed: 1 same"),
    (run_document(SAME, SAME), "success", "passed: 2 same"),
    (run_document(SAME, passed=False), "failure", "failed: 1 same"),
    (run_document(CHANGED, SAME, passed=False), "failure", f"{WHY}; 1 CHANGED, 1 same"),
    (run_document(CHANGED, passed=True), "failure", f"{WHY}; 1 CHANGED"),
    (run_document(SAME, problems=[PROBLEM], passed=True), "failure", "failed: gone; 1 same"),
    (run_document(passed=True), "failure", "failed: nothing was measured"),
])  # fmt: skip
def test_conclusion_title_and_pages_say_the_same(document, conclusion, title):
    """All follow from the document's outcome: no pass if a case, a problem or pytest says so, or if
    nothing was measured. Then the cause comes first.
    """
    (request,) = bodies(document)
    assert request["conclusion"] == conclusion
    assert request["output"]["title"] == f"Performance {title}"
    head = f"**Performance {markdown(title).replace(':', ':**', 1)}\n"
    assert request["output"]["summary"].startswith(head) and page(document).startswith(head)
    assert comment(document, "4711").startswith(f"{MARKER}\n{head}")
    assert "The check `perf / gate` decides." in request["output"]["summary"]


def test_texts_are_cut_to_what_github_takes():
    """Of a title, a message and the summary."""
    huge = replace(placed(1), text=replace(placed(1).text, headline="\u00e9" * 10**6))
    huge = replace(huge, case="c" * 1000, verdict=replace(huge.verdict, case_id="c" * 1000))
    (request,) = bodies(run_document(huge, passed=False))
    (item,) = request["output"]["annotations"]
    assert len(item["title"]) <= 255 and len(item["message"].encode()) < 2**16
    assert len(request["output"]["summary"]) < 2**16


# What the published schema says of a request, in its own words, as far as ours are concerned.
EXCERPT = {
    "type": "object",
    "required": ["name", "head_sha", "status", "conclusion", "output"],
    "properties": {
        "status": {"enum": ["queued", "in_progress", "completed"]},
        "conclusion": {"enum": ["action_required", "cancelled", "failure", "neutral", "success"]},
        "output": {"type": "object", "required": ["title", "summary"],
                   "properties": {"summary": {"type": "string", "maxLength": 65535},
                                  "annotations": {
                                      "type": "array", "maxItems": 50,
                                      "items": {"type": "object",
                                                "required": [*("path", "start_line", "end_line",
                                                               "annotation_level", "message")],
                                                "properties": {
                                                    "annotation_level": {
                                                        "enum": ["notice", "warning", "failure"]},
                                                    "start_line": {"type": "integer"}}}}}}},
}  # fmt: skip


def every_request():
    """Requests of each kind: the first and another one of a long run, and of no document."""
    long = bodies(run_document(*(placed(number) for number in range(1, 60)), passed=False))
    return [*long, unread_check_run(HEAD, "perf.json: no such document")]


def test_requests_fit_what_github_says_of_them():
    """The excerpt above."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    first, _, absent = every_request()
    for request in (first, absent):
        jsonschema.validate(EXCERPT, request)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(EXCERPT, first | {"conclusion": "fine"})


@pytest.mark.skipif(
    not PUBLISHED, reason="STEPGUARD_GITHUB_OPENAPI names no description of the API"
)
def test_requests_fit_the_published_description():
    """GitHub's OpenAPI, of which the excerpt is a part."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    paths = json.loads(Path(PUBLISHED).read_text())["paths"]

    def body_of(path, method):
        return paths[path][method]["requestBody"]["content"]["application/json"]["schema"]

    create, update = body_of(CHECK_RUNS, "post"), body_of(f"{CHECK_RUNS}/{{check_run_id}}", "patch")
    first, other, absent = every_request()
    for request, schema in ((first, create), (absent, create), (other, update)):
        jsonschema.Draft202012Validator(schema).validate(request)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(create).validate(first | {"conclusion": "fine"})
