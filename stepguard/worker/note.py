"""Where a rank is: (command, step, phase), kept where a fault report can read it.

A rank that hangs inside a kernel or a collective cannot answer questions, so it writes its position
into a small memory-mapped file as it goes (about half a microsecond a note, no system call).
"""

import mmap
from pathlib import Path

_SIZE = 128


class Note:
    """A rank's own position, rewritten in place."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b" " * _SIZE)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._command, self._step, self._phase = "start", -1, ""
        self._write()

    def command(self, name: str) -> None:
        """A command begins."""
        self._command, self._step, self._phase = name, -1, ""
        self._write()

    def step(self, index: int) -> None:
        """A step of the command begins."""
        self._step = index
        self._phase = ""
        self._write()

    def phase(self, name: str) -> None:
        """A phase of the step begins; what a workload's ``on_phase`` is set to."""
        self._phase = name
        self._write()

    def _write(self) -> None:
        text = f"{self._command}|{self._step}|{self._phase}"[:_SIZE].ljust(_SIZE)
        self._map[:] = text.encode("ascii", "replace")


def read(path: Path) -> str:
    """A rank's last position in words: "block, step 12, phase backward"."""
    try:
        command, step, phase = path.read_text("ascii").strip(" \0").split("|", 2)
    except (OSError, ValueError):
        return "before it started"
    words = [command]
    if step != "-1":
        words.append(f"step {step}")
    if phase:
        words.append(f"phase {phase}")
    return ", ".join(words)
