"""The pytest plugin: options, the ``perf`` fixture, and the summary. It delegates everything else.

    @cases(Case("124m", "model.workloads:forward", {"size": "124m"}))
    def test_forward(perf, case):
        perf(case)

Exit codes are pytest's own. A verdict that fails the build fails its test; a verdict that could not
decide is an error of its test; a run that selected cases and measured none of them fails.
"""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from stepguard import explain
from stepguard.benchmark_bridge import Sink, WithBenchmark, WithoutBenchmark
from stepguard.case import Case
from stepguard.host.baseline import BaselineError, load
from stepguard.host.machine import Gpu, MachineError, visible_gpus
from stepguard.host.suite import Result, Suite
from stepguard.report import documents, table
from stepguard.report.live import Live
from stepguard.verdict import Reason, Status

MARKERS = (
    "gpu: needs a GPU",
    "multi_gpu: needs several GPUs",
    "smoke: runs on a CPU; gates counters only (skipped where there is a GPU, unless -m smoke)",
    "extended: beyond the core suite; run with -m extended",
)
_RUN = pytest.StashKey["PerfRun"]()
_RESULT = pytest.StashKey[Result]()
_REFUSED = pytest.StashKey[str]()  # why nothing was measured: the baseline file is not trusted
_PASSED = pytest.StashKey[bool]()


def cases(*items: Case) -> pytest.MarkDecorator:
    """Parametrize a test over cases; markers follow from each case's device and world size."""
    return pytest.mark.parametrize(
        "case", [pytest.param(c, id=c.name, marks=_marks(c)) for c in items]
    )


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    names = ["smoke" if case.device == "cpu" else "gpu"]
    names += ["multi_gpu"] if case.device == "cuda" and case.world_size > 1 else []
    names += ["extended"] if case.extended else []
    return [getattr(pytest.mark, name) for name in names]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options, all prefixed."""
    group = parser.getgroup("stepguard", "performance regression gate")
    group.addoption(
        "--perf-update",
        action="store_true",
        help="record what is measured now: every sound result, changed levels too",
    )
    group.addoption(
        "--perf-update-new",
        action="store_true",
        help="record only the cases that have no baseline",
    )
    group.addoption(
        "--perf-baselines", metavar="DIR", help="folder of the baseline files (baselines/)"
    )
    group.addoption(
        "--perf-require-gpus",
        metavar="N",
        type=int,
        default=0,
        help="refuse to run with fewer GPUs than this, instead of skipping (%(default)s)",
    )
    group.addoption("--perf-json", metavar="PATH", help="write the run as one JSON document")
    group.addoption("--perf-report", metavar="PATH", help="write the run as Markdown")


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
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check what would make the gate pass without measuring; give every case its timer."""
    config.stash[_RUN].declared = {case.id for item in items if (case := _case_of(item))}
    ours = [item for item in items if "perf" in getattr(item, "fixturenames", ())]
    if not ours:
        return
    run = config.stash[_RUN]
    run.refuse_bad_options()
    for item in ours:
        run.bridge.prepare(item)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is left after deselection is the plan."""
    session.config.stash[_RUN].plan(session.items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, with the reason, what this machine is not for."""
    if hasattr(item.config, "workerinput") and "perf" in getattr(item, "fixturenames", ()):
        pytest.fail("performance cases cannot share a machine: run without -n", pytrace=False)
    case = _case_of(item)
    if case is None:
        return
    have = len(item.config.stash[_RUN].gpus())
    if case.device == "cuda" and have < case.world_size:
        pytest.skip(f"{case.id} needs {case.world_size} GPU(s), this machine shows {have}")
    if case.device == "cpu" and have and "smoke" not in str(item.config.option.markexpr):
        pytest.skip(f"{case.id}: a GPU is here, its cases run instead (or say: -m smoke)")


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
        try:
            result = run.measure(case)
        except BaselineError as error:
            node.stash[_REFUSED] = f"{case.id}: {Status.BROKEN.value}: {error}"
            pytest.fail(node.stash[_REFUSED], pytrace=False)
        node.stash[_RESULT] = result
        perf_sink(result)
        node.user_properties.extend(_properties(result))
        if result.verdict.status.outcome != "passed" and not result.verdict.recorded:
            text = explain.block(result.verdict, run.relative(result.evidence_path))
            pytest.fail(text, pytrace=False)

    yield measure
    if _RESULT not in node.stash and node.stash.get(_PASSED, False):
        pytest.fail("the test asked for perf and measured nothing: call perf(case)", pytrace=False)


