"""Which phase a rank's step is in: told by the workload, wanted by the note and the counters."""

from collections.abc import Callable

OnPhase = Callable[[str], None]
MICRO_STEP = "micro_step_"


class Phases:
    """Passes a workload's phases on, and remembers the last ones.

    Phases are only entered, never left, so a micro-step's number stays until the next one.
    """

    def __init__(self, note: OnPhase) -> None:
        self._note = note
        self.listener: OnPhase | None = None
        self.current = ""
        self.micro_step = ""
        self.micro_steps: set[str] = set()  # of this step

    def __call__(self, name: str) -> None:
        """The host enters the phase called ``name``."""
        self._note(name)
        if name.startswith(MICRO_STEP):
            self.micro_step = name
            self.micro_steps.add(name)
        self.current = name
        if self.listener is not None:
            self.listener(name)

    def begin_step(self) -> None:
        """A step begins: no phase yet."""
        self.current = self.micro_step = ""
        self.micro_steps = set()
