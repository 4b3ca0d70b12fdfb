"""Annotations and the comment of a pull request."""

import re
from pathlib import Path

import pytest
from builders import CASE_ID, PROPERTY, entry, evidence, with_counts
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run_documents import measured, run_document

from stepguard.core.comparison import Question
from stepguard.core.reason_sentences import WorkMoved
from stepguard.core.reasons import Reason
from stepguard.core.run_document import Problem, ProblemCode
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.rule_book import judge
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
TWICE = measured(entry(), launches=evidence((500.0,) * 3).launches)
NEW = replace(SAME, verdict=judge(Question(evidence())))
FIGURES = WorkMoved(metric="flops_per_step", other="main", old=(1,), new=(2,))
OTHER_WORK = replace(CHANGED, verdict=replace(CHANGED.verdict, figures=FIGURES))
GRAMMAR = re.compile(r"::error ((?:file=[^:,\r\n]+,(?:line=\d+,)?)?title=[^:,\r\n]*)::([^\r\n]*)")


def placed(result, file, line):
    """The result, whose cause is at that line."""
    place = Site("graph break", file, line)
    return replace(result, text=replace(result.text, place=place))


def waived(result):
    """The result, which a waiver lets pass."""
    metrics = tuple(replace(one, waived_until="2026-12-31") for one in result.verdict.metrics)
    return changed(result, metrics=metrics, waived_until="2026-12-31")


def undecided(result):
    """The result, with a counter of which two launches disagree."""
    status, reason = Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE
    count = MetricVerdict("copies_per_step", status, reason)
    return changed(result, metrics=(*result.verdict.metrics, count))


def accepted(result):
    """The result, which the tree's own baseline accepts."""
    return changed(result, accepted=True)


def changed(result, **fields):
    """The result with another verdict."""
    return replace(result, verdict=replace(result.verdict, **fields))


def shown(run):
    """What a gate that only reads the run would annotate."""
    failed = [
        Problem(code=ProblemCode.FAILED, text=one.text.headline)
        for one in run.results
        if one.verdict.outcome != "passed"
    ]
    return annotations(run, [*run.problems, *failed], Path("/"))


def test_there_are_ten_at_most():
    """GitHub shows no more of a step; the last one says how many there are."""
    problems = [Problem(code=ProblemCode.DIRTY, text=f"{n} differs") for n in range(25)]
    told = shown(run_document(problems=problems))
    assert len(told) == MOST and told[-1].endswith("::and 16 more: see the summary")
    assert len(shown(run_document(problems=problems[:MOST]))) == MOST


def test_a_line_outside_of_the_repository_is_annotated_at_the_test():
    """GitHub has no such line to show."""
    (line,) = shown(run_document(placed(SLOWER, "/usr/lib/site-packages/net/model.py", 7)))
    assert line.startswith("::error file=perf_tests/test_train_step.py,line=33,title=train_step")


@PROPERTY
@given(st.text(min_size=1), st.text(min_size=1))
def test_no_text_ends_an_annotation_or_begins_one(text, file):
    """One line each, of the form that GitHub reads, whatever the document says."""
    problem = Problem(code=ProblemCode.DIRTY, text=text, file=file, line=1)
    result = placed(replace(SLOWER, text=replace(SLOWER.text, headline=text)), file, 7)
    for line in shown(run_document(result, problems=[problem])):
        assert GRAMMAR.fullmatch(line), line


WAIVES = (
    f"\npython -m stepguard waive '{CASE_ID}' --evidence evidence/runs --reason '...' --days N\n"
)
WAYS = (WAIVES, "No waiver lets", "accept --evidence")


@pytest.mark.parametrize(("results", "waiver", "none", "accept"), [
    ([SLOWER, NEW], True, False, True),
    ([CHANGED], True, False, True),
    ([NEW, FASTER], False, False, True),
    ([TWICE], False, True, True),
    ([OTHER_WORK], False, True, True),
    ([FASTER, SAME], False, False, True),
    ([SAME], False, False, False),
    ([waived(CHANGED)], False, False, False),
    ([undecided(CHANGED)], False, False, False),  # no waiver passes it, nothing is recorded
    ([undecided(TWICE)], False, False, False),
    ([accepted(CHANGED)], False, False, False),  # the pull request has the recording
])  # fmt: skip
@pytest.mark.parametrize("against", ["", "main"])
def test_a_way_out_is_offered_as_on_the_terminal(results, waiver, none, accept, against):
    """A waiver, as it is typed, where one passes the case: none covers a case that was judged as a
    whole, nor a time that doubled. Accepting it where the run can be, which pairs cannot.
    """
    text = comment(replace(run_document(*results), against=against), "1")
    assert [way in text for way in WAYS] == [waiver, none, accept and not against]


def test_a_run_without_a_document_has_a_comment():
    """It is marked, says that nothing passed, and its problem is no markup."""
    text = no_document("perf.json: @all <b>", "4711")
    assert text.startswith(f"{MARKER}\n**Performance failed:** nothing was measured")
    assert "@all" not in text and "<b>" not in text and "gh run view 4711" in text
