"""Launches that are started before they are wanted: they import torch while another one is built.

They are the next ones of a case, or the first ones of the next case, in one tree or in each of two.
They are on standby (worker/agent.py): before they are released they load no code of the tree, and
nothing that the tree imports. A fixture of the next case's test may still build an extension, or
write a module.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from stepguard.core.case import Case
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.torchrun import LaunchSpec
from stepguard.launch.worker_group import WorkerGroup
from stepguard.machine.inherited import Inherited, inherited_now


class Ahead:
    """Worker groups that nobody has taken yet."""

    def __init__(self) -> None:
        self.case: Case | None = None  # the next case, if known
        self._groups: list[WorkerGroup] = []
        self._inherited: Inherited | None = None

    def expect(self, case: Case | None) -> None:
        """Set the next case; None if there is none."""
        self.case = case

    def begin(self, specs: Sequence[LaunchSpec], environment: Mapping[str, str]) -> None:
        """Start those of these launches that do not yet run in this environment. End all that wait
        first, if others are among them.
        """
        waiting = [replace(spec, standby=True) for spec in specs]
        inherited = _inherited(environment)
        others = [group for group in self._groups if group.spec not in waiting]
        if others or inherited != self._inherited:
            self.close()
        self._inherited = inherited
        held = [group.spec for group in self._groups]
        for spec in waiting:
            if spec not in held:
                self._groups.append(WorkerGroup(spec, environment))

    def release(self, specs: Sequence[LaunchSpec]) -> None:
        """Let the ranks of these launches import, too."""
        for group in self._groups:
            if replace(group.spec, standby=False) in specs:
                group.release()

    def ready(self) -> bool:
        """Tell whether no group imports any more. A group that failed is ended: whoever wants it
        starts a new one, and reports what is wrong.
        """
        # All are asked, so that each group that failed is ended.
        return all([self._is_ready(group) for group in [*self._groups]])

    def _is_ready(self, group: WorkerGroup) -> bool:
        try:
            return group.ready() if group.released else group.imported()
        except LaunchFailed:
            self._groups.remove(group)
            group.close()
            return True

    def take(self, spec: LaunchSpec, environment: Mapping[str, str]) -> WorkerGroup | None:
        """Return the group that equals what ``spec`` would start now in this environment; None if
        there is none, or if it has died. The caller must close it.
        """
        waiting = replace(spec, standby=True)
        if waiting not in [group.spec for group in self._groups]:
            return None
        if self._inherited != _inherited(environment):
            self.close()
        self.ready()
        group = next((group for group in self._groups if group.spec == waiting), None)
        if group is not None:
            self._groups.remove(group)
            group.release()
        return group

    def close(self) -> None:
        """End the groups that no case took, also if the user interrupts the first one's end."""
        with contextlib.ExitStack() as stack:
            for group in self._groups:
                stack.callback(group.close)
            self._groups = []


def _inherited(environment: Mapping[str, str]) -> Inherited:
    """Return what a launch in this environment inherits."""
    kept = {key: value for key, value in environment.items() if not key.startswith("PYTEST_")}
    return replace(inherited_now(), variables=kept)
