"""outcome_of(): what pytest says of a test, by what its case's verdict says."""

from itertools import product

import pytest

from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.plugin.hooks import Outcome, outcome_of

FAILING = [status for status in Status if status.outcome == "failed"]
UNDECIDED = [status for status in Status if status.outcome == "error"]
PASSING = [status for status in Status if status.outcome == "passed"]


def verdict(status, **fields):
    """A verdict by its status alone."""
    return Verdict("f[a]", status, Reason.EQUAL, **fields)


def passes(call, found):
    """Whether pytest takes the call for passed, or for an expected failure, in the end."""
    return call != "failed" and not found.overridden


@pytest.mark.parametrize("status", FAILING)
def test_a_verdict_that_fails_fails_the_test(status):
    """Also if the test swallowed the failure; in its own call, not as an error."""
    for call in ("passed", "failed"):
        found = outcome_of(call, False, verdict(status), refused=False)
        assert not passes(call, found) and not found.error and found.names_verdict


@pytest.mark.parametrize(("status", "xfail"), [*product(UNDECIDED, [False, True])])
def test_a_verdict_that_could_not_decide_is_an_error(status, xfail):
    """Whatever the test did with it, and whatever it was expected to do."""
    for call in ("passed", "failed", "skipped"):
        found = outcome_of(call, xfail, verdict(status), refused=False)
        assert not passes(call, found) and found.error and found.names_verdict


@pytest.mark.parametrize("status", FAILING)
def test_a_known_regression_may_be_expected(status):
    """xfail holds for what is known to be slower, unless another metric is not known."""
    assert outcome_of("skipped", True, verdict(status), False) == Outcome(False, False, False)
    unknown = MetricVerdict("step_ms", Status.INCONCLUSIVE, Reason.UNDECIDED)
    half_known = verdict(status, metrics=(unknown,))
    assert outcome_of("skipped", True, half_known, False).overridden


@pytest.mark.parametrize("status", PASSING)
def test_a_verdict_that_passes_leaves_the_test_alone(status):
    """A failure of the test's own stays one, under pytest's own word."""
    assert outcome_of("passed", False, verdict(status), False) == Outcome(False, False, True)
    assert outcome_of("failed", False, verdict(status), False) == Outcome(False, False, False)


def test_what_is_recorded_passes():
    """--perf-update made the first recording."""
    found = outcome_of("passed", False, verdict(Status.NO_BASELINE, recorded=True), False)
    assert found == Outcome(False, False, True)


@pytest.mark.parametrize("xfail", [False, True])
@pytest.mark.parametrize("call", ["passed", "failed", "skipped"])
def test_what_could_not_be_measured_is_an_error(call, xfail):
    """There is no verdict to name."""
    found = outcome_of(call, xfail, None, refused=True)
    assert not passes(call, found) and found.error and not found.names_verdict


def test_a_test_without_a_case_is_its_own_affair():
    """Nothing changes."""
    for call in ("passed", "failed", "skipped"):
        assert outcome_of(call, False, None, False) == Outcome(False, False, False)
