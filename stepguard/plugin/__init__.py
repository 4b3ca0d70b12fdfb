"""The pytest plugin's hooks: options, the ``perf`` fixture, and the summary.

    @cases(Case("124m", "model.workloads:forward", {"size": "124m"}))
    def test_forward(perf, case):
        perf(case)

Exit codes are pytest's own. A verdict that fails the build fails its test; a verdict that could not
decide is an error of its test; a run that selected cases and measured none of them fails.
"""

from collections.abc import Callable, Generator, Iterator

import pytest

from stepguard.case import Case
from stepguard.git.resolve import TreeError
from stepguard.judge.summary import summarise
from stepguard.measure.suite import Result
from stepguard.plugin.benchmark import Sink, WithBenchmark, WithoutBenchmark
from stepguard.plugin.items import (
    NOTHING_MEASURED,
    asks_for_perf,
    case_of,
    cases,
    outcome_of,
    refuse_without_perf,
)
from stepguard.plugin.options import add_options
from stepguard.plugin.session import Session
from stepguard.report import terminal
from stepguard.storage.json_file import FileError
from stepguard.text import printable
from stepguard.verdict import Status

__all__ = ["cases"]

MARKERS = (
    "gpu: needs a GPU",
    "multi_gpu: needs several GPUs",
    "smoke: runs on a CPU; gates counters only (skipped where there is a GPU, unless -m smoke)",
    "extended: beyond the core suite; run with -m extended",
)
_SESSION = pytest.StashKey[Session]()
_RESULT = pytest.StashKey[Result]()
_REFUSED = pytest.StashKey[str]()  # why nothing was measured: no trusted baseline, no other tree
_PASSED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all prefixed."""
    add_options(parser.getgroup("stepguard", "performance regression gate"))


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, the bridge to pytest-benchmark, and the run's session."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    # By its entry point, or by -p pytest_benchmark.plugin where autoload is off.
    active = map(config.pluginmanager.hasplugin, ("benchmark", "pytest_benchmark.plugin"))
    bridge = WithBenchmark() if any(active) else WithoutBenchmark()
    config.pluginmanager.register(bridge, "stepguard-bridge")
    session = config.stash[_SESSION] = Session(config, bridge)
    config.add_cleanup(session.close)  # nothing is left behind, however the run ends


def pytest_report_header(config: pytest.Config) -> str:
    """Name the machine, and where its baseline is."""
    return printable(f"stepguard: {config.stash[_SESSION].header()}")


# First: -k, -m and other plugins deselect in this hook, and all cases should be known.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Refuse what would pass unmeasured, set the timers."""
    # xdist hides a worker's usage errors: there each test is refused in its turn, as an error.
    if not hasattr(config, "workerinput"):
        for item in items:
            refuse_without_perf(item)
    if any(map(asks_for_perf, items)):
        # A module that failed to import hides its cases, so that not all of them are known.
        config.stash[_SESSION].check(items, all_collected=not session.testsfailed)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Plan what is left after deselection."""
    session.config.stash[_SESSION].plan(session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Under xdist a case is refused when its turn comes: earlier, xdist would hide the reason."""
    if not hasattr(item.config, "workerinput"):
        return
    refuse_without_perf(item)
    if asks_for_perf(item):
        pytest.fail("performance cases cannot share a machine: run without -n", pytrace=False)


@pytest.fixture
def perf(request: pytest.FixtureRequest, perf_sink: Sink) -> Iterator[Callable[[Case], None]]:
    """Measure a case with ``perf(case)``, compare it with its baseline and give the verdict.

    A test that has the fixture and measures nothing is an error: it would pass whatever happens.
    """
    session, node = request.config.stash[_SESSION], request.node

    def measure(case: Case) -> None:
        if _RESULT in node.stash:
            raise pytest.UsageError("perf(case) was called twice in one test: use two tests")
        own = case_of(node)
        if own is not None and own.id != case.id:
            raise pytest.UsageError(f"this test is for {own.id}, but it measures {case.id}")
        try:
            result = session.measure(case)
        except (FileError, TreeError) as error:
            node.stash[_REFUSED] = printable(f"{case.id}: {Status.BROKEN.value}: {error}")
            # Stashed, too: a test that catches the failure must not pass.
            pytest.fail(node.stash[_REFUSED], pytrace=False)
        node.stash[_RESULT] = result
        # Before the test fails, so that pytest-benchmark's documents have failed cases, too.
        perf_sink(result)
        node.user_properties.append(("perf_verdict", result.verdict.label))
        node.user_properties.extend(sorted(summarise(result.evidence).values().items()))
        if result.verdict.outcome != "passed" and not result.verdict.recorded:
            pytest.fail(session.block(result), pytrace=False)

    yield measure
    # Not after a failure of the test's own, which explains enough.
    if _RESULT not in node.stash and node.stash.get(_PASSED, False):
        pytest.fail(NOTHING_MEASURED, pytrace=False)


# The outermost wrapper: pytest's own xfail has changed the report by then.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give the call the outcome of its verdict; see outcome_of."""
    report = yield
    session = item.config.stash[_SESSION]
    xfail, why = hasattr(report, "wasxfail"), str(call.excinfo.value) if call.excinfo else ""
    session.saw(item, report.skipped, "expected to fail (xfail)" if xfail else why)
    if call.when != "call":
        return report
    result, refused = item.stash.get(_RESULT, None), item.stash.get(_REFUSED, "")
    if report.passed and result is None and not refused and case_of(item) is not None:
        refused = NOTHING_MEASURED  # whatever fixture it had under the name perf
    item.stash[_PASSED] = report.passed and not refused
    verdict = result.verdict if result else None
    found = outcome_of(report.outcome, xfail, verdict, bool(refused))
    if found.overridden:
        report.outcome, report.longrepr = "failed", session.block(result) if result else refused
        # With it pytest would count the failure as an expected one.
        vars(report).pop("wasxfail", None)
    if result is not None and found.names_verdict:
        report.perf_status = session.recorder.word(result)  # type: ignore[attr-defined]
    if found.error:
        # pytest and JUnit call what fails in the call a failure, and what fails in set-up an error.
        report.when = "setup"
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Show the verdict's own word in -v output."""
    status = getattr(report, "perf_status", None)
    if status is None or report.when not in ("call", "setup"):
        return None
    if report.passed:
        return "passed", ".", status
    return ("failed", "F", status) if report.when == "call" else ("error", "E", status)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record what had to wait, write the documents; fail a run that measured no case, or could not
    record as asked.
    """
    run = session.config.stash[_SESSION]
    # The refused option may be the document's own path.
    sound = run.finish(write=exitstatus != pytest.ExitCode.USAGE_ERROR)
    # Another status says more: an interrupt, or tests that failed.
    if not sound and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table and, for everything that did not pass, what to do."""
    run = terminalreporter.config.stash[_SESSION].summary()
    if run is None:
        return
    terminalreporter.section("performance")
    for text, markup in terminal.lines(run):
        terminalreporter.line(printable(text), **markup)
