"""The pytest plugin: options, the ``perf`` fixture, and the summary. It delegates everything else.

    @cases(Case("124m", "model.workloads:forward", {"size": "124m"}))
    def test_forward(perf, case):
        perf(case)

Exit codes are pytest's own. A verdict that fails the build fails its test; a verdict that could not
decide is an error of its test; a run that selected cases and measured none of them fails.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from stepguard.case import Case
from stepguard.device import is_gpu
from stepguard.git.resolve import TreeError
from stepguard.judge.summary import summarise
from stepguard.measure.suite import Result
from stepguard.plugin.benchmark import Sink, WithBenchmark, WithoutBenchmark
from stepguard.plugin.options import add_options
from stepguard.plugin.session import PerfRun
from stepguard.report import terminal as summary
from stepguard.storage.json_file import FileError
from stepguard.verdict import Status

MARKERS = (
    "gpu: needs a GPU",
    "multi_gpu: needs several GPUs",
    "smoke: runs on a CPU; gates counters only (skipped where there is a GPU, unless -m smoke)",
    "extended: beyond the core suite; run with -m extended",
)
NOTHING_MEASURED = "the test asked for perf and measured nothing: call perf(case)"
_RUN = pytest.StashKey[PerfRun]()
_RESULT = pytest.StashKey[Result]()
_REFUSED = pytest.StashKey[str]()  # why nothing was measured: no trusted baseline, no other tree
_PASSED = pytest.StashKey[bool]()


class _Declared(list[Any]):
    """The parameters that cases() makes: a test that says @cases is told by them from one that is
    parametrized over cases for reasons of its own.
    """


def cases(*items: Case) -> pytest.MarkDecorator:
    """Parametrize a test over cases; markers follow from each case's device and world size."""
    return pytest.mark.parametrize(
        "case", _Declared(pytest.param(c, id=c.name, marks=_marks(c)) for c in items)
    )


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    names = ["gpu" if is_gpu(case.device) else "smoke"]
    names += ["multi_gpu"] if is_gpu(case.device) and case.world_size > 1 else []
    names += ["extended"] if case.extended else []
    return [getattr(pytest.mark, name) for name in names]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, all prefixed."""
    add_options(parser.getgroup("stepguard", "performance regression gate"))


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, the bridge to pytest-benchmark, and the run's state."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    active = map(config.pluginmanager.hasplugin, ("benchmark", "pytest_benchmark.plugin"))
    bridge = WithBenchmark() if any(active) else WithoutBenchmark()
    config.pluginmanager.register(bridge, "stepguard-bridge")
    config.stash[_RUN] = PerfRun(config, bridge)


def pytest_report_header(config: pytest.Config) -> str:
    """The machine, and where its baseline is."""
    return f"stepguard: {config.stash[_RUN].machine_line()}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Refuse what would pass unmeasured, set the timers."""
    config.stash[_RUN].kept.declared = {case.id for item in items if (case := _case_of(item))}
    config.stash[_RUN].kept.collected_well = not session.testsfailed
    if not hasattr(config, "workerinput"):
        for item in items:
            _refuse_without_perf(item)
    ours = [item for item in items if _asks_for_perf(item)]
    if not ours:
        return
    run = config.stash[_RUN]
    run.refuse_bad_options()
    for item in ours:
        run.bridge.prepare(item)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is left after deselection is the plan; skip what this machine is not for."""
    run = session.config.stash[_RUN]
    run.asked = sum(_asks_for_perf(item) for item in session.items)
    ours = [(item, case) for item in session.items if (case := _case_of(item))]
    for item, case in ours:
        if reason := run.unsuited(case):
            item.add_marker(pytest.mark.skip(reason=reason))
    run.plan([case for _, case in ours])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Under xdist a case is refused when its turn comes: earlier, xdist would hide the reason."""
    if not hasattr(item.config, "workerinput"):
        return
    _refuse_without_perf(item)
    if _asks_for_perf(item):
        pytest.fail("performance cases cannot share a machine: run without -n", pytrace=False)


def _refuse_without_perf(item: pytest.Item) -> None:
    """Raises UsageError for a test that says @cases and lacks the fixture: it would be green
    whatever its cases do, and no mark of its own, xfail for one, may hide that.
    """
    if "perf" in getattr(item, "fixturenames", ("perf",)):
        return
    parametrized = item.iter_markers("parametrize")
    if any(isinstance(value, _Declared) for mark in parametrized for value in mark.args):
        raise pytest.UsageError(
            f"{item.nodeid} has @cases and not the fixture perf, so it would pass unmeasured: "
            "take perf as an argument and call perf(case)"
        )


