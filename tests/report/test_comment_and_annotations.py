"""Annotations and the comment of a pull request."""

import re

import pytest
from builders import PROPERTY, entry, evidence, with_counts
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_documents import measured, run_document

from stepguard.core.reason_sentences import WorkMoved
from stepguard.core.run_document import Problem, ProblemCode
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.report.github import (
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
