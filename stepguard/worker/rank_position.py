"""A rank's position: command, step and phase. The rank writes it, and fault reports read it.

A rank that hangs inside a kernel or a collective cannot answer. So it writes its position into a
small memory-mapped file as it goes, in about half a microsecond and without a system call. The
workload may call ``on_phase`` to give the phase; the counting pass listens to it, too.
"""

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

OnPhase = Callable[[str], None]
MICRO_STEP = "micro_step_"
_SIZE = 128  # bytes of the file


class Note:
    """A rank's own position, rewritten in place where a fault report can read it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b" " * _SIZE)
        with path.open("r+b") as file:
            # A shared map outlives this process, however it is killed.
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._command, self._step = "start", -1
        self.phase("")

    def command(self, name: str) -> None:
        """Begin a command."""
        self._command, self._step = name, -1
        self.phase("")

    def step(self, index: int) -> None:
        """Begin a step of the command."""
        self._step = index
        self.phase("")

    def phase(self, name: str) -> None:
        """Begin a phase of the step."""
        text = f"{self._command}|{self._step}|{name}"[:_SIZE].ljust(_SIZE)
        # "replace" makes one byte of every character, so the length always fits the map.
        self._map[:] = text.encode("ascii", "replace")


def read_position(path: Path) -> str:
    """Return a rank's last position in words: "block, step 12, phase backward"."""
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


class Phases:
    """Passes a workload's phases on, and remembers the last ones.

    Phases are only entered, never left, so a micro-step's number stays until the next one.
    """

    def __init__(self, note: OnPhase = lambda name: None) -> None:
        self._note = note
        self.listener: OnPhase | None = None
        self.begin_step()

    def __call__(self, name: str) -> None:
        """Enter the phase called ``name``, on the host."""
        self._note(name)
        if name.startswith(MICRO_STEP):
            self.micro_step = name
            self.micro_steps.add(name)
        self.current = name
        if self.listener is not None:
            self.listener(name)

    @property
    def path(self) -> str:
        """Return the phase within its micro-step: "micro_step_0/forward", "clip_grad"."""
        return f"{self.micro_step}/{self.current}" if self.micro_step else self.current

    def begin_step(self) -> None:
        """Forget the last step's phases."""
        self.current = self.micro_step = ""
        self.micro_steps: set[str] = set()

    @contextmanager
    def heard_by(self, listener: OnPhase) -> Iterator[None]:
        """Pass phases to ``listener``, too, inside the block."""
        self.listener = listener
        try:
            yield
        finally:
            self.listener = None