def _properties(result: Result) -> list[tuple[str, object]]:
    values = result.evidence.values()
    return [("perf_verdict", result.verdict.status.value), *sorted(values.items())]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A verdict that could not decide is an error, not a failure, as if its set-up had failed.

    Neither a test that catches the verdict nor, where nothing was decided, an xfail mark hides it.
    """
    report = yield
    if call.when != "call":
        return report
    item.stash[_PASSED] = report.passed
    result, text = item.stash.get(_RESULT, None), item.stash.get(_REFUSED, "")
    outcome = "error" if text else "passed"
    if result is not None and not result.verdict.recorded:
        outcome = result.verdict.status.outcome
        text = explain.block(result.verdict, str(result.evidence_path))
    if outcome != "passed" and (report.passed or report.skipped and outcome == "error"):
        report.outcome, report.longrepr = "failed", text
        vars(report).pop("wasxfail", None)
    if result is not None and (report.passed or report.failed and outcome != "passed"):
        report.perf_status = result.verdict.status.value  # type: ignore[attr-defined]
    if report.failed and outcome == "error":
        report.when = "setup"
    return report


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
    """Write the documents; fail a run that had cases and measured none."""
    run = session.config.stash[_RUN]
    if exitstatus != pytest.ExitCode.USAGE_ERROR:
        run.write_documents()
    if run.measured_nothing and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table and, for everything that did not pass, what to do."""
    terminalreporter.config.stash[_RUN].summarize(terminalreporter)


