"""Describe the run of this process to the guard. Refuse a strict run for what the guard finds."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from stepguard.core.case import Case
from stepguard.core.device import CPU, GPU
from stepguard.core.run_document import CaseState, Problem, State
from stepguard.core.shared_sentences import changed_in_pytest
from stepguard.core.text import counted, listed
from stepguard.judge.comparable import conditions_of
from stepguard.judge.guard import guard
from stepguard.judge.guarded_run import CaseResult, Door, Ending, Run, RunCase
from stepguard.launch.nodes.scheduler import Launcher, spread
from stepguard.machine import inherited
from stepguard.machine.git.revision import Revision, checkout
from stepguard.machine.gpu.nvml import Gpu
from stepguard.machine.interpreter import as_typed
from stepguard.measure.suite import Result
from stepguard.plugin.baseline_folder import Recorded, former_lines, recorded_here
from stepguard.plugin.declared_cases import case_of
from stepguard.plugin.options import is_strict
from stepguard.plugin.refuse_options import (
    NO_GATE,
    Refused,
    guarding_options,
    tree_beside_commit,
)
from stepguard.plugin.selection import Selection
from stepguard.report.next_steps import Commands


class StrictRun:
    """The run of this process, as the guard sees it.

    A strict run is refused for problems that are known before it measures, and fails for those that
    are found later. A run that is not strict has no such problems. ``unsuited`` returns why this
    machine is not for a case; empty if it is.
    """

    def __init__(
        self,
        config: pytest.Config,
        baselines: Path,
        commands: Commands,
        selection: Selection,
        unsuited: Callable[[Case], str],
    ) -> None:
        self.strict = is_strict(config)
        self.missed: list[Problem] = []  # found at the end of the run
        self.notices: dict[str, None] = {}  # each once
        self.baselines_dirty: list[str] = []  # when a strict run began
        self.changed: dict[str, None] = {}  # what launches inherit and what changed, each once
        self._refused: list[Problem] = []  # problems that a failing test already reports
        self._config, self._option = config, config.option
        self._baselines, self._commands = baselines, commands
        self._selection, self._unsuited = selection, unsuited
        self._expected: dict[str, Recorded] = {}  # by case: the baselines that judge here
        # The same, and this tree's own baselines of cases that have no other.
        self._recorded = self._expected
        self._branch = ""  # whose baselines judge; empty: this tree's own, or named by CI
        self._began = Revision()  # at the beginning of a strict run

    def begin(self, gpus: Sequence[Gpu], judges: Path, branch: str) -> None:
        """Read the baselines for this machine: this tree's, and those in ``judges``, which judge.
        ``branch`` is what --perf-base named, or empty. Raises Refused if a strict run has options
        or a tree that the guard does not accept. Also raises UsageError and FileError.
        """
        self._expected, self._branch = recorded_here(judges, gpus), branch
        self._recorded = recorded_here(self._baselines, gpus) | self._expected
        self.notices |= dict.fromkeys(former_lines(judges, self._selection.collection))
        self._selection.refuse_unknown(self._recorded)
        if self.strict:
            root = self._config.rootpath
            seen = checkout(root)
            self._began = seen.revision(self._baselines)
            tree = tree_beside_commit(root, self._baselines, seen.revision(None))
            beside = {*tree.dirty, *tree.left_out} - {*self._began.dirty}
            self.baselines_dirty = sorted(beside)
            options = guarding_options(self._config)
            self._refuse(replace(self._run(), options=options, tree=tree))

    def plan(self, items: Sequence[pytest.Item], needed: bool) -> None:
        """Refuse a strict run if it is known before it measures that it leaves a case unguarded. If
        a case is ``needed``, refuse a run without any. Raises Refused.
        """
        if not self.strict:
            return
        collection = self._selection.collection
        if not collection.tests:
            if self._option.perf_strict or needed:
                text = "there is no performance test, so that nothing would be guarded"
                text = "; ".join([text, *collection.modules])
                self._refuse(replace(self._run(), no_tests=text))
            return
        cases = [
            replace(self._case(case), may_fail=item.get_closest_marker("xfail") is not None)
            for item in items
            if (case := case_of(item))
        ]
        undeclared = self._selection.undeclared
        self._refuse(replace(self._run(self.states()), cases=cases, open=undeclared))

    def refuse_case(self, own: Case | None, case: Case) -> None:
        """Refuse a case of a strict run that guards less than it should. ``own`` is the case that
        the test declares. Raises Refused.
        """
        if not self.strict:
            self.notices |= dict.fromkeys(map(changed_in_pytest, self._changed()))
            return
        measured = replace(self._case(case), as_declared=own in (None, case))
        run = replace(self._run(), cases=[measured])
        self._refused += [structs.replace(problem, case=case.id) for problem in guard(run)]
        self._refuse(run)

    def finish(
        self, states: Sequence[CaseState], results: Sequence[Result], collected: bool, passes: bool
    ) -> None:
        """Add the problems that only the end of a strict run shows: a case without a result, a
        failing verdict, a tree that changed. ``collected`` says that the run knows its cases.
        ``passes`` says that it would end with status 0; if not, pytest itself says why.
        """
        if not self.strict:
            return
        run = replace(
            self._run(states),
            cases=[
                replace(self._case(result.case), result=self._result_of(result))
                for result in results
            ],
            ending=Ending(passes=passes, knows_cases=collected),
            problems=tuple(self._refused),
        )
        known = {problem.text for problem in self._refused}
        self.missed += [problem for problem in guard(run) if problem.text not in known]

    def _run(self, states: Sequence[CaseState] = ()) -> Run:
        """Return the run as it is known by now."""
        return Run(
            door=Door.PYTEST,
            expected={name: known.entry for name, known in self._expected.items()},
            files={
                name: self._commands.relative(self._baselines / known.path.name)
                for name, known in self._recorded.items()
            },
            branch=self._branch,
            states={state.case or state.test: state for state in states},
            must_measure=[state.case or state.test for state in states if state.guarded],
            began=(self._began.commit, self._began.dirty),
            against=self._option.perf_against or "",
            changed=self._changed(),
        )

    def _case(self, case: Case) -> RunCase:
        name = shlex.quote(case.id)
        return RunCase(
            id=case.id,
            parameters=case.as_dict(),
            device=case.device,
            ranks=case.world_size,
            gates=case.gates,
            margins=case.margins,
            record=as_typed(f"pytest perf_tests --perf-update --perf-select={name}"),
            waive=as_typed(f"stepguard waive {name} METRIC"),
        )

    def _result_of(self, result: Result) -> CaseResult:
        evidence = result.evidence
        recorded = self._expected.get(result.case.id)
        here = recorded is not None and recorded.path.name == result.baseline_path.name
        base = result.comparison.base if result.comparison and here else None
        return CaseResult(
            commit=evidence.commit,
            dirty=evidence.dirty,
            tree_changed=evidence.tree_changed,
            verdict=result.verdict,
            judged_by=result.judged_by if here else None,
            base=conditions_of(base) if base else None,
        )

    @property
    def problems(self) -> list[Problem]:
        """Return why a strict run does not pass."""
        return [*self._refused, *self.missed]

    def states(self) -> list[CaseState]:
        """Return what has become of every case so far."""
        self._changed()
        return self._selection.states(self._recorded, self._unsuited)

    def _changed(self) -> tuple[str, ...]:
        """Return all that launches would inherit and that has changed since pytest was started. A
        test may set it back: it stays noted.
        """
        now = inherited.STARTED.changes(inherited.inherited_now())
        self.changed |= dict.fromkeys(now)
        return now

    def _refuse(self, run: Run) -> None:
        if problems := guard(run):
            raise Refused(problems, *([] if self._option.perf_strict else [NO_GATE]))


def left_out_line(states: Sequence[CaseState]) -> list[str]:
    """Return a line on the cases that the selection left out; empty if there are none. Extended
    cases do not count, since a whole run does not measure them.
    """
    core = [state for state in states if not state.extended]
    left_out = [state for state in core if state.state is State.LEFT_OUT]
    if not left_out:
        return []
    shown = listed([state.case for state in left_out], 2)
    return [f"left out by {left_out[0].why}: {len(left_out)} of {len(core)} cases ({shown})"]


def unsuited(case: Case, gpus: int, markers: str, launcher: Launcher | None = None) -> str:
    """Return why a machine with ``gpus`` GPUs, or the launcher's nodes, do not suit the case; empty
    if they do. ``markers`` is the -m expression that chose the tests.
    """
    need = f"needs {counted(case.world_size, 'GPU')}"
    if case.device == GPU and (nodes := spread(case, launcher)):
        each, count = nodes.fewest_gpus, len(nodes.nodes)
        few = each * count < case.world_size
        return f"{need}, {count} nodes have {each} each" if few else ""
    if case.device == GPU and gpus < case.world_size:
        return f"{need}, this machine shows {gpus}"
    if case.device == CPU and gpus and "smoke" not in markers:
        return "this machine has a GPU, whose cases run instead (or say: -m smoke)"
    return ""
