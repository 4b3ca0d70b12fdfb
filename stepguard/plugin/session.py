"""One pytest run: what is selected, measured and recorded, and what the summary says of it.

The hooks call it; it starts the engine when the first case asks for it, so that collecting tests
costs nothing.
"""

import contextlib
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from stepguard.case import Case
from stepguard.git.resolve import TreeError
from stepguard.git.worktree import tree_of
from stepguard.gpu.nvml import Gpu, MachineError, visible_gpus
from stepguard.launch.launcher import Launcher, LauncherError, spread, survey
from stepguard.measure.confirm import Budget
from stepguard.measure.suite import Result, Suite
from stepguard.plugin.baselines import (
    Collected,
    check_baselines,
    stale_lines,
    waiver_lines,
    whole_folders,
)
from stepguard.plugin.benchmark import WithBenchmark, WithoutBenchmark
from stepguard.plugin.items import asks_for_perf, case_of, unsuited
from stepguard.plugin.options import refuse_bad_options
from stepguard.plugin.recorder import Recorder, Wanted
from stepguard.report import documents, words
from stepguard.report.progress_line import ProgressLine
from stepguard.report.terminal import Caller, Run
from stepguard.storage.json_file import FileError
from stepguard.storage.runs import Store
from stepguard.waiver import Waiver