class PerfRun:
    """The state of one pytest run; the engine is reached through it and started when first used."""

    def __init__(self, config: pytest.Config, bridge: WithBenchmark | WithoutBenchmark) -> None:
        self.config, self.bridge = config, bridge
        self.root = config.rootpath
        folder = config.getoption("--perf-baselines")
        self.baselines = (
            Path(config.invocation_params.dir, folder) if folder else self.root / "baselines"
        )
        self.declared: set[str] = set()
        self.selected: list[Case] = []
        self.notices: list[str] = []
        self._gpus: tuple[Gpu, ...] | None = None
        self._suite: Suite | None = None
        self._live: Live | None = None

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of this machine. Raises UsageError if a driver is there and does not answer."""
        if self._gpus is None:
            try:
                self._gpus = tuple(visible_gpus())
            except MachineError as error:
                raise pytest.UsageError(str(error)) from None
        return self._gpus

    def machine_line(self) -> str:
        """For pytest's header; never raises, the collection will."""
        try:
            gpus = self.gpus()
        except pytest.UsageError as error:
            return str(error)
        if not gpus:
            return f"no GPU, smoke cases only; baselines in {self.relative(self.baselines)}/"
        names = ", ".join(f"{gpu.name} ({gpu.uuid[:12]})" for gpu in gpus)
        return f"{names}, driver {gpus[0].driver}; baselines in {self.relative(self.baselines)}/"

    def refuse_bad_options(self) -> None:
        """Raise UsageError for what would turn the gate off or make it meaningless."""
        option = self.config.option
        if hasattr(self.config, "workerinput"):
            return  # every case is refused when its turn comes: here xdist would hide the reason
        for name in ("benchmark_skip", "benchmark_disable"):
            if getattr(option, name, False):
                flag = "--" + name.replace("_", "-")
                raise pytest.UsageError(f"{flag} would pass the performance cases unmeasured")
        required = option.perf_require_gpus
        if len(self.gpus()) < required:
            raise pytest.UsageError(
                f"--perf-require-gpus={required}: this machine shows {len(self.gpus())}; "
                "see: python -m stepguard doctor"
            )
        for name in ("perf_json", "perf_report"):
            if target := getattr(option, name):
                self._refuse_target(f"--{name.replace('_', '-')}={target}", target)
        try:
            for path in sorted(self.baselines.glob("*.json")):
                load(path)
        except BaselineError as error:
            raise pytest.UsageError(str(error)) from None
        if not self.baselines.is_dir() and option.perf_baselines:
            raise pytest.UsageError(f"--perf-baselines={option.perf_baselines}: no such folder")

    def _refuse_target(self, given: str, target: str) -> None:
        path = Path(self.config.invocation_params.dir, target)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"{given}: {error.strerror}") from None
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise pytest.UsageError(f"{given}: cannot be written")

    def plan(self, items: list[pytest.Item]) -> None:
        """Remember the cases to come."""
        self.selected = [case for item in items if (case := _case_of(item)) is not None]
        ids = [case.id for case in self.selected]
        if twice := sorted({case_id for case_id in ids if ids.count(case_id) > 1}):
            raise pytest.UsageError(f"two cases are called {twice[0]}: ids are baseline keys")

    def measure(self, case: Case) -> Result:
        """Measure and judge one case, and record it if that was asked for."""
        suite, live = self._started()
        if any(result.case.id == case.id for result in suite.results):
            raise pytest.UsageError(f"{case.id} was measured already: ids are baseline keys")
        live.begin(case.id)
        try:
            result = suite.run(case, live.stage)
        finally:
            live.end()
        return self._recorded(suite, result)

    def _recorded(self, suite: Suite, result: Result) -> Result:
        import dataclasses

        new_only = self.config.option.perf_update_new
        lacks = result.verdict.reason is Reason.NOT_RECORDED
        if not (self.config.option.perf_update or (new_only and lacks)):
            return result
        try:
            done = suite.accept(result, "accepted with --perf-update")
        except BaselineError as error:
            self.notices.append(str(error))
            return result
        self.notices.append(done)
        verdict = dataclasses.replace(result.verdict, recorded=True)
        suite.results[-1] = dataclasses.replace(result, verdict=verdict)
        return suite.results[-1]

    def _started(self) -> tuple[Suite, Live]:
        if self._suite is None or self._live is None:
            arguments = ["pytest", *self.config.invocation_params.args]
            self._suite = Suite(self.root, self.baselines, self.gpus(), arguments)
            reporter = self.config.pluginmanager.getplugin("terminalreporter")
            capture = self.config.pluginmanager.getplugin("capturemanager")

            def write(text: str) -> None:
                if reporter is None:
                    return
                if capture is None:
                    reporter._tw.write(text, flush=True)
                    return
                with capture.global_and_fixture_disabled():
                    reporter._tw.write(text, flush=True)

            self._live = Live(
                write,
                terminal=bool(reporter and reporter.isatty),
                verbose=self.config.option.verbose > 0,
                width=reporter._tw.fullwidth if reporter else 80,
                expected_s=self._suite.store.last_wall_s(),
            )
            have = len(self.gpus())
            self._live.plan(
                [
                    (case.id, case.device)
                    for case in self.selected
                    if (case.device == "cuda" and case.world_size <= have)
                    or (case.device == "cpu" and not have)
                ]
            )
        return self._suite, self._live

    @property
    def results(self) -> list[Result]:
        """What was measured so far."""
        return self._suite.results if self._suite else []

    @property
    def measured_nothing(self) -> bool:
        """Whether cases were selected and none of them was measured."""
        return bool(self.selected) and not self.results and not self.config.option.collectonly

    def relative(self, path: Path) -> str:
        """A path as the user would type it."""
        try:
            return str(path.relative_to(self.config.invocation_params.dir))
        except ValueError:
            return str(path)

    def write_documents(self) -> None:
        """--perf-json and --perf-report; also for a run that measured nothing."""
        if self.config.option.collectonly or hasattr(self.config, "workerinput"):
            return
        for option, render in (
            ("perf_json", documents.suite_json),
            ("perf_report", documents.suite_markdown),
        ):
            target = getattr(self.config.option, option)
            if target:
                path = Path(self.config.invocation_params.dir, target)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(render(self.results))

    def summarize(self, reporter: pytest.TerminalReporter) -> None:
        """The table, then a sentence and the commands for each case that needs a person."""
        if not (self.selected or self.results) or self.config.option.collectonly:
            return
        reporter.section("performance")
        verdicts = [result.verdict for result in self.results]
        for text, status in table.lines(table.rows(verdicts)) if verdicts else ():
            reporter.line(text, **_colour(status))
        if self.measured_nothing:
            reporter.line("NOTHING WAS MEASURED: no selected case came to a result.", red=True)
        elif all(result.case.device == "cpu" for result in self.results):
            reporter.line(table.CPU_NOTE)
        reporter.line(table.counts(verdicts))
        for notice in [*self.notices, *self._stale()]:
            reporter.line(notice)
        for result in sorted(self.results, key=lambda r: r.verdict.status.rank):
            if result.verdict.status is not Status.SAME and not result.verdict.recorded:
                reporter.line("")
                reporter.line(explain.headline(result.verdict), **_colour(result.verdict.status))
                steps = explain.next_steps(result.verdict, self.relative(result.evidence_path))
                for step in steps:
                    reporter.line(f"  {step}")

    def _stale(self) -> list[str]:
        """Baseline entries that no case claims; said only when whole folders were collected."""
        option = self.config.option
        if any(not Path(argument).is_dir() for argument in self.config.args):
            return []
        if option.ignore or option.ignore_glob or option.deselect:
            return []
        lines = []
        for path in sorted({result.baseline_path for result in self.results}):
            content = load(path)
            for case_id in sorted(set(content.cases) - self.declared if content else ()):
                lines.append(f"{self.relative(path)}: {case_id} has a baseline but no case")
        return lines


def _colour(status: Status | None) -> dict[str, bool]:
    if status is None:
        return {"bold": True}
    if status is Status.SAME:
        return {}
    if status is Status.FASTER:
        return {"green": True}
    return {"red": True} if status.outcome == "failed" else {"yellow": True}
