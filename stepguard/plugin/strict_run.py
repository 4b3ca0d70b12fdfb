"""A strict run: what it guards, what it notes meanwhile, and what the guard says at its end."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stepguard.core.baseline import Entry
from stepguard.core.case import Case
from stepguard.core.device import CPU, GPU
from stepguard.core.permission import Permission
from stepguard.core.run_document import CaseState, Problem, ProblemCode, RunDocument, State
from stepguard.core.shared_sentences import changed_in_pytest
from stepguard.core.text import counted, listed
from stepguard.judge.guard import Base, guard
from stepguard.launch.nodes.scheduler import Launcher, spread
from stepguard.machine import inherited
from stepguard.machine.git.revision import Revision, checkout, tracked_files, untracked
from stepguard.machine.gpu.nvml import Gpu
from stepguard.plugin.baseline_folder import former_lines, recorded_here
from stepguard.plugin.options import is_strict
from stepguard.plugin.selection import Selection
from stepguard.storage.baseline_files import CPU_MACHINE
from stepguard.storage.waiver_file import today

NO_GATE = "the run is strict since CI is set; if it is no gate, add --perf-no-strict"
SAID_BEFORE = (ProblemCode.FAILED, ProblemCode.NOT_PASSED)  # by a test, or by pytest itself


class StrictRun:
    """The run of this process. If it is strict, it fails for what the guard finds in its document.
    ``unsuited`` returns why this machine is not for a case; empty if it is.
    """

    def __init__(
        self,
        config: pytest.Config,
        baselines: Path,
        selection: Selection,
        unsuited: Callable[[Case], str],
    ) -> None:
        self.strict = is_strict(config)
        self.began: Revision | None = None  # when a strict run began
        self.baselines_dirty: list[str] = []  # then: its baselines that are not the commit's
        self.changed: dict[str, None] = {}  # what launches inherit and what changed, each once
        self.notices: list[str] = []
        self._root, self._baselines = config.rootpath, baselines
        self._selection, self._unsuited = selection, unsuited
        self._expected: dict[str, Entry] = {}  # by case: the baselines that judge here
        # The same, and this tree's own baselines of cases that have no other.
        self._recorded = self._expected

    def begin(self, gpus: Sequence[Gpu], judges: Path) -> None:
        """Read the baselines for this machine: this tree's, and those in ``judges``, which judge.
        Raises UsageError and FileError.
        """
        self._expected = recorded_here(judges, gpus)
        self._recorded = recorded_here(self._baselines, gpus) | self._expected
        machine = gpus[0].name if gpus else CPU_MACHINE
        self.notices += former_lines(judges, self._selection.collection, machine)
        if self.strict:
            seen = checkout(self._root)
            self.began = seen.revision(self._baselines)
            if self.began.commit:
                differ = {*seen.revision(None).dirty} - {*self.began.dirty}
                self.baselines_dirty = sorted(differ | self._not_in_git())

    def _not_in_git(self) -> set[str]:
        """Return the baselines and waivers that git has not, or only a link to, and those that it
        has and that are not here.
        """
        here = self._baselines.rglob("*.json")
        tracked = tracked_files(self._root, self._baselines)
        new = {os.path.relpath(path, self._root) for path in untracked(self._root, here, tracked)}
        return new.union(path for path in tracked if not (self._root / path).exists())

    def note_changes(self) -> None:
        """Note what launches would inherit and what has changed since pytest was started. A test
        may set it back later.
        """
        now = inherited.STARTED.changes(inherited.inherited_now())
        new = [change for change in now if change not in self.changed]
        self.changed |= dict.fromkeys(new)
        if not self.strict:
            self.notices += map(changed_in_pytest, new)

    def states(self) -> list[CaseState]:
        """Return what has become of every case so far."""
        return self._selection.states(self._recorded, self._unsuited)

    def missed(self, document: RunDocument, waivers: Sequence[Permission]) -> list[Problem]:
        """Return what the guard finds in the document of a strict run, beside the document's own
        problems; empty if the run is not strict.
        """
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
