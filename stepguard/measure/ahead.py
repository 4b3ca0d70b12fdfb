"""The first launch of the case that comes next: it imports while this case's last one runs."""

import os

from stepguard.case import Case
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.group import WorkerGroup
from stepguard.launch.torchrun import LaunchSpec


class Ahead:
    """Holds at most one group, which no case has taken yet. It has not touched a GPU."""

    def __init__(self) -> None:
        self.case: Case | None = None  # that comes next, if that is known
        self._group: WorkerGroup | None = None
        self._environment: dict[str, str] = {}

    def expect(self, case: Case | None) -> None:
        """Say which case comes next, None if none does."""
        self.case = case

    def begin(self, spec: LaunchSpec) -> None:
        """Start the launch, unless it is held already, in place of one that was not taken."""
        if self._group is not None and self._group.spec == spec:
            return
        self.close()
        self._environment = _environment()
        self._group = WorkerGroup(spec)

    def ready(self) -> bool:
        """Tell whether nothing imports any more. A launch that failed is no longer held: its case
        starts it again, and says what is wrong.
        """
        if self._group is None:
            return True
        try:
            return self._group.ready()
        except LaunchFailed:
            self.close()
            return True

    def take(self, spec: LaunchSpec) -> WorkerGroup | None:
        """Return the group, if it lives and is what ``spec`` would start now; its end is theirs."""
        if self._group is None or self._group.spec != spec:
            return None
        if self._environment != _environment():
            self.close()
            return None
        self.ready()
        group, self._group = self._group, None
        return group

    def close(self) -> None:
        """End a group that was not taken."""
        if self._group is not None:
            self._group.close()
            self._group = None


def _environment() -> dict[str, str]:
    """Return what a launch inherits."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
