"""The state of one pytest run: what is selected, what was measured, what was recorded.

The plugin's hooks call it; it starts the engine when the first case asks for it, so that collecting
tests costs nothing.
"""

import contextlib
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from stepguard.case import Case
from stepguard.comparison import JUDGED_TIME, judged
from stepguard.device import is_gpu
from stepguard.git.resolve import TreeError
from stepguard.git.worktree import tree_of
from stepguard.gpu.nvml import Gpu, MachineError, visible_gpus
from stepguard.measure.confirm import Budget
from stepguard.measure.suite import Result, Suite
from stepguard.plugin.baselines import Baselines
from stepguard.plugin.benchmark import WithBenchmark, WithoutBenchmark
from stepguard.plugin.options import refuse_bad_options
from stepguard.plugin.update import Update
from stepguard.report import documents
from stepguard.report import words as explain
from stepguard.report.live import ProgressLine
from stepguard.storage.json_file import FileError
from stepguard.verdict import Reason


class PerfRun:
    """The state of one pytest run; the engine is reached through it and started when first used."""

    def __init__(self, config: pytest.Config, bridge: WithBenchmark | WithoutBenchmark) -> None:
        self.config, self.bridge = config, bridge
        self.root = config.rootpath
        folder = config.getoption("--perf-baselines")
        self.baselines = (
            Path(config.invocation_params.dir, folder) if folder else self.root / "baselines"
        )
        self.kept = Baselines(config.option, config.args, self.baselines)
        self.selected: list[Case] = []
        self.asked = 0  # tests that have the perf fixture
        self.options_good = False  # until they were checked
        self.began = False  # whether any test ran, or was skipped, not only collected
        self.skipped: Counter[str] = Counter()  # of those that asked: how many for which reason
        self._update = Update(self)
        self.stack = contextlib.ExitStack()  # what has to be given up at the end
        self._gpus: tuple[Gpu, ...] | None = None
        self._suite: Suite | None = None
        self._live: ProgressLine | None = None

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
        judge = f"baselines in {self.relative(self.baselines)}/"
        if against := self.config.option.perf_against:
            judge = f"judged against {against}, in turns on this machine"
        if not gpus:
            return f"no GPU, smoke cases only; {judge}"
        names = ", ".join(f"{gpu.name} ({gpu.uuid[:12]})" for gpu in gpus)
        return f"{names}, driver {gpus[0].driver}; {judge}"

    def refuse_bad_options(self) -> None:
        """Raise UsageError for what would turn the gate off or make it meaningless."""
        if hasattr(self.config, "workerinput"):
            return  # every case is refused when its turn comes: here xdist would hide the reason
        refuse_bad_options(self.config, self.root, self.baselines, len(self.gpus()))
        try:
            self.kept.check()
        except FileError as error:
            raise pytest.UsageError(str(error)) from None
        self.options_good = True

    def plan(self, cases: list[Case]) -> None:
        """Remember the cases to come. Raises UsageError if two of them have one id."""
        self.selected = cases
        ids = [case.id for case in cases]
        if twice := sorted({case_id for case_id in ids if ids.count(case_id) > 1}):
            raise pytest.UsageError(f"two cases are called {twice[0]}: ids are baseline keys")

    def measure(self, case: Case) -> Result:
        """Measure and judge one case, and record it if that was asked for.

        Raises TreeError if the other revision's tree cannot be had, and what Suite.run raises.
        """
        suite, live = self._started()
        if any(result.case.id == case.id for result in suite.results):
            raise pytest.UsageError(f"{case.id} was measured already: ids are baseline keys")
        in_pairs = suite.tree is not None and JUDGED_TIME in judged(case)
        live.begin(case.id, suite.budget.share_s() if in_pairs else None)
        try:
            result = suite.run(case, live.stage)
        finally:
            live.end()
        return self._recorded(suite, result)

    def _recorded(self, suite: Suite, result: Result) -> Result:
        new_only = self.config.option.perf_update_new
        lacks = result.verdict.reason is Reason.NOT_RECORDED
        if not (self.config.option.perf_update or (new_only and lacks)):
            return result
        return self._update.record(suite, result)

    def word(self, result: Result) -> str:
        """The verdict's word while the run goes on: times are recorded when it is over."""
        return self._update.word(self._suite, result)

    def record_waiting(self) -> None:
        """Record the cases with times, now that the run is over."""
        if self._suite is not None:
            self._update.record_waiting(self._suite)

    @property
    def refused(self) -> bool:
        """Whether recording was asked for and could not be done."""
        return self._update.refused

    @property
    def notices(self) -> list[str]:
        """What was recorded and what was not, a sentence each."""
        return self._update.notices

    def _started(self) -> tuple[Suite, ProgressLine]:
        if self._suite is None or self._live is None:
            arguments = ["pytest", *self.config.invocation_params.args]
            self._suite = self._new_suite(arguments)
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

            self._live = ProgressLine(
                write,
                terminal=bool(reporter and reporter.isatty),
                verbose=self.config.option.verbose > 0,
                width=reporter._tw.fullwidth if reporter else 80,
                expected_s=self._suite.store.last_wall_s(),
            )
            self._live.plan([(c.id, c.device) for c in self.selected if not self.unsuited(c)])
        return self._suite, self._live

    def _new_suite(self, arguments: list[str]) -> Suite:
        option = self.config.option
        suite = Suite(self.root, self.baselines, self.gpus(), arguments, self.kept.waivers)
        suite.confirms = not option.perf_no_confirm
        cases = sum(not self.unsuited(case) for case in self.selected)
        suite.budget = Budget(60 * option.perf_budget, cases)
        if option.perf_against:
            tree = tree_of(self.root, option.perf_against, self.notices.append)
            try:
                suite.tree = self.stack.enter_context(tree)
            except TreeError as error:
                raise TreeError(f"--perf-against={option.perf_against}: {error}") from None
        return suite

    def finish(self) -> None:
        """What the run as a whole has to say, and give up what it held."""
        self.stack.close()
        for result in self.results:
            self.notices.extend(explain.remarks(result.evidence))
        if self._suite is not None:
            for case_id in self._suite.hold_false_discoveries():
                self.notices.append(
                    f"{case_id}: SLOWER taken back, not proven among all that this run tried; "
                    "judge it again, alone"
                )

    def unsuited(self, case: Case) -> str:
        """Why this machine is not for the case, or the empty string."""
        have = len(self.gpus())
        if is_gpu(case.device) and have < case.world_size:
            return f"{case.id} needs {case.world_size} GPU(s), this machine shows {have}"
        if not is_gpu(case.device) and have and "smoke" not in str(self.config.option.markexpr):
            return f"{case.id}: a GPU is here, its cases run instead (or say: -m smoke)"
        return ""

    @property
    def python(self) -> str:
        """How this interpreter is called from the shell: as ``python`` if that is what PATH has."""
        found = shutil.which("python")
        if found and Path(found).absolute() == Path(sys.executable).absolute():
            return "python"
        return self.relative(Path(sys.executable))

    @property
    def reason(self) -> str:
        """Why what is recorded is right, where it was said."""
        return self.config.option.perf_reason or ""

    @property
    def folder(self) -> str:
        """The folder of the baselines as the user would type it, where it is not the usual one."""
        return self.relative(self.baselines) if self.config.option.perf_baselines else ""

    @property
    def results(self) -> list[Result]:
        """What was measured so far."""
        return self._suite.results if self._suite else []

    @property
    def measured_nothing(self) -> bool:
        """Whether cases were selected and none of them was measured."""
        return bool(self.asked) and not self.results and not self.config.option.collectonly

    def relative(self, path: Path) -> str:
        """A path as the user would type it."""
        try:
            return str(path.relative_to(self.config.invocation_params.dir))
        except ValueError:
            return str(path)

    def block(self, result: Result) -> str:
        """Everything about one result that did not pass."""
        path, dirty = self.relative(result.evidence_path), bool(result.evidence.dirty)
        return explain.block(result.verdict, path, self.python, dirty, self.folder)

    def write_documents(self) -> None:
        """--perf-json and --perf-report; also for a run that measured nothing."""
        if self.config.option.collectonly or hasattr(self.config, "workerinput"):
            return
        for option, render in (
            ("perf_json", documents.suite_json),
            ("perf_report", partial(documents.suite_markdown, baselines=self.folder)),
        ):
            target = getattr(self.config.option, option)
            if target:
                path = Path(self.config.invocation_params.dir, target)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(render(self.results))

    @property
    def closing(self) -> list[str]:
        """What the summary says of the run as a whole, a sentence each."""
        stale = self.kept.stale(self.results, self.relative)
        return [*self.notices, *self.kept.waiver_lines(self.results), *stale]
