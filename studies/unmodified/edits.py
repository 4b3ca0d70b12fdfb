"""Edits of a repository's file, by line: what a study plants, and how a study refactors."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Edit:
    """One change of a file. ``line`` counts from 1, in the file as it is at the stated commit.

    ``after``: lines that are put in behind ``line``, as deep as it is, or ``deeper`` by four.
    ``instead``: lines that replace it. ``rename``: an old and a new word, everywhere in the file.
    ``top``: lines at the begin of the file.
    """

    file: str
    line: int = 0
    after: str = ""
    instead: str = ""
    deeper: bool = False
    rename: tuple[str, str] | None = None
    top: str = ""

    def apply(self, root: Path) -> None:
        """Change the file below ``root``."""
        path = root / self.file
        lines = path.read_text().split("\n")
        if self.rename:
            old, new = self.rename
            text, count = re.subn(rf"\b{old}\b", new, "\n".join(lines))
            assert count > 1, f"{self.file}: {old} stands there {count} times"
            lines = text.split("\n")
        if self.line:
            here = lines[self.line - 1]
            margin = here[: len(here) - len(here.lstrip())] + " " * 4 * self.deeper
            new_lines = [margin + line for line in (self.after or self.instead).split("\n")]
            lines[self.line - 1 : self.line] = [here, *new_lines] if self.after else new_lines
        path.write_text("\n".join([*self.top.splitlines(), *lines]))

    @property
    def place(self) -> str:
        """Return where the first new line stands afterwards, as ``FILE:LINE``."""
        return f"{self.file}:{self.line + bool(self.after)}"


@dataclass(frozen=True)
class Change:
    """A planted regression, or a refactor: what it is, in words, and its edits."""

    what: str
    edits: tuple[Edit, ...]

    @property
    def place(self) -> str:
        """Return where the first edit stands."""
        return self.edits[0].place


def change(what: str, *edits: Edit) -> Change:
    """Return a change of these edits."""
    return Change(what, edits)
