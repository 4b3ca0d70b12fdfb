"""python -m stepguard explain-code: what docs/reason-codes.md says of a code, as text."""

import re
import signal
from pathlib import Path
from typing import get_args

import pytest

from stepguard.cli.explain_code import codes
from stepguard.core import former
from stepguard.core.metrics import METRICS
from stepguard.core.reason_sentences import OfCase, Said, Undecided
from stepguard.core.reasons import Reason
from stepguard.core.run_document import ProblemCode
from stepguard.core.status import Status
from stepguard.core.verdict import Verdict
from stepguard.report.next_steps import Commands, next_steps

PAGE = (Path(__file__).parents[2] / "docs" / "reason-codes.md").read_text()


def test_the_page_has_each_code_once():
    """Those of cases, then those of runs, and none that is gone. Each is shown as plain text."""
    named = re.findall(r"^\* `(\w+)`: ", PAGE, re.MULTILINE)
    assert sorted(named[: len(Reason)]) == sorted(Reason)
    assert sorted(named[len(Reason) :]) == sorted(ProblemCode)
    for code in codes():
        assert code.text.endswith(".") and not set("`[|*") & set("".join(code.lines())), code


def test_a_command_knows_how_processes_end(shell):
    """Also where SIGCHLD was ignored, and git that failed would seem to have ended well."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert shell("explain-code", "EQUAL").status == 0
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("typed", ["NOT_STEADY", "not-steady", " Not_Steady "])
def test_a_code_is_said_in_lines_that_fit(shell, typed):
    """Its verdict, what it means, what to do; however it is typed."""
    done = shell("explain-code", typed)
    assert done.status == 0, done.err
    first, means, *_ = done.out.splitlines()
    assert first == "NOT_STEADY (INCONCLUSIVE)"
    assert means.startswith("  Steps still drifted")
    assert all(len(line) < 80 for line in done.out.splitlines())


def test_a_code_of_both_is_explained_for_both(shell):
    """TREE_CHANGED of a measurement, and of a run."""
    lines = shell("explain-code", "TREE_CHANGED").out.splitlines()
    assert [line for line in lines if line[0] != " "] == [
        "TREE_CHANGED (BROKEN)",
        "TREE_CHANGED (problem of a run)",
    ]


def test_a_former_code_is_explained_by_todays(shell):
    """Kept reports and comments name it."""
    assert shell("explain-code", "GPU_LOCKED").out == shell("explain-code", "FOREIGN_PROCESS").out
    assert shell("explain-code", "no-commit").out.startswith("DIRTY (problem of a run)\n")


@pytest.mark.parametrize(("metric", "instead"), former.METRICS.items())
def test_a_former_metric_says_what_serves(shell, metric, instead):
    """Recordings that are kept still name it."""
    done = shell("explain-code", metric)
    assert (done.status, done.out) == (0, f"{metric} is no metric any more: {instead}\n")


def test_a_verdict_has_its_reasons_listed(shell):
    """What a report shows most is a verdict; each reason says what it means and what mends it."""
    done = shell("explain-code", "not comparable")
    assert done.status == 0, done.err
    first, *lines = done.out.splitlines()
    assert first == "NOT COMPARABLE is a verdict; its reasons:"
    names = [line for line in lines if not line.startswith(" ")]
    assert names == ["WORK_MOVED", "BASE_LACKS", "OTHER_CONDITIONS"]


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_is_explained_too(shell, metric):
    """How it is judged and measured, as docs/method.md has it, in lines that fit."""
    done = shell("explain-code", metric)
    assert done.status == 0, done.err
    first, *measured, more = done.out.splitlines()
    assert first.startswith(f"{metric} ({METRICS[metric].kind}")
    assert measured[0].startswith("  measured: ") and not set("`|") & set(done.out)
    assert more.endswith("docs/method.md: metrics")
    assert all(len(line) < 80 for line in measured)
    # The rows around it are not shown with it.
    assert not any(word in done.out for word in ("the same in", "above"))


def test_an_unknown_code_is_bad_usage_and_names_the_nearest(shell):
    """Status 2; whatever was typed, one is the nearest."""
    for typed, nearest in (
        ("THROTLED", "THROTTLED"),
        ("unstable", "COUNT_UNSTABLE"),
        ("CHNGED", "CHANGED"),
        ("no baselin", "NO_BASELINE"),
        ("host_sync_per_step", "host_syncs_per_step"),
        ("", ""),
    ):
        done = shell("explain-code", typed or "!?")
        assert (done.status, done.out) == (2, "")
        assert f"is no reason and no metric; the nearest is {nearest}" in done.err


@pytest.mark.parametrize("status", list(Status))
def test_a_block_points_there_where_nothing_could_be_decided(status):
    """A red needs no lecture: it has its cause."""
    verdict = Verdict("f[x]", status, Reason.NOT_STEADY, Undecided(why="x"))
    steps = next_steps(verdict, "e.json", Commands(python="py"))
    shown = "what that is: py -m stepguard explain-code NOT_STEADY" in steps
    assert shown is (status.outcome == "error" and status is not Status.NO_BASELINE)


def test_a_row_names_the_figures_of_its_sentences():
    """Each type that a case as a whole can have is some reason's; a document of schema 2 has texts
    alone, whatever its reason is.
    """
    named = {kind for reason in Reason for kind in reason.figures}
    assert named | {Said} == {*get_args(OfCase)}
