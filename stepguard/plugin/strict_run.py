"""Describe what a pytest run has to measure, and the problems of a strict one that does not."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepguard.core.case import Case
from stepguard.core.device import CPU, GPU
from stepguard.core.run_document import CaseState, Problem, ProblemCode, State
from stepguard.core.sentences import TREE_CHANGED
from stepguard.core.text import counted, listed
from stepguard.launch.nodes.scheduler import Launcher, spread
from stepguard.machine.git.revision import Revision, current
from stepguard.machine.gpu.nvml import Gpu
from stepguard.measure.suite import Result
from stepguard.plugin.baseline_folder import Recorded, recorded_here
from stepguard.plugin.items import case_of
from stepguard.plugin.options import is_strict
from stepguard.plugin.refusals import (
    NO_GATE,
    Refused,
    changed_since_start,
    fewer_gates,
    missing_cases,
    other_case,
    other_environment,
    strict_marks,
    strict_options,
    strict_tree,
)
from stepguard.plugin.selection import Selection
from stepguard.report.commands import Commands


class Guard:
    """The guarded cases of a run. ``unsuited`` tells why this machine is not for a case.

    Only a strict run has ``problems``; it is refused, too, for what is known before it measures.
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
        self.missed: list[Problem] = []  # found at the run's end
        self.notices: dict[str, None] = {}  # of a run that is not strict
        self._refused: list[Problem] = []  # the failures of tests that tell them
        self._config, self._option = config, config.option
        self._baselines, self._commands = baselines, commands
        self._selection, self._unsuited = selection, unsuited
        self._recorded: dict[str, Recorded] = {}  # for this machine, by case
        self._judging = self._recorded  # by the baselines that judge, which may be another branch's
        self._revision = Revision()  # that a strict run began with

    def begin(self, gpus: Sequence[Gpu], written: Collection[Path], judges: Path) -> None:
        """Read what is recorded for this machine, here and in the baselines that are the
        ``judges``; refuse options and tree of a strict run, in which its own documents are
        ``written``. Raises Refused, UsageError, FileError.
        """
        self._recorded = recorded_here(self._baselines, gpus)
        self._judging = recorded_here(judges, gpus)
        self._selection.refuse_unknown(self._recorded)
        if self.strict:
            root = self._config.rootpath
            self._revision = current(root, self._baselines)
            tree = strict_tree(root, self._baselines, written)
            self._refuse([*strict_options(self._config), *tree, *changed_since_start()])

    def plan(self, items: Sequence[pytest.Item], needed: bool) -> None:
        """Refuse a strict run that would leave a case unguarded, as far as is known before it
        measures. A run without any is refused if there is ``needed`` one. Raises Refused.
        """
        if not self.strict:
            return
        collection = self._selection.collection
        if not collection.tests:
            if self._option.perf_strict or needed:
                text = "there is no performance test, so that nothing would be guarded"
                why = "; ".join([text, *collection.modules])
                self._refuse([Problem(ProblemCode.NO_CASES, why)])
            return
        # A test that declares no case may yet measure one that seems to be absent.
        absent = () if self._selection.undeclared else (State.ABSENT,)
        states = [one for one in self.states() if one.state in (State.DESELECTED, *absent)]
        cases = [case for item in items if (case := case_of(item))]
        less = [one for case in cases for one in self._less(case)]
        self._refuse([*missing_cases(states, self._files), *strict_marks(items), *less])

    def refuse_case(self, own: Case | None, case: Case) -> None:
        """Refuse, in a strict run, what a test measures if it guards less than it should. ``own``
        is what the test declares. Raises Refused.
        """
        changed = [replace(one, case=case.id) for one in changed_since_start()]
        if not self.strict:
            self.notices |= {one.text: None for one in changed}
            return
        problems = [*self._less(case), *changed]
        if own is not None and own != case and not problems:
            text = "its test measures another case than it declares, though of the same id"
            problems.append(Problem(ProblemCode.OTHER_CASE, text, case.id))
        self._refused += problems
        self._refuse(problems)

    def _less(self, case: Case) -> Iterator[Problem]:
        """Yield why a case guards less than what is recorded of it."""
        recorded = self._judging.get(case.id)
        yield from fewer_gates(case, recorded)
        if self._option.perf_against:  # a recording itself is not compared with another case
            yield from other_case(case, recorded)

    def finish(
        self, states: Sequence[CaseState], results: Sequence[Result], collected: bool, passes: bool
    ) -> None:
        """Add what a strict run missed: cases, verdicts, or the tree that it began with.
        ``collected`` tells whether it came to know its cases, ``passes`` whether it would end with
        status 0: of another one pytest says itself why.
        """
        if not self.strict:
            return
        failing = [one.case.id for one in results if one.verdict.outcome != "passed"]
        if passes and failing:
            text = "does not pass, though the run would: let no test end it (pytest.exit)"
            self.missed.append(Problem(ProblemCode.NOT_FINISHED, text, failing[0]))
        if passes and not collected:
            text = "no case was collected in this process, so that nothing is guarded: run without "
            text += "-n (xdist), and let nothing end the run before its tests (pytest.exit)"
            self.missed.append(Problem(ProblemCode.NO_CASES, text))
        known = {problem.case for problem in self._refused}
        missing = missing_cases(states, self._files)
        self.missed += [one for one in missing if one.case not in known]
        if not known:  # else the tests have said it
            self.missed += changed_since_start()
        self.missed += [one for result in results for one in self._changed(result)]

    def _changed(self, result: Result) -> Iterator[Problem]:
        """Yield a problem if the tree, or what judges, is not what the run began with."""
        evidence, recorded = result.evidence, self._judging.get(result.case.id)
        measured = Revision(evidence.commit, evidence.dirty)
        if evidence.tree_changed or measured != self._revision:
            yield Problem(ProblemCode.TREE_CHANGED, TREE_CHANGED, result.case.id)
        if recorded is None or recorded.path.name != result.baseline_path.name:
            return
        yield from other_environment(result, recorded)
        if result.judged_by not in ("", recorded.entry.digest):
            text = "was judged by another recording than the run began with: leave the files alone"
            yield Problem(ProblemCode.OTHER_BASELINE, text, result.case.id)

    @property
    def problems(self) -> list[Problem]:
        """Return why a strict run is no pass."""
        return [*self._refused, *self.missed]

    def states(self) -> list[CaseState]:
        """Return what became of every case by now."""
        return self._selection.states(self._recorded, self._unsuited)

    @property
    def _files(self) -> dict[str, str]:
        return {case: self._commands.relative(one.path) for case, one in self._recorded.items()}

    def _refuse(self, problems: Sequence[Problem]) -> None:
        if problems:
            raise Refused(problems, *([] if self._option.perf_strict else [NO_GATE]))


def left_out_line(states: Sequence[CaseState]) -> list[str]:
    """Return a line on what was left out by a selection that is meant; extended cases are not part
    of a whole run, either.
    """
    core = [one for one in states if not one.extended]
    left_out = [one for one in core if one.state is State.LEFT_OUT]
    if not left_out:
        return []
    shown = listed([one.case for one in left_out], 2)
    return [f"left out by {left_out[0].why}: {len(left_out)} of {len(core)} cases ({shown})"]


def unsuited(case: Case, gpus: int, markers: str, launcher: Launcher | None = None) -> str:
    """Say why a machine with so many GPUs, or the launcher's nodes, are not for the case; empty if
    they are. ``markers`` is the expression that tests were chosen by.
    """
    need = f"needs {counted(case.world_size, 'GPU')}"
    if case.device == GPU and (nodes := spread(case, launcher)):
        each, count = nodes.fewest_gpus, len(nodes.nodes)
        few = each * count < case.world_size
        return f"{need}, {count} nodes have {each} each" if few else ""
    if case.device == GPU and gpus < case.world_size:
        return f"{need}, this machine shows {gpus}"
    if case.device == CPU and gpus and "smoke" not in markers:
        return "a GPU is here, its cases run instead (or say: -m smoke)"
    return ""
