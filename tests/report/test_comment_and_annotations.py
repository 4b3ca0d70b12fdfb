"""Annotations and the comment of a pull request."""

import re

import pytest
from builders import CASE_ID, PROPERTY, entry, evidence, with_counts
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_documents import measured, run_document

from stepguard.core.reason_sentences import WorkMoved
from stepguard.core.run_document import Problem, ProblemCode
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.report.github import (
    ARTIFACT,
    MARKER,
    MOST,
    annotations,
    comment,
    no_document,
)

SAME = measured(entry())
SLOWER = measured(entry(), launches=evidence((270.0,) * 3).launches)
FASTER = measured(entry(), launches=evidence((230.0,) * 3).launches)
CHANGED = measured(entry(), counts=with_counts(evidence(), graph_breaks=3).counts)
GRAMMAR = re.compile(r"::error ((?:file=[^:,\r\n]+,(?:line=\d+,)?)?title=[^:,\r\n]*)::([^\r\n]*)")


def placed(result, file, line):
    """The result, whose cause is at that line."""
    place = Site("graph break", file, line)
    return replace(result, text=replace(result.text, place=place))


def shown(run):
    """What a gate that only reads the run would annotate."""
    failed = [
        Problem(code=ProblemCode.FAILED, text=one.text.headline)
        for one in run.results
        if one.verdict.outcome != "passed"
    ]
    return annotations(run, [*run.problems, *failed])


def test_an_annotation_stands_at_the_cause():
    """At the line that made the metric move; a case whose cause has none at its test."""
    (line,) = shown(run_document(SAME, placed(CHANGED, "model/gpt.py", 88)))
    front = f"::error file=model/gpt.py,line=88,title={CASE_ID}::{CASE_ID}: CHANGED: graph_breaks"
    assert line.startswith(front)
    (line,) = shown(run_document(SLOWER))
    assert line.startswith("::error file=perf_tests/test_train_step.py,line=33,title=")
    assert "step_ms 250.000 -> 270.000 (+8.0 %25, limit " in line
    assert shown(run_document(SAME)) == []


def test_problems_of_the_run_come_first():
    """A case that was not measured, where it is declared; one without a place has none."""
    problems = [
        Problem(code=ProblemCode.CASE_MISSING, text="c was skipped", file="a.py", line=2),
        Problem(code=ProblemCode.DIRTY, text="a.py differs"),
    ]
    told = shown(run_document(SLOWER, problems=problems))
    assert told[:2] == [
        "::error file=a.py,line=2,title=CASE_MISSING::c was skipped",
        "::error title=DIRTY::a.py differs",
    ]
    assert len(told) == 3
    fewer = Problem(code=ProblemCode.FEWER_GATES, text="gates less", case=CASE_ID)
    (line,) = annotations(run_document(SAME), [fewer])
    assert line.startswith("::error file=perf_tests/test_train_step.py,line=33,title=FEWER_GATES::")


def test_there_are_ten_at_most():
    """GitHub shows no more of a step; the last one says how many there are."""
    problems = [Problem(code=ProblemCode.DIRTY, text=f"{n} differs") for n in range(25)]
    told = shown(run_document(problems=problems))
    assert len(told) == MOST and told[-1].endswith("::and 16 more: see the summary")
    assert len(shown(run_document(problems=problems[:MOST]))) == MOST


@PROPERTY
@given(st.text(min_size=1), st.text(min_size=1))
def test_no_text_ends_an_annotation_or_begins_one(text, file):
    """One line each, of the form that GitHub reads, whatever the document says."""
    problem = Problem(code=ProblemCode.DIRTY, text=text, file=file, line=1)
    result = placed(replace(SLOWER, text=replace(SLOWER.text, headline=text)), file, 7)
    for line in shown(run_document(result, problems=[problem])):
        assert GRAMMAR.fullmatch(line), line


def test_the_comment_has_the_verdict_and_commands_that_work():
    """Marked, so that the next run finds it; the verdict, then how to look closer and to accept."""
    text = comment(run_document(SAME, SLOWER), "4711")
    marker, verdict, *_ = text.split("\n")
    assert (marker, verdict) == (MARKER, "**Performance failed:** 1 SLOWER, 1 same")
    assert f"gh run download 4711 --name {ARTIFACT} --dir evidence\n" in text
    assert "python -m stepguard accept --evidence evidence/runs --reason" in text
    assert "accept --evidence" not in comment(run_document(SAME), "4711")
    assert SLOWER.text.steps and not any(step in text for step in SLOWER.text.steps)


@pytest.mark.parametrize(
    ("statuses", "until"),
    [
        ([Status.SLOWER, Status.NO_BASELINE], "If it is meant: a waiver lets it pass"),
        ([Status.CHANGED], "If it is meant: a waiver lets it pass"),
        ([Status.NO_BASELINE, Status.FASTER], "No waiver passes a case without a recording"),
        ([Status.FASTER], "To keep the gain: merge it"),
    ],
)
def test_a_waiver_is_advised_where_one_passes_the_case(statuses, until):
    """Nothing waives what was never recorded, and a gain needs no waiver."""
    results = [replace(SAME, verdict=replace(SAME.verdict, status=one)) for one in statuses]
    text = comment(run_document(*results), "1")
    assert f"\n{until}" in text and text.count("accept --evidence") == 1
    assert ("waiver lets" in text) == ("waiver lets" in until)


def test_other_work_is_not_advised_to_be_waived():
    """No waiver covers a case that was judged as a whole; another case may have one."""
    figures = WorkMoved(metric="flops_per_step", other="main", old=(1,), new=(2,))
    whole = replace(CHANGED, verdict=replace(CHANGED.verdict, figures=figures))
    text = comment(replace(run_document(whole), against="main"), "1")
    assert "No waiver lets it pass" in text and "adds a waiver" not in text
    text = comment(replace(run_document(CHANGED), against="main"), "1")
    assert "No waiver lets it pass" not in text and "adds a waiver" in text
    assert "waiver" not in comment(replace(run_document(FASTER), against="main"), "1")


def test_a_run_without_a_document_has_a_comment():
    """It is marked, says that nothing passed, and its problem is no markup."""
    text = no_document("perf.json: @all <b>", "4711")
    assert text.startswith(f"{MARKER}\n**Performance failed:** nothing was measured")
    assert "@all" not in text and "<b>" not in text and "gh run view 4711" in text
