"""What a pytest run selects, and what became of every case: measured, or why not. What a strict run
guards, and what the guard says at its end.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from stepguard.core.case import Case
from stepguard.core.device import CPU, GPU
from stepguard.core.permission import Permission
from stepguard.core.reason_sentences import changed_in_pytest
from stepguard.core.recording import Entry
from stepguard.core.run_document import CaseState, Problem, ProblemCode, RunDocument, State
from stepguard.core.text import counted, listed
from stepguard.judge.guard import Base, guard
from stepguard.launch.nodes import Launcher, spread
from stepguard.machine import inherited
from stepguard.machine.git.revision import Revision, current, tracked_files, untracked
from stepguard.machine.gpu import Gpu
from stepguard.plugin.baseline_folder import folders_alone, former_lines, recorded_here
from stepguard.plugin.declared_cases import Collected, case_of
from stepguard.plugin.options import is_strict
from stepguard.storage.baseline_files import CPU_MACHINE, today

NO_TURN = "the run ended before its turn"
NO_RESULT = "its test came to no result"


class Selection:
    """The tests that take ``perf``, from their collection to the end of the run."""

    def __init__(self, config: pytest.Config, collection: Collected) -> None:
        self._config, self._option, self.collection = config, config.option, collection
        # By node id:
        self._kept: set[str] = set()  # left after deselection
        self.unsuited: dict[str, str] = {}  # why this machine is not for a test
        self.skipped: dict[str, str] = {}  # why a test was
        self._ran: set[str] = set()
        self.measured: dict[str, Case] = {}  # which case a test measured

    def kept(self, items: Sequence[pytest.Item]) -> None:
        """Note the tests that are left after deselection."""
        self._kept = {item.nodeid for item in items} & self.collection.tests.keys()

    def ran(self, item: pytest.Item, skipped: bool, why: str) -> None:
        """Note that a test ran, or that it was ``skipped`` and why."""
        if item.nodeid in self.collection.tests:
            self._ran.add(item.nodeid)
            if skipped:
                self.skipped[item.nodeid] = self.unsuited.get(item.nodeid, why)

    @property
    def asked(self) -> bool:
        """Tell whether a test that takes ``perf`` is left after deselection."""
        return bool(self._kept)

    def states(
        self, recorded: Mapping[str, Entry], unsuited: Callable[[Case], str]
    ) -> list[CaseState]:
        """Return what became of every case that is collected, or ``recorded`` for this machine.
        Recorded cases and new ones that are not ``unsuited`` are guarded, unless extended.
        """
        core = {name for name, entry in recorded.items() if not entry.extended}
        states = []
        for node, item in self.collection.tests.items():
            case = self.measured.get(node, case_of(item))
            new = case is not None and case.id not in recorded and not case.extended
            guarded = case is not None and (case.id in core or new and not unsuited(case))
            states.append(self._state(item, case, guarded))
        typed = self._typed()
        whole, missing = self._whole(typed), ["no test of it was collected"]
        if unsaid := sorted({*self._config.args} - {*typed}):
            named = listed(unsaid)
            missing.append(f"settings or PYTEST_ADDOPTS name {named}, the command line does not")
        absent = "; ".join([*missing, *self.collection.modules])
        for case_id in sorted(set(recorded) - {state.case for state in states}):
            states.append(
                CaseState(
                    state=State.ABSENT if whole else State.LEFT_OUT,
                    case=case_id,
                    why=absent if whole else f"the arguments {listed(self._config.args)}",
                    extended=recorded[case_id].extended,
                    guarded=whole and case_id in core,
                )
            )
        return states

    def _whole(self, typed: Sequence[str]) -> bool:
        """Tell whether the run should have all cases. It should if the command names no path, only
        folders, or a folder with cases beside files. A user who names only files or tests means
        only those.
        """
        root = self._config.rootpath.resolve()
        files = [root / item.location[0] for item in self.collection.tests.values()]
        folders = [Path(text).resolve() for text in typed if folders_alone(self._config, [text])]
        here = any(file.is_relative_to(folder) for file in files for folder in folders)
        return here or folders_alone(self._config, typed)

    def _typed(self) -> list[str]:
        """Return the paths that were typed, without those of settings and PYTEST_ADDOPTS."""
        if self._config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR:
            return self._config.args
        typed = {str(argument) for argument in self._config.invocation_params.args}
        return [argument for argument in self._config.args if argument in typed]

    def _state(self, item: pytest.Item, case: Case | None, guarded: bool) -> CaseState:
        state, why = self._became(item.nodeid)
        file, line, _ = item.location
        return CaseState(
            state=state,
            case=case.id if case else "",
            why=why,
            test=item.nodeid,
            file=file,
            line=(line or 0) + 1,
            device=case.device if case else "",
            world_size=case.world_size if case else 0,
            extended=case is not None and case.extended,
            guarded=guarded,
        )

    def _became(self, node: str) -> tuple[State, str]:
        if node in self.measured:
            return State.MEASURED, ""
        if node not in self._kept:
            return State.DESELECTED, self._why_deselected(node)
        if node in self.skipped:
            return State.SKIPPED, self.skipped[node]
        return State.UNMEASURED, NO_RESULT if node in self._ran else NO_TURN

    def _why_deselected(self, node: str) -> str:
        if node not in self.collection.deselected:
            return "a conftest or a plugin took it out"
        given: Mapping[str, object] = {
            "-k": self._option.keyword,
            "-m": self._option.markexpr,
            "--deselect": self._option.deselect,
            "--lf": getattr(self._option, "lf", False),
        }
        said = [
            f"{name} {value!r}{self._origin(value)}" if isinstance(value, str) else name
            for name, value in given.items()
            if value
        ]
        return f"deselected by {' or '.join(said) or 'a plugin'}"

    def _origin(self, value: str) -> str:
        if value in os.environ.get("PYTEST_ADDOPTS", ""):
            return " of PYTEST_ADDOPTS"
        return " of addopts" if value in self._config.getini("addopts") else ""


NO_GATE = "the run is strict since CI is set; if it is no gate, add --perf-no-strict"
SAID_BEFORE = (ProblemCode.FAILED, ProblemCode.NOT_PASSED)  # by a test, or by pytest itself


class StrictRun:
    """The run of this process. If it is strict, it fails for what the guard finds."""

    def __init__(self, config: pytest.Config, baselines: Path) -> None:
        self.strict = is_strict(config)
        self.began: Revision | None = None  # when a strict run began
        self.baselines_dirty: list[str] = []  # then: its baselines that are not the commit's
        self.changed: dict[str, None] = {}  # what launches inherit and what changed, each once
        self.notices: list[str] = []
        self._root, self._baselines = config.rootpath, baselines
        self._expected: dict[str, Entry] = {}  # by case: the baselines that judge here
        # The same, and this tree's own baselines of cases that have no other.
        self.recorded = self._expected

    def begin(self, gpus: Sequence[Gpu], judges: Path, cases: Iterable[Case]) -> None:
        """Read the machine's baselines: the tree's, and those that judge. Raises FileError."""
        self._expected = recorded_here(judges, gpus)
        self.recorded = recorded_here(self._baselines, gpus) | self._expected
        machine = gpus[0].name if gpus else CPU_MACHINE
        self.notices += former_lines(judges, cases, machine)
        if self.strict:
            self.began = current(self._root, self._baselines)
            if self.began.commit:
                here = self._baselines.rglob("*.json")
                tracked = tracked_files(self._root, self._baselines)
                # Baselines that git lacks, or has as a link, or that only git has.
                new = untracked(self._root, here, tracked)
                differ = {os.path.relpath(path, self._root) for path in new}
                differ |= {path for path in tracked if not (self._root / path).exists()}
                self.baselines_dirty = sorted(differ.union(self.began.baselines))

    def note_changes(self) -> None:
        """Note what launches would inherit and what changed. A test may set it back later."""
        now = inherited.STARTED.changes(inherited.inherited_now())
        new = [change for change in now if change not in self.changed]
        self.changed |= dict.fromkeys(new)
        if not self.strict:
            self.notices += map(changed_in_pytest, new)

    def missed(self, document: RunDocument, waivers: Sequence[Permission]) -> list[Problem]:
        """Return what the guard finds in a strict run, beside the document's own problems."""
        if not self.strict:
            return []
        base = Base(
            commit=document.commit,
            gpus=0,
            recorded={document.machine: self._expected},
            today=today(),
            against=document.base_commit,
            permissions=waivers,
            whole=False,
        )
        return [one for one in guard(document, base) if one not in document.problems]


def left_out_line(states: Sequence[CaseState]) -> list[str]:
    """Return a line on the core cases that the selection left out; empty without one."""
    core = [state for state in states if not state.extended]
    left_out = [state for state in core if state.state is State.LEFT_OUT]
    if not left_out:
        return []
    shown = listed([state.case for state in left_out], 2)
    return [f"left out by {left_out[0].why}: {len(left_out)} of {len(core)} cases ({shown})"]


def unsuited(case: Case, gpus: int, markers: str, launcher: Launcher | None = None) -> str:
    """Return why the machine, or the launcher's nodes, do not suit the case; else empty."""
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