class Session:
    """The state of one pytest run. Raises UsageError for what would turn the gate off."""

    def __init__(self, config: pytest.Config, bridge: WithBenchmark | WithoutBenchmark) -> None:
        self._config, self._option, self._bridge = config, config.option, bridge
        self._root, start = config.rootpath, Path(config.invocation_params.dir)
        folder = config.getoption("--perf-baselines")
        self._baselines = start / folder if folder else self._root / "baselines"
        option, named = config.option, Caller(start).relative(self._baselines) if folder else ""
        self._caller = Caller(start, _python(start), named)
        wanted = Wanted(option.perf_update, option.perf_update_new, option.perf_reason or "")
        self._recorder = Recorder(wanted, self._caller)
        self._stack = contextlib.ExitStack()  # what has to be given up at the end
        self._gpus: tuple[Gpu, ...] | None = None
        self._collected = Collected()
        self._waivers: tuple[Waiver, ...] = ()
        self._asked = 0  # tests that have the perf fixture
        self._cases: list[Case] = []  # that this run measures
        self._began = False  # whether any test ran, or was skipped, not only collected
        self._skipped: Counter[str] = Counter()  # of those that asked: how many for which reason
        self._checked = False  # the options: pytest goes on with those that were refused
        self._launcher: Launcher | None = None
        self._suite: Suite | None = None
        self._line: ProgressLine | None = None
        self._notices: list[str] = []

    def header(self) -> str:
        """Return pytest's header line; never raises, the collection will."""
        try:
            gpus = self._visible()
        except pytest.UsageError as error:
            return str(error)
        judge = f"baselines in {self._caller.relative(self._baselines)}/"
        if against := self._option.perf_against:
            judge = f"judged against {against}, measured beside it on this machine"
        if not gpus:
            return f"no GPU, smoke cases only; {judge}"
        names = ", ".join(f"{gpu.name} ({gpu.uuid[:12]})" for gpu in gpus)
        return f"{names}, driver {gpus[0].driver}; {judge}"

    def _visible(self) -> tuple[Gpu, ...]:
        """Return this machine's GPUs. Raises UsageError if a driver is there and is silent."""
        if self._gpus is None:
            try:
                self._gpus = tuple(visible_gpus())
            except MachineError as error:
                raise pytest.UsageError(str(error)) from None
        return self._gpus

    def check(self, items: Sequence[pytest.Item], all_collected: bool) -> None:
        """Check options and baselines before anything is deselected, and set the timers."""
        ours = [item for item in items if asks_for_perf(item)]
        if not hasattr(self._config, "workerinput"):  # there every case is refused in its turn
            refuse_bad_options(self._config, self._root, self._baselines, len(self._visible()))
            cases = frozenset(case.id for item in items if (case := case_of(item)))
            whole = all_collected and whole_folders(self._option, self._config.args)
            self._collected = Collected(cases, whole)
            try:
                self._waivers = check_baselines(self._baselines, self._collected)
            except FileError as error:
                raise pytest.UsageError(str(error)) from None
            self._checked = True
        for item in ours:
            self._bridge.prepare(item)

    def plan(self, items: Sequence[pytest.Item]) -> None:
        """Take the tests that are left after deselection; skip what this machine is not for."""
        self._asked = sum(asks_for_perf(item) for item in items)
        ids: Counter[str] = Counter()
        ours = [(item, case) for item in items if (case := case_of(item))]
        self._launcher = self._find_nodes([case for _, case in ours])
        gpus, markers = len(self._visible()), str(self._option.markexpr)
        for item, case in ours:
            ids[case.id] += 1
            if reason := unsuited(case, gpus, markers, self._launcher):
                item.add_marker(pytest.mark.skip(reason=reason))
            else:
                self._cases.append(case)
        if twice := sorted(case_id for case_id, count in ids.items() if count > 1):
            raise pytest.UsageError(f"two cases are called {twice[0]}: ids are baseline keys")
        try:
            for case in self._cases:
                if launcher := spread(case, self._launcher):
                    launcher.per_node(case)
        except LauncherError as error:
            raise pytest.UsageError(str(error)) from None

    def _find_nodes(self, cases: Sequence[Case]) -> Launcher | None:
        """Ask the launcher's nodes what they are, where there is a case for it. Raises UsageError
        for nodes on which nothing could be measured.
        """
        text, several = self._option.perf_launcher, any(case.world_size > 1 for case in cases)
        if text is None or not several or self._option.collectonly or not self._checked:
            return None
        try:
            return survey(text, self._root)
        except LauncherError as error:
            raise pytest.UsageError(f"--perf-launcher={text}: {error}") from None

    def measure(self, case: Case) -> Result:
        """Measure and judge one case, and record it if that was asked for.

        Raises TreeError if the other revision's tree cannot be had, and what Suite.run raises.
        """
        suite, line = self._started()
        if any(result.case.id == case.id for result in suite.results):
            raise pytest.UsageError(f"{case.id} was measured already: ids are baseline keys")
        line.begin(case.id, suite.longest_s(case))
        try:
            result = suite.run(case, line.stage)
        finally:
            line.end()
        self._recorder.record(result)
        return self._recorder.marked(result)

    def _started(self) -> tuple[Suite, ProgressLine]:
        if self._suite is None or self._line is None:
            option, tree = self._option, None
            if rev := option.perf_against:
                try:
                    tree = self._stack.enter_context(tree_of(self._root, rev, self._notices.append))
                except TreeError as error:
                    raise TreeError(f"--perf-against={rev}: {error}") from None
            self._suite = Suite(
                self._root,
                self._baselines,
                self._visible(),
                ["pytest", *self._config.invocation_params.args],
                waivers=self._waivers,
                budget=Budget(60 * option.perf_budget, len(self._cases)),
                confirms=not option.perf_no_confirm,
                tree=tree,
                launcher=self._launcher,
            )
            self._line = _progress_line(self._config, Store(self._root).last_wall_s())
            self._line.plan([(case.id, case.device) for case in self._cases])
        return self._suite, self._line

    def saw(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Note that a test ran, or why it was skipped."""
        self._began = True
        if report.skipped and asks_for_perf(item):
            self._skipped[_skip_reason(item, report)] += 1

    def block(self, result: Result) -> str:
        """Return everything about one result that did not pass."""
        caller, dirty = self._caller, bool(result.evidence.dirty)
        path = caller.relative(result.evidence_path)
        return words.block(result.verdict, path, caller.python, dirty, caller.baselines)

    def word(self, result: Result) -> str:
        """Return the verdict's word while the run goes on: times are recorded when it is over."""
        return self._recorder.word(result)

    def close(self) -> None:
        """Give up what the run holds."""
        self._stack.close()

    def finish(self, write: bool) -> bool:
        """Record what had to wait and ``write`` the documents; tell whether the run may pass:
        it measured a case if it selected one, and recorded what it was asked to.
        """
        self.close()
        suite = self._suite
        if suite is not None:
            for result in suite.results:
                self._notices.extend(words.remarks(result.evidence))
            for case_id in suite.withdraw_false_discoveries():
                self._notices.append(
                    f"{case_id}: SLOWER taken back, not proven among all that this run tried; "
                    "judge it again, alone"
                )
            self._recorder.record_waiting([result.verdict for result in suite.results])
        collect_only = self._option.collectonly
        if write and not collect_only and not hasattr(self._config, "workerinput"):
            self._write_documents()
        nothing = bool(self._asked) and not self._results() and not collect_only
        return not nothing and not self._recorder.refused

    def _results(self) -> list[Result]:
        results = self._suite.results if self._suite else []
        return [self._recorder.marked(result) for result in results]

    def _write_documents(self) -> None:
        """Write --perf-json and --perf-report, also for a run that measured nothing."""
        markdown = partial(documents.suite_markdown, baselines=self._caller.baselines)
        for target, render in (
            (self._option.perf_json, documents.suite_json),
            (self._option.perf_report, markdown),
        ):
            if target:
                path = self._caller.folder / target
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(render(self._results()))

    def summary(self) -> Run | None:
        """Return the run for its summary; None where it measured nothing and was not to, or where
        a usage error says more.
        """
        results = self._results()
        if self._option.collectonly or not self._began or not (self._asked or results):
            return None
        notices = [
            *self._notices,
            *self._recorder.notices,
            *waiver_lines(self._waivers, results),
            *stale_lines(self._collected, results, self._caller.relative),
        ]
        return Run(results, self._caller, notices, self._skipped)


def _python(start: Path) -> str:
    """Return how this interpreter is called from the shell: ``python`` if that is what PATH has."""
    found = shutil.which("python")
    if found and Path(found).absolute() == Path(sys.executable).absolute():
        return "python"
    return Caller(start).relative(Path(sys.executable))


def _skip_reason(item: pytest.Item, report: pytest.TestReport) -> str:
    """Say why a test was skipped, without the case's name, so that equal reasons can be counted."""
    if hasattr(report, "wasxfail"):
        return "expected to fail (xfail)"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    case = case_of(item)
    return text.removeprefix("Skipped: ").removeprefix(case.id if case else "").lstrip(": ")


def _progress_line(config: pytest.Config, expected_s: dict[str, float]) -> ProgressLine:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")

    def write(text: str) -> None:
        if reporter is not None:
            nothing = contextlib.nullcontext()
            with capture.global_and_fixture_disabled() if capture else nothing:
                reporter._tw.write(text, flush=True)

    return ProgressLine(
        write,
        terminal=bool(reporter and reporter.isatty),
        verbose=config.option.verbose > 0,
        width=reporter._tw.fullwidth if reporter else 80,
        expected_s=expected_s,
    )
