"""One pytest run: what is selected, measured and recorded, and what the summary says of it.

The hooks call a PerfSession. It starts the engine for the first case that is measured, so that
collecting tests costs nothing.
"""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import dropwhile, islice
from pathlib import Path

import pytest
from msgspec import structs

from stepguard.core.case import Case
from stepguard.core.comparison import judged, other_side
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.permission import Permission
from stepguard.core.reason_sentences import no_folder, uncommitted
from stepguard.core.run_document import (
    SCHEMA,
    CaseState,
    GpuDocument,
    Problem,
    ProblemCode,
    RunDocument,
)
from stepguard.core.text import listed, printable
from stepguard.judge.pair_statistics import level_of
from stepguard.launch.nodes import (
    LAUNCHER,
    Launcher,
    named_launcher,
    spread,
    survey,
)
from stepguard.machine import inherited
from stepguard.machine.git.resolve import TreeError, left_behind, resolve
from stepguard.machine.git.revision import current, no_commit
from stepguard.machine.git.worktree import Tree, tree_of
from stepguard.machine.gpu import Gpu, MachineError, known_gpus, visible_gpus
from stepguard.machine.interpreter import as_typed, interpreter
from stepguard.machine.packages import Pythons, require_torch, survey_both
from stepguard.measure.suite import Ended, Result, Suite
from stepguard.plugin.baseline_folder import (
    BaseBranch,
    base_of,
    check_baselines,
    stale_lines,
    waiver_lines,
    whole_folders,
)
from stepguard.plugin.declared_cases import Collected, case_of, refuse_without_perf
from stepguard.plugin.options import base_branch
from stepguard.plugin.pytest_terminal import interrupted_lines, machine_and_judge, progress_line
from stepguard.plugin.run_outputs import Recorder, end_of, options_of, problems_of, write
from stepguard.plugin.selection import (
    NO_GATE,
    SAID_BEFORE,
    Selection,
    StrictRun,
    left_out_line,
    unsuited,
)
from stepguard.report import document_json, github, verdict_text
from stepguard.report.next_steps import Commands
from stepguard.report.progress_line import ProgressLine
from stepguard.report.terminal_summary import ShownRun, scaling_lines
from stepguard.storage import run_document_file
from stepguard.storage.baseline_files import CPU_MACHINE, declared, load_waivers, today
from stepguard.storage.json_file import FileError
from stepguard.storage.kept_runs import Store


@contextlib.contextmanager
def usage_errors(front: str = "") -> Iterator[None]:
    """Turn errors of options, files and the machine into UsageError, behind ``front``."""
    try:
        yield
    except (FileError, MachineError, TreeError) as error:
        raise pytest.UsageError(printable(f"{front}{error}")) from None


