"""Make ranges for a profiler from phases, which a workload only enters and never leaves."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from stepguard.worker.rank_position import MICRO_STEP

Open = Callable[[str], AbstractContextManager[object]]


class Ranges:
    """Opens a range at each phase, and closes it at the next phase or at the step's end.

    A micro-step's range contains those of its phases. A phase that comes once after several
    micro-steps (clipping, the optimizer) is in none of them; that is known from the second step on.
    A single micro-step gets no range, since it would contain all phases.
    """

    def __init__(self, open_range: Open) -> None:
        self._open = open_range
        self._ranges: list[AbstractContextManager[object]] = []
        self._micro_step = ""
        self._seen_in: dict[str, set[str]] = {}  # by phase: this step's micro-steps
        self._after: set[str] = set()  # phases outside of micro-steps

    def __call__(self, name: str) -> None:
        """Enter a phase."""
        if name.startswith(MICRO_STEP):
            self._close(0)
            self._micro_step = name
        else:
            self._close(1 if self._micro_step and name not in self._after else 0)
            self._seen_in.setdefault(name, set()).add(self._micro_step)
        opened = self._open(name)
        opened.__enter__()
        self._ranges.append(opened)

    def _close(self, kept: int) -> None:
        while len(self._ranges) > kept:
            self._ranges.pop().__exit__(None, None, None)

    def end_step(self) -> None:
        """Close what is open."""
        self._close(0)
        self._after = {name for name, micro_steps in self._seen_in.items() if len(micro_steps) == 1}
        self._seen_in, self._micro_step = {}, ""
