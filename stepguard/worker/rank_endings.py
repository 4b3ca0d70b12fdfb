"""Notes and reads how ranks ended: a line for each, written by the agent that they are children of.

The agent ends the others when it has seen one fail. These are its victims.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGABRT, SIGTERM

_FOLLOWING = (SIGABRT, SIGTERM)  # NCCL aborts, workloads and schedulers terminate


@dataclass(frozen=True)
class Ending:
    """Describe how one rank ended."""

    pid: int
    status: int  # of its exit; negative: the signal that ended it
    victim: bool = False  # of its agent

    @property
    def killed(self) -> bool:
        """Tell whether a signal ended it that no other rank's end brings about."""
        return self.status < 0 and -self.status not in _FOLLOWING


class Endings:
    """A launch's file of one node."""

    def __init__(self, folder: Path, node: int) -> None:
        self._path = folder / f"endings-{node}.jsonl"

    def note(self, ending: Ending) -> None:
        """Add one."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(ending)) + "\n")

    def read(self) -> list[Ending]:
        """Return those noted so far, in their order."""
        try:
            lines = self._path.read_text().splitlines(keepends=True)
        except OSError:
            return []
        return [Ending(**json.loads(line)) for line in lines if line.endswith("\n")]


def first(endings: Collection[Ending]) -> Ending | None:
    """Return the one that the others follow from: one that was killed, else the earliest noted."""
    own = [ending for ending in endings if not ending.victim]
    return min(own, key=lambda ending: not ending.killed, default=None)
