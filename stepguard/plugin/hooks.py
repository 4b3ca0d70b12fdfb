"""The hooks of a run that has cases. plugin/__init__.py registers them when they are needed.

Exit codes are pytest's own. A verdict that fails the build fails its test. A verdict that could not
decide is an error of its test. A run that selected cases and measured none of them fails.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import pytest

from stepguard.core.case import Case
from stepguard.core.metrics import METRICS
from stepguard.core.status import Status
from stepguard.core.text import counted, printable
from stepguard.core.verdict import Verdict
from stepguard.judge.summarise_evidence import summarise
from stepguard.machine.git.resolve import TreeError
from stepguard.machine.lifeline import ends_as_interrupts, notice_ends
from stepguard.measure.suite import Result
from stepguard.plugin.declared_cases import (
    NOTHING_MEASURED,
    Collected,
    Sink,
    asks_for_perf,
    case_of,
    refuse_without_perf,
)
from stepguard.plugin.pytest_terminal import FailureText, write_summary
from stepguard.plugin.run_outputs import forget_documents
from stepguard.plugin.session import PerfSession
from stepguard.report.document_json import benchmark_info
from stepguard.storage.json_file import FileError

_SESSION = pytest.StashKey[PerfSession]()
_RESULT = pytest.StashKey[Result]()
_REFUSED = pytest.StashKey[str]()  # why nothing was measured, e.g. a baseline file is damaged
_PASSED = pytest.StashKey[bool]()


def begin(config: pytest.Config, collection: Collected) -> None:
    """Begin the run's session."""
    notice_ends()
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    stack.enter_context(ends_as_interrupts())
    session = config.stash[_SESSION] = PerfSession(config, collection)
    config.pluginmanager.register(session)
    config.add_cleanup(session.close)  # nothing is left behind, however the run ends
    # Those that settings name. A listing replaces none.
    if not (hasattr(config, "workerinput") or config.option.collectonly):
        named = filter(None, (config.option.perf_json, config.option.perf_report))
        forget_documents(config.invocation_params.dir, named)


def check(config: pytest.Config, items: list[pytest.Item], all_collected: bool) -> None:
    """Refuse what would pass the run's cases unmeasured."""
    session = config.stash[_SESSION]
    with session.noted():
        session.check(items, all_collected)


@pytest.hookimpl(tryfirst=True)  # before a worker of xdist says what it has
def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan the tests that are left after deselection. Under xdist one case stands for all."""
    run = session.config.stash[_SESSION]
    with run.noted():
        run.plan(session.items)
    if hasattr(session.config, "workerinput"):
        ours = [item for item in session.items if asks_for_perf(item)]
        others = {*ours[1:]}
        session.items[:] = [item for item in session.items if item not in others]
        if ours:
            front = counted(len(ours), "performance case")
            ours[0].stash[_REFUSED] = f"{front} cannot share a machine: run without -n"


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Return lines on the machine and on what judges: the folder of baselines or a revision."""
    return [printable(line) for line in config.stash[_SESSION].header()]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse cases under xdist when a test begins. xdist hides the reason of earlier errors."""
    if not hasattr(item.config, "workerinput"):
        return
    refuse_without_perf(item)
    if refused := item.stash.get(_REFUSED, ""):
        pytest.fail(refused, pytrace=False)


def measuring(
    node: pytest.Item, config: pytest.Config, sink: Sink
) -> Iterator[Callable[[Case], None]]:
    """Yield what the fixture ``perf`` gives the test."""
    session = config.stash[_SESSION]
    # The result of the test's earlier run, if another plugin repeats the test (--reruns).
    before = node.stash.get(_RESULT, None)
    asked = False

    def measure(case: Case) -> None:
        nonlocal asked
        # Also stashed: a test that catches this failure must not pass.
        if not isinstance(case, Case):
            node.stash[_REFUSED] = f"perf takes a Case: perf(case), not {printable(repr(case))}"
            pytest.fail(node.stash[_REFUSED], pytrace=False)
        if asked:
            raise pytest.UsageError("perf(case) was called twice in one test: use two tests")
        asked = True
        result = node.stash[_RESULT] = _measured(node, session, case, before)
        # Before the test fails, so that pytest-benchmark's documents have failed cases, too.
        sink(result.evidence.samples_ms(), benchmark_info(result))
        verdict, values = result.verdict, summarise(result.evidence).values()
        judge = verdict.against or result.baseline_path.name
        node.user_properties += [("perf_verdict", verdict.label), ("perf_baseline", judge)]
        olds = {f"{one.metric}.baseline": one.old for one in verdict.metrics if one.old is not None}
        units = {f"{one.metric}.unit": METRICS[one.metric].unit for one in verdict.metrics}
        node.user_properties += sorted((values | olds | units).items())
        if verdict.outcome != "passed":
            pytest.fail(session.block(result), pytrace=False)

    yield measure
    # A test that failed by itself needs no further error.
    if _RESULT not in node.stash and node.stash.get(_PASSED, False):
        pytest.fail(NOTHING_MEASURED, pytrace=False)


def _measured(node: pytest.Item, session: PerfSession, case: Case, before: Result | None) -> Result:
    own = case_of(node)
    if own is not None and own.id != case.id:
        raise pytest.UsageError(f"this test is for {own.id}, but it measures {case.id}")
    try:
        session.guard.note_changes()
        return session.repeated(before) if before else session.measure(node, case)
    except (FileError, TreeError) as error:
        refused = printable(f"{case.id}: {Status.BROKEN.value}: {error}")
    # Failed outside of the except blocks: inside them pytest would print that exception as well.
    # Also stashed: a test that catches this failure must not pass.
    node.stash[_REFUSED] = refused
    pytest.fail(refused, pytrace=False)


@dataclass(frozen=True)
class Outcome:
    """The changes to the report of a test's call."""

    overridden: bool  # fails, although the test itself passed or was expected to fail
    error: bool  # nothing was decided: an error, as if its set-up had failed
    names_verdict: bool  # shows the verdict's word in place of PASSED or FAILED


