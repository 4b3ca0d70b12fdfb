"""Notes on how ranks ended. The agent, their parent, writes a line for each.

When the agent has seen one rank fail, it ends the others. These are its victims.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGABRT, SIGTERM

# Signals that follow from another rank's end: NCCL aborts; workloads and schedulers terminate.
_FOLLOWING = (SIGABRT, SIGTERM)


@dataclass(frozen=True)
class Ending:
    """How one rank ended."""

    pid: int
    status: int  # of its exit; negative: the signal that ended it
    victim: bool = False  # its agent ended it

    @property
    def killed(self) -> bool:
        """Tell whether a signal ended the rank, other than those that follow another rank's end."""
        return self.status < 0 and -self.status not in _FOLLOWING


class Endings:
    """A launch's file of endings on one node."""

    def __init__(self, folder: Path, node: int) -> None:
        self._path = folder / f"endings-{node}.jsonl"

    def note(self, ending: Ending) -> None:
        """Add an ending to the file."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(ending)) + "\n")

    def read(self) -> list[Ending]:
        """Return the endings noted so far, in their order."""
        try:
            lines = self._path.read_text().splitlines(keepends=True)
        except OSError:
            return []
        return [Ending(**json.loads(line)) for line in lines if line.endswith("\n")]


def first(endings: Collection[Ending]) -> Ending | None:
    """Return the ending that caused the others: that of a killed rank, or else the first one noted;
    None if there is none.
    """
    own = [ending for ending in endings if not ending.victim]
    return min(own, key=lambda ending: not ending.killed, default=None)
