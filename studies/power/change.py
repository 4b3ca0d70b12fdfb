"""One change of the training step for the gate to judge."""

from dataclasses import dataclass
from pathlib import Path

from studies.planted_causes.faults import Fault

SLOWER, FASTER, SAME, RED = "SLOWER", "FASTER", "same", "red"  # by whatever finding
Edit = tuple[str, str, str]  # file, old text, new text


@dataclass(frozen=True)
class Change:
    """One change, and what has to be said of it on a GPU."""

    edits: tuple[Edit, ...]
    expected: str
    named: str = ""  # pattern that the first line has to contain; empty: none
    reverse: bool = False
    needs_gpu: bool = False
    declared: str = ""  # metric that rises with it, as its author says in the commit

    def plant(self, tree: Path) -> None:
        """Make the edits. Raises ValueError where a text is not there, or not once."""
        for path, old, new in self.edits:
            Fault(path, ((old, new),)).plant(tree)
