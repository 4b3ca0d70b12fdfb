"""What GitHub shows of a run: annotations at lines of code, a comment, and a check run.

https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
https://docs.github.com/rest/checks/runs
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from stepguard.core.run_document import Problem, ProblemCode, RunDocument
from stepguard.core.status import Outcome
from stepguard.core.text import bounded, cut, first, markdown, printable
from stepguard.judge.waiver_rules import suggested_sizes
from stepguard.machine.git.revision import top_of
from stepguard.report.markdown_page import COMMENT_BYTES, page, title
from stepguard.report.next_steps import acceptable

MOST = 10  # GitHub shows no more annotations of a step's log
MARKER = "<!-- stepguard: one comment in a pull request -->"
ARTIFACT = "perf-evidence"
MOST_COMMANDS = 3  # of one kind
# Of a check run.
CHECK = "stepguard"
MOST_A_REQUEST = 50  # annotations; GitHub appends those of later requests, without a limit
TITLE_CHARACTERS = 255
MESSAGE_CHARACTERS = 16_000  # GitHub takes 64 KiB, and a character may be four bytes
_WAIVE = "If it is meant: the pull request adds a waiver, which an owner of `baselines/` approves."
_NO_WAIVER = "No waiver lets other work, or so large a change, pass: an owner merges it as it is."


def error(title: str, text: str, file: str = "", line: int = 0) -> str:
    """Return a line for a log of GitHub Actions, which shows it at that place in the code."""
    place = {"file": file, "line": str(line) if line else ""}
    fields = {name: text for name, text in place.items() if file and text}
    properties = ",".join(f"{k}={_property(v)}" for k, v in (fields | {"title": title}).items())
    return f"::error {properties}::{_data(text)}"


def _data(text: str) -> str:
    # printable() turns a line break into an escape.
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# Title, text, file and line of what is wrong; without a place the file is empty and the line 0.
Annotation = tuple[str, str, str, int]


def annotated(document: RunDocument, problems: Sequence[Problem]) -> Iterator[Annotation]:
    """Yield what is wrong with a run: the gate's ``problems``, then failing cases."""
    tests = {case.case: (case.file, case.line) for case in document.cases}
    for problem in problems:
        # One that only repeats a failing verdict is left out: the verdict follows below.
        if problem.case or problem.code is not ProblemCode.FAILED:
            test = tests.get(problem.case, ("", 0))
            where = (problem.file, problem.line) if problem.file else test
            yield problem.code.value, problem.sentence, *where
    for result in document.failing:
        place, where = result.text.place, tests.get(result.case, ("", 0))
        if place and not place.file.startswith("/"):  # GitHub has no line of a library
            where = place.file, place.line
        yield result.case, result.text.headline, *where


def in_actions() -> bool:
    """Tell whether this process' log is one of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotations(document: RunDocument, problems: Sequence[Problem], root: Path) -> list[str]:
    """Return what is wrong with a run as lines for a log of GitHub Actions, MOST at most. There
    paths begin at the repository, in which the project, ``root``, may be a folder.
    """
    folder = os.path.relpath(root.resolve(), top_of(root) or root.resolve())
    lines = [
        error(title, text, file and os.path.normpath(os.path.join(folder, file)), line)
        for title, text, file, line in annotated(document, problems)
    ]
    if len(lines) > MOST:
        more = f"and {len(lines) - MOST + 1} more: see the summary"
        lines = [*lines[: MOST - 1], error("stepguard", more)]
    return lines


def comment(document: RunDocument, run_id: str) -> str:
    """Return the comment on a pull request: the page, then commands that work from a clone."""
    below = _commands(document, run_id)
    shown = page(document, COMMENT_BYTES - len(below.encode()), for_comment=True)
    return f"{MARKER}\n{shown}\n{below}"


def no_document(problem: str, run_id: str) -> str:
    """Return the comment on a run without a document that can be believed."""
    return (
        f"{MARKER}\n**Performance failed:** nothing was measured, or its document cannot be read.\n"
        f"\n{markdown(problem)}\n\nA pull request of a fork is not measured: a maintainer who has "
        "read it pushes it as a branch of this repository. Otherwise see the log: "
        f"`gh run view {run_id} --log-failed`\n"
    )


def _commands(document: RunDocument, run_id: str) -> str:
    fetch = f"gh run download {run_id} --name {ARTIFACT} --dir evidence"
    lines = ["To look closer, in a clone:", "", "```sh", fetch]
    lines += ["python -m stepguard judge --evidence evidence/runs", "```"]
    verdicts = [result.verdict for result in document.results]
    offered = [one for one in verdicts if acceptable(one) and not one.waived_until]
    failed = [one for one in offered if one.outcome == "failed"]
    with_evidence = "--evidence evidence/runs --reason '...'"
    cases = [shlex.quote(printable(one.case_id)) for one in offered if suggested_sizes(one)]
    waive = [f"python -m stepguard waive {case} {with_evidence} --days N" for case in cases]
    if waive:
        lines += ["", _WAIVE, "", "```sh", *first(waive, MOST_COMMANDS, "# "), "```"]
    if not all(map(suggested_sizes, failed)):
        lines += ["", _NO_WAIVER]
    if offered and not document.against:
        lines += [
            "",
            "After the merge a maintainer accepts what the run of main has measured:",
            "",
            "```sh",
            f"gh run download RUN_OF_MAIN --name {ARTIFACT} --dir evidence",
            f"python -m stepguard accept {with_evidence}",
            "```",
        ]
    return "\n".join(lines) + "\n"


def check_run(document: RunDocument, head_sha: str) -> Iterator[dict[str, Any]]:
    """Yield the requests of a check run: the first creates it, others add annotations."""
    found = annotated(document, document.problems)
    placed = [_body(*item) for item in found if _has_place(*item[2:])]
    output = {
        "title": cut(printable(title(document)), TITLE_CHARACTERS),
        "summary": page(document, COMMENT_BYTES, for_comment=True),
    }
    first, *others = _split(placed)
    yield _created(head_sha, document.outcome, {**output, "annotations": first})
    for part in others:
        yield {"output": {**output, "annotations": part}}


def unread_check_run(head_sha: str, problem: str) -> dict[str, Any]:
    """Return the body of the one request for a run whose document cannot be read."""
    output = {"title": "nothing was measured", "summary": bounded(printable(problem), 2_000)}
    return _created(head_sha, "failed", {**output, "annotations": []})


def _created(head_sha: str, outcome: Outcome, output: dict[str, Any]) -> dict[str, Any]:
    conclusion = "success" if outcome == "passed" else "failure"
    head = {"name": CHECK, "head_sha": head_sha, "status": "completed", "conclusion": conclusion}
    return {**head, "output": output}


def _split(bodies: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return parts of at most MOST_A_REQUEST bodies. Without bodies return one empty part."""
    starts = range(0, max(1, len(bodies)), MOST_A_REQUEST)
    return [bodies[start : start + MOST_A_REQUEST] for start in starts]


def _has_place(file: str, line: int) -> bool:
    path = PurePosixPath(file)
    return bool(file) and not path.is_absolute() and ".." not in path.parts and line > 0


def _body(title: str, text: str, file: str, line: int) -> dict[str, Any]:
    return {
        "path": file,
        "start_line": line,
        "end_line": line,
        "annotation_level": "failure",
        "title": cut(printable(title), TITLE_CHARACTERS),
        "message": bounded(printable(text), MESSAGE_CHARACTERS) or title,
    }