class PerfSession:
    """The state of one pytest run. Methods raise UsageError for what would switch the gate off."""

    def __init__(self, config: pytest.Config, collection: Collected) -> None:
        self._config, self._option = config, config.option
        self._began = datetime.now(UTC)
        self._root, start = config.rootpath, Path(config.invocation_params.dir)
        folder = config.getoption("--perf-baselines")
        self._baselines = start / folder if folder else self._root / "baselines"
        named = Commands(start).relative(self._baselines) if folder else ""
        self._commands = Commands(start, interpreter(start), named)
        self._collection = collection
        self.selection = Selection(config, collection)
        self.guard = StrictRun(config, self._baselines)
        self.recorder = Recorder(config.option, self._commands)
        self._stack = contextlib.ExitStack()  # closed at the end
        self._refused: list[Problem] = []  # the usage error that ended the run
        self._missed: list[Problem] = []  # what only the run's summary says
        self._checked = False  # whether check() passed; pytest calls plan() also if it did not
        self._whole = False  # all cases are known
        self._base: BaseBranch | None = None
        self._waivers: tuple[Permission, ...] = ()
        self._cases: list[Case] = []  # the cases that this run measures
        self._ran = False  # whether any test ran or was skipped, not only collected
        self._launcher: Launcher | None = None
        self._suite: Suite | None = None
        self._tree: Tree | None = None
        self._pythons: Pythons | None = None  # the running one, and the other side's
        python = config.option.perf_against_python or ""
        self._against = other_side(config.option.perf_against or "", python)
        self._line: ProgressLine | None = None
        self._notices: list[str] = []
        self._annotations: list[str] = []
        self._causes: dict[Hashable, str] = {}
        self._interrupted = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that the run was interrupted. A second interrupt may come while pytest shows where
        the first one was. Without the note the run would then end as if all had passed.
        """
        self._interrupted = excinfo.errisinstance(KeyboardInterrupt)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Keep the usage error that ends the run: the run's document reports it, too."""
        try:
            yield
        except pytest.UsageError as error:
            self._refused = [Problem(ProblemCode.REFUSED, str(error))]
            raise

    def header(self) -> list[str]:
        """Return a line on the machine and on what judges, if the run has cases; else empty."""
        if not self.selection.asked or self._config.get_verbosity() < 0:
            return []
        folder = self._commands.relative(self._baselines)
        line = machine_and_judge(self._gpus, folder, self._against)
        base = self._base.lines() if self._base else ()
        return [f"stepguard: {line}", *(f"stepguard: {text}" for text in base)]

    @cached_property
    @usage_errors()
    def _gpus(self) -> tuple[Gpu, ...]:
        return tuple(visible_gpus())

    @usage_errors()
    def check(self, items: list[pytest.Item], all_collected: bool) -> None:
        """Check tests, options and baselines before deselection."""
        # xdist hides a worker's usage errors: there each test is refused when it begins.
        if not hasattr(self._config, "workerinput"):
            for item in items:
                refuse_without_perf(item)
            self._check_folder(all_collected)

    def _check_folder(self, all_collected: bool) -> None:
        self._refuse_options()
        self._whole = all_collected and whole_folders(self._config)
        if (named := base_branch(self._config))[0]:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="stepguard-"))
            with usage_errors(f"{named[1]}: "):
                into = Path(folder) / self._baselines.name
                self._base = base_of(self._root, self._baselines, named[0], into)
        judges = self._base.folder if self._base else self._baselines
        self._waivers = check_baselines(judges, self._collection.cases, self._whole, self._commands)
        if self._base:
            head = current(self._root, None).commit
            self._waivers = declared(load_waivers(self._baselines, today()), self._waivers, head)
        self.guard.begin(self._gpus, judges, self._collection.cases.values())
        # Last, so that plan() starts a launcher only after all checks passed.
        self._checked = True

    def _refuse_options(self) -> None:
        """Raise UsageError for options that would waste the run: its end could not obey them."""
        option = self._option
        required, gpus = option.perf_require_gpus, len(self._gpus)
        known = known_gpus() if required else 0
        if gpus < max(required, known):
            why = f"--perf-require-gpus={required}: this machine shows {gpus}"
            # Cases that need more would be skipped.
            why += f" of {known}, look at CUDA_VISIBLE_DEVICES" if gpus < known else ""
            raise pytest.UsageError(f"{why}; see: {as_typed('stepguard doctor')}")
        if option.perf_baselines and not self._baselines.is_dir():
            missing = no_folder(str(self._baselines))
            raise pytest.UsageError(f"--perf-baselines={option.perf_baselines}: {missing}")
        if rev := option.perf_against:
            with usage_errors(f"--perf-against={rev}: "):
                resolve(self._root, rev)
        if python := option.perf_against_python:
            with usage_errors(f"--perf-against-python={python}: "):
                variables = inherited.STARTED.variables
                self._pythons = survey_both(python, self._commands.folder, self._root, variables)
        for name, path in self._documents.items():
            problem = run_document_file.unwritable(self._commands.folder / path)
            if path.endswith(".html"):
                problem = f"is Markdown; for HTML: {as_typed(f'stepguard report --html {path}')}"
            if problem:
                raise pytest.UsageError(printable(f"{name}={path}: {problem}"))
        if self.recorder.records:
            if option.perf_against or base_branch(self._config)[0]:
                raise pytest.UsageError(
                    "a run that records is judged by its own baselines: record without "
                    "--perf-against, and without --perf-base or a base that CI names"
                )
            dirty = current(self._root, self._baselines).dirty
            if problem := no_commit(self._root) or uncommitted(dirty):
                raise pytest.UsageError(printable(f"nothing can be recorded: {problem}"))

    @property
    def _documents(self) -> dict[str, str]:
        given = {"--perf-json": self._option.perf_json, "--perf-report": self._option.perf_report}
        return {name: path for name, path in given.items() if path}

    def _unsuited(self, case: Case) -> str:
        return unsuited(case, len(self._gpus), str(self._option.markexpr), self._launcher)

    @usage_errors()
    def plan(self, items: Sequence[pytest.Item]) -> None:
        """Note the tests that are left after deselection. Skip those not for this machine."""
        # Tests that are skipped below count as selected: a run that skips all cases must fail.
        self.selection.kept(items)
        ours = [(item, case) for item in items if (case := case_of(item))]
        ids = Counter(case.id for _, case in ours)
        if twice := sorted(case_id for case_id, count in ids.items() if count > 1):
            why = "ids are baseline keys; rename one of them"
            raise pytest.UsageError(f"two cases are called {twice[0]}: {why}")
        text, several = named_launcher(), any(case.world_size > 1 for _, case in ours)
        # A launcher starts processes on every node. A listing and cases of one rank need none.
        if text is not None and several and self._checked and not self._option.collectonly:
            with usage_errors(f"{LAUNCHER}={text}: "):
                if self._pythons:
                    raise MachineError(
                        "the interpreter of --perf-against-python runs on this node alone; name "
                        f"cases of one rank, or unset {LAUNCHER}"
                    )
                self._launcher = survey(text, self._root)
        for item, case in ours:
            if reason := self._unsuited(case):
                self.selection.unsuited[item.nodeid] = reason
                item.add_marker(pytest.mark.skip(reason=f"{case.id}: {reason}"))
                continue
            self._cases.append(case)
            if nodes := spread(case, self._launcher):
                # Called for its error before anything is measured: nodes may not fit the ranks.
                nodes.per_node(case)
        if self._cases and not self._option.collectonly:
            require_torch()

    def measure(self, item: pytest.Item, case: Case) -> Result:
        """Measure and judge a test's case, and record it if asked. Raises as Suite.run does."""
        suite, line = self._started()
        if any(result.case.id == case.id for result in suite.results):
            raise pytest.UsageError(f"{case.id} was measured already: ids are baseline keys")
        with line.case(case.id, suite.longest_s(case)):
            try:
                result = suite.run(case, line.stage, self._after(case))
            except Ended as ended:  # judged like any other; then the run ends, with -x as failed
                result, self._interrupted = ended.result, True
                item.session.shouldstop = str(ended)
        if not result.evidence.faults:  # a faulty case ended early, or waited for a deadline
            line.learn(case.id, result.evidence.wall_s)
        self.selection.measured[item.nodeid] = case
        suite.results[-1] = self.recorder.record(result)
        return suite.results[-1]

    def _after(self, case: Case) -> Case | None:
        """Return the next case, if pytest keeps the order in which it collected them."""
        behind = dropwhile(lambda collected: collected.id != case.id, self._cases)
        return next(islice(behind, 1, None), None)

    def repeated(self, result: Result) -> Result:
        """Return the result that a test already has, and note that the test was run again. A gate
        that measured again would pass sooner or later.
        """
        self._notices.append(
            f"{result.case.id}: its test was run again (--reruns?): the verdict stands, "
            "nothing was measured again"
        )
        return result

    def _started(self) -> tuple[Suite, ProgressLine]:
        if self._suite is None or self._line is None:
            option, notice = self._option, self._notices.append
            if rev := option.perf_against:
                try:
                    self._tree = self._stack.enter_context(tree_of(self._root, rev, notice))
                except TreeError as error:
                    raise TreeError(f"--perf-against={rev}: {error}") from None
                if lacks := left_behind(self._root, rev, self._tree.commit):
                    notice(lacks)
            self._suite = Suite(
                self._root,
                self._baselines,
                self._gpus,
                ["pytest", *self._config.invocation_params.args],
                permissions=self._waivers,
                budget_s=60 * option.perf_budget,
                cases=len(self._cases),
                records=self.recorder.records,
                alpha=level_of(sum(JUDGED_TIME in judged(case) for case in self._cases)),
                tree=self._tree,
                pythons=self._pythons,
                launcher=self._launcher,
                base=self._base.name if self._base else "",
                base_baselines=self._base.folder if self._base else None,
                environment=inherited.STARTED.variables,
            )
            self._stack.callback(self._suite.close)
            pairs = self._suite.in_pairs
            last_s = Store(self._root).last_wall_s(self._cases, pairs)
            self._line = progress_line(self._config, self._cases, last_s)
        return self._suite, self._line

    def saw(self, item: pytest.Item, skipped: bool, why: str) -> None:
        """Note that a test ran, or that it was ``skipped`` and why."""
        self._ran = True
        self.selection.ran(item, skipped, why)

    def block(self, result: Result) -> str:
        """Return everything about one result that did not pass."""
        verdict = result.verdict
        # pytest prints only failures.
        again = verdict_text.reference(verdict, self._causes) if verdict.outcome != "passed" else ""
        return verdict_text.block(verdict_text.result_page(result, self._commands), again)

    def close(self) -> None:
        """Release all that the run has taken."""
        self._stack.close()

    def finish(self, exitstatus: int) -> bool:
        """Record what waited, write the documents, and tell whether the run may pass."""
        # Now, not at pytest's clean-up: the summary says which tree could not be removed.
        self.close()
        if self._interrupted and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            exitstatus = pytest.ExitCode.INTERRUPTED
        if self._suite is not None:
            self._settle(self._suite)
        if exitstatus == pytest.ExitCode.INTERRUPTED and self._cases:
            self._notices += interrupted_lines(self._cases, self._results())
        # A listing measures nothing: a strict run fails for it.
        if self._option.collectonly and not self._refused and not self.guard.strict:
            return True
        results = self._results()
        self._notices += [*self.guard.notices, *self.recorder.notices]
        self._notices += waiver_lines(self._waivers, results, self._commands)
        if self._whole:
            self._notices += stale_lines(self._collection.cases, results, self._commands)
        states: list[CaseState] = []
        with contextlib.suppress(pytest.UsageError):  # of a machine that cannot be read
            states = self.selection.states(self.guard.recorded, self._unsuited)
        self._notices += left_out_line(states)
        nothing = self.selection.asked and not results
        own = self._refused or problems_of(exitstatus, self.recorder.refused, nothing)
        asked = self._documents or self.guard.strict
        if hasattr(self._config, "workerinput") or not (asked or github.in_actions()):
            return not own
        document = self._document(exitstatus, results, own, states)
        # A usage error says why nothing was measured.
        found = self.guard.missed(document, self._waivers) if asked and not self._refused else []
        self._missed = [problem for problem in found if problem.code not in SAID_BEFORE]
        if self._missed and not self._option.perf_strict:
            self._notices.append(NO_GATE)
        document = structs.replace(
            document, problems=[*own, *self._missed], passed=document.passed and not found
        )
        if github.in_actions():
            self._annotations = github.annotations(document, document.problems, self._root)
        unwritten = write(self._documents, self._commands.folder, document)
        self._notices += unwritten
        # If a document could not be written, a reader would find an older one.
        return not (own or found or unwritten)

    def _settle(self, suite: Suite) -> None:
        said: dict[str, list[str]] = {}
        for result in suite.results:
            for text in verdict_text.remarks(result.evidence):
                said.setdefault(text, []).append(result.case.id)
        self._notices += suite.notices + [f"{listed(ids, 3)}: {it}" for it, ids in said.items()]
        self._notices += scaling_lines(suite.results)

    def _results(self) -> list[Result]:
        return self._suite.results if self._suite else []

    def _document(
        self,
        exitstatus: int,
        results: list[Result],
        problems: list[Problem],
        states: list[CaseState],
    ) -> RunDocument:
        """Return the run as its document. ``problems`` are those that pytest and recording have."""
        gpus: tuple[Gpu, ...] | None = None
        # If the GPUs cannot be read, the document is written without them.
        with contextlib.suppress(pytest.UsageError):
            gpus = self._gpus
        revision = self.guard.began or (self._suite.revision if self._suite else None)
        revision = revision or current(self._root, self._baselines)
        own = revision.commit if self._pythons else ""
        # A reader may have another interpreter and another folder: paths are relative to the
        # project.
        inside = Commands(self._root, baselines=self._commands.baselines)
        machine = gpus[0].name if gpus else CPU_MACHINE
        return RunDocument(
            schema=SCHEMA,
            date=self._began.isoformat(timespec="seconds"),
            wall_s=round((datetime.now(UTC) - self._began).total_seconds(), 3),
            end=end_of(exitstatus),
            passed=exitstatus == pytest.ExitCode.OK and not problems,
            commit=revision.commit,
            dirty=list(revision.dirty),
            machine="" if gpus is None else machine,
            gpus=[
                GpuDocument(name=gpu.name, uuid=gpu.uuid, driver=gpu.driver) for gpu in gpus or ()
            ],
            baselines=inside.relative(self._baselines),
            against=self._against,
            base_commit=self._tree.commit if self._tree else own,
            base=self._base.name if self._base else "",
            base_changes=list(self._base.changes) if self._base else [],
            baselines_dirty=self.guard.baselines_dirty,
            uncollected=self._collection.modules,
            changed=list(self.guard.changed),
            strict=self.guard.strict,
            options=options_of(self._config),
            cases=states,
            results=[document_json.result_document(result, inside) for result in results],
            problems=problems,
            notices=self._notices,
            waivers=document_json.waiver_documents(self._waivers, results),
        )

    def summary(self, lists_skips: bool) -> ShownRun | None:
        """Return the run for its summary; None if nothing was to measure, or an error says more."""
        results = self._results()
        known = self.selection.asked or results
        if not self._missed and (self._option.collectonly or not self._ran or not known):
            return None
        first = self._base.lines() if self._base else ()
        return ShownRun(
            results,
            self._commands,
            first,
            self._notices,
            self._option.tbstyle != "no",
            {} if results and lists_skips else Counter(self.selection.skipped.values()),
            problems=self._missed,
            annotations=self._annotations,
        )
