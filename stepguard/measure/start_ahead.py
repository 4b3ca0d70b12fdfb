"""The first launch of the next case: it imports torch while this case's last launch runs.

It is on standby (worker/agent.py): before its case begins it loads no code of the tree, and nothing
that the tree imports. A fixture of its test may still build an extension, or write a module.
"""

from collections.abc import Mapping
from dataclasses import replace

from stepguard.core.case import Case
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.torchrun import LaunchSpec
from stepguard.launch.worker_group import WorkerGroup
from stepguard.machine.inherited import Inherited, inherited_now


class Ahead:
    """At most one worker group that no case has taken yet. Its agent has started no rank."""

    def __init__(self) -> None:
        self.case: Case | None = None  # the next case, if known
        self._group: WorkerGroup | None = None
        self._inherited: Inherited | None = None

    def expect(self, case: Case | None) -> None:
        """Set the next case; None if there is none."""
        self.case = case

    def begin(self, spec: LaunchSpec, environment: Mapping[str, str]) -> None:
        """Start the launch in this environment, unless it already runs. A launch that no case took
        is ended first.
        """
        waiting = replace(spec, standby=True)
        if self._group is not None and self._group.spec == waiting:
            return
        self.close()
        self._inherited = _inherited(environment)
        self._group = WorkerGroup(waiting, environment)

    def ready(self) -> bool:
        """Tell whether no group imports any more. A group that failed is ended: its case starts a
        new one, and reports what is wrong.
        """
        if self._group is None:
            return True
        try:
            return self._group.imported()
        except LaunchFailed:
            self.close()
            return True

    def take(self, spec: LaunchSpec, environment: Mapping[str, str]) -> WorkerGroup | None:
        """Return the group if it is alive and equals what ``spec`` would start now in this
        environment; else None. The caller must close it.
        """
        if self._group is None or self._group.spec != replace(spec, standby=True):
            return None
        if self._inherited != _inherited(environment):
            self.close()
        self.ready()
        group, self._group = self._group, None
        if group is not None:
            group.release()
        return group

    def close(self) -> None:
        """End a group that no case took."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _inherited(environment: Mapping[str, str]) -> Inherited:
    """Return what a launch in this environment inherits."""
    kept = {key: value for key, value in environment.items() if not key.startswith("PYTEST_")}
    return replace(inherited_now(), variables=kept)