def outcome_of(call: str, xfail: bool, verdict: Verdict | None, refused: bool) -> Outcome:
    """Return the outcome of a call that pytest says has "passed", "failed" or was "skipped".

    ``verdict`` is the case's, if it was measured. ``refused`` says that it could not be measured,
    or that a test that declares a case measured none. A test that catches the failure of its
    verdict fails all the same. An ``xfail`` mark hides a failing verdict, but not one that decided
    nothing.
    """
    own = "error" if refused else verdict.outcome if verdict else "passed"
    # xfail may expect a known regression, but not a measurement that decides nothing.
    decided = verdict is not None and own == "failed" and not verdict.gated("error")
    overridden = own != "passed" and call != "failed" and not (xfail and decided)
    failed = overridden or call == "failed"
    shown = (failed and own != "passed") or (call == "passed" and not overridden)
    return Outcome(overridden, failed and own == "error", verdict is not None and shown)


# tryfirst makes this the outermost wrapper: it gets the report after pytest's own xfail.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the call the outcome of its verdict; see outcome_of."""
    report = yield
    session = item.config.stash[_SESSION]
    if call.when == "setup" and item.stash.get(_REFUSED, ""):  # no mark lets cases pass under xdist
        report.outcome = "failed"
        vars(report).pop("wasxfail", None)
    xfail, why = hasattr(report, "wasxfail"), str(call.excinfo.value) if call.excinfo else ""
    session.saw(item, report.skipped, "expected to fail (xfail)" if xfail else why)
    if call.when != "call":
        return report
    result, refused = item.stash.get(_RESULT, None), item.stash.get(_REFUSED, "")
    if report.passed and result is None and not refused and case_of(item) is not None:
        refused = NOTHING_MEASURED  # whatever fixture it had under the name perf
    item.stash[_PASSED] = report.passed and not refused
    verdict = result.verdict if result else None
    # In a strict run nothing may be expected to fail: a mark has no limit, a waiver has one.
    shown = outcome_of(report.outcome, xfail and not session.guard.strict, verdict, bool(refused))
    if shown.overridden:
        report.outcome = "failed"
        # With this attribute pytest would count the failure as an expected one.
        vars(report).pop("wasxfail", None)
    block = session.block(result) if result else refused
    if shown.overridden or why == block:
        report.longrepr = FailureText(block)  # type: ignore[assignment]
    if result is not None and shown.names_verdict:
        report.perf_status = result.verdict.word  # type: ignore[attr-defined]
    if shown.error:
        # pytest and JUnit call a failing call a failure, and a failing set-up an error.
        report.when = "setup"
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show the verdict's own word in -v output."""
    status = getattr(report, "perf_status", None)
    # Outcomes of other plugins, such as "rerun", keep their own words.
    if status is None or report.outcome not in ("passed", "failed") or report.when == "teardown":
        return None
    if report.passed:
        return "passed", ".", status
    return ("failed", "F", status) if report.when == "call" else ("error", "E", status)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None]:
    """Record what waited, and write the documents. Fail a run that may not pass."""
    run = session.config.stash[_SESSION]
    # Any other status stays, since it says more: an interrupt, or tests that failed.
    if not run.finish(exitstatus) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    yield


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, and what to do about each case that did not pass."""
    if run := terminalreporter.config.stash[_SESSION].summary(terminalreporter.hasopt("skipped")):
        write_summary(terminalreporter, run)