def _asks_for_perf(item: pytest.Item) -> bool:
    """Whether the item has our fixture, and not one of its own that happens to be called so."""
    if "perf" not in getattr(item, "fixturenames", ()):
        return False
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    definitions = known.get("perf", ())
    return not definitions or definitions[-1].func.__module__ == __name__ or bool(_case_of(item))


def _case_of(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("case") if callspec else None
    return found if isinstance(found, Case) and "perf" in item.fixturenames else None  # type: ignore[attr-defined]


@pytest.fixture
def perf(request: pytest.FixtureRequest, perf_sink: Sink) -> Iterator[Callable[[Case], None]]:
    """``perf(case)`` measures the case, compares it with its baseline and gives the verdict.

    A test that has the fixture and measures nothing is an error: it would pass whatever happens.
    """
    run, node = request.config.stash[_RUN], request.node

    def measure(case: Case) -> None:
        if _RESULT in node.stash:
            raise pytest.UsageError("perf(case) was called twice in one test: use two tests")
        own = _case_of(node)
        if own is not None and own.id != case.id:
            raise pytest.UsageError(f"this test is for {own.id}, but it measures {case.id}")
        try:
            result = run.measure(case)
        except (FileError, TreeError) as error:
            node.stash[_REFUSED] = f"{case.id}: {Status.BROKEN.value}: {error}"
            pytest.fail(node.stash[_REFUSED], pytrace=False)
        node.stash[_RESULT] = result
        perf_sink(result)
        node.user_properties.extend(_properties(result))
        if result.verdict.outcome != "passed" and not result.verdict.recorded:
            text = run.block(result)
            pytest.fail(text, pytrace=False)

    yield measure
    if _RESULT not in node.stash and node.stash.get(_PASSED, False):
        pytest.fail(NOTHING_MEASURED, pytrace=False)


def _properties(result: Result) -> list[tuple[str, object]]:
    values = summarise(result.evidence).values()
    return [("perf_verdict", result.verdict.label), *sorted(values.items())]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A verdict that could not decide is an error, not a failure, as if its set-up had failed.

    Neither a test that catches the verdict nor, where nothing was decided, an xfail mark hides it.
    """
    report = yield
    item.config.stash[_RUN].began = True
    if report.skipped and _asks_for_perf(item):
        item.config.stash[_RUN].skipped[_skip_reason(item, report)] += 1
    if call.when != "call":
        return report
    result, text = item.stash.get(_RESULT, None), item.stash.get(_REFUSED, "")
    if report.passed and result is None and not text and _case_of(item) is not None:
        text = NOTHING_MEASURED  # whatever fixture it had under the name perf
    item.stash[_PASSED] = report.passed and not text
    outcome = "error" if text else "passed"
    if result is not None and not result.verdict.recorded:
        outcome = result.verdict.outcome
        text = item.config.stash[_RUN].block(result)
    known = outcome == "failed" and result is not None and not result.verdict.undecided
    expected = hasattr(report, "wasxfail") and known
    if outcome != "passed" and (report.passed or report.skipped) and not expected:
        report.outcome, report.longrepr = "failed", text
        vars(report).pop("wasxfail", None)
    if result is not None and (report.passed or report.failed and outcome != "passed"):
        report.perf_status = item.config.stash[_RUN].word(result)  # type: ignore[attr-defined]
    if report.failed and outcome == "error":
        report.when = "setup"
    return report


def _skip_reason(item: pytest.Item, report: pytest.TestReport) -> str:
    """Why it was skipped, without the case's name, so that equal reasons can be counted."""
    if hasattr(report, "wasxfail"):
        return "expected to fail (xfail)"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    case = _case_of(item)
    return text.removeprefix("Skipped: ").removeprefix(case.id if case else "").lstrip(": ")


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """The verdict's own word in -v output."""
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
    run = session.config.stash[_RUN]
    run.finish()
    run.record_waiting()
    if exitstatus != pytest.ExitCode.USAGE_ERROR:
        run.write_documents()
    if (run.measured_nothing or run.refused) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing is left behind, however the run ended."""
    if _RUN in config.stash:
        config.stash[_RUN].stack.close()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table and, for everything that did not pass, what to do."""
    config = terminalreporter.config
    run = config.stash[_RUN]
    if config.option.collectonly or not run.began or not (run.asked or run.results):
        return  # a usage error, say: its own line follows, and says more
    terminalreporter.section("performance")
    for text, markup in summary.lines(run, run.closing):
        terminalreporter.line(text, **markup)
