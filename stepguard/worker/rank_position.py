"""A rank's position, command, step and phase, and how it ended. Fault reports read both.

A rank that hangs inside a kernel or a collective cannot answer. So it writes its position into a
small memory-mapped file as it goes, in about half a microsecond and without a system call. The
workload may call ``on_phase`` to give the phase; the counting pass listens to it, too.

The agent, the ranks' parent, notes how each ended. Once it has seen one rank fail, it ends the
others: these are its victims.
"""

import json
import mmap
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import SIGABRT, SIGTERM

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
    """Passes a workload's phases on, which are only entered: a micro-step stays until the next."""

    def __init__(self, note: OnPhase = lambda name: None) -> None:
        self._note = note
        self.listener: OnPhase | None = None
        self.begin_step()

    def __call__(self, name: str) -> None:
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


def note_ending(file: Path, ending: Ending) -> None:
    """Add an ending to the file of a launch and a node."""
    with file.open("a") as noted:
        noted.write(json.dumps(asdict(ending)) + "\n")


def endings_file(folder: Path, node: int) -> Path:
    """Return a node's file of endings in a launch's folder."""
    return folder / f"endings-{node}.jsonl"


def read_endings(file: Path) -> list[Ending]:
    """Return the endings noted so far, in their order."""
    try:
        lines = file.read_text().splitlines(keepends=True)
    except OSError:
        return []
    return [Ending(**json.loads(line)) for line in lines if line.endswith("\n")]


def first_ending(endings: Collection[Ending]) -> Ending | None:
    """Return the ending that caused the others: of a killed rank, or the first; or None."""
    own = [ending for ending in endings if not ending.victim]
    return min(own, key=lambda ending: not ending.killed, default=None)
