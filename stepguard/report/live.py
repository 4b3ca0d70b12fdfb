"""The live line: what runs, for how long, how long yet.

On a terminal one line is rewritten in place, at least once a second while somebody waits; elsewhere
a line says that a case begins, and with -v every stage gets one.
"""

import time
from collections.abc import Callable

GUESS_S = {"cuda": 110.0, "cpu": 20.0}  # a case that never ran here


class Live:
    """Progress of a run of cases. ``write`` puts text on the terminal, past any capturing."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        terminal: bool,
        verbose: bool,
        width: int,
        expected_s: dict[str, float],
    ) -> None:
        self._write, self._terminal, self._verbose, self._width = write, terminal, verbose, width
        self._expected_s = expected_s
        self._queue: list[tuple[str, str]] = []
        self._done = 0
        self._case = ""
        self._began = 0.0
        self._stage = ""
        self._stage_began = 0.0

    def plan(self, cases: list[tuple[str, str]]) -> None:
        """(case id, device) of every case to come, in order."""
        self._queue = list(cases)

    def begin(self, case_id: str) -> None:
        """A case begins."""
        self._case, self._began, self._stage = case_id, time.monotonic(), ""
        if not self._terminal:
            self._write(f"\n{self._position()} {case_id}: about {clock(self._left_s())} left\n")

    def stage(self, text: str) -> None:
        """The case's next stage begins; the same text again says that it goes on.

        A terminal's line then shows how long it has; elsewhere a stage is told once.
        """
        now, begins = time.monotonic(), text != self._stage
        if begins:
            self._stage, self._stage_began = text, now
        if self._terminal:
            seconds = int(now - self._stage_began)
            lasted = f" {seconds} s" if seconds else ""
            tail = f"  {clock(now - self._began)}, about {clock(self._left_s())} left"
            room = max(0, self._width - 1 - len(tail))
            line = f"{self._position()} {self._case}: {text}"[: max(0, room - len(lasted))] + lasted
            self._write("\r" + (line.ljust(room) + tail)[: self._width - 1])
        elif self._verbose and begins:
            self._write(f"  {now - self._began:6.1f} s  {text}\n")

    def end(self) -> None:
        """The case is over; its line is taken away."""
        if self._terminal and self._case:
            self._write("\r" + " " * (self._width - 1) + "\r")
        self._queue = [item for item in self._queue if item[0] != self._case]
        self._done += 1
        self._case = ""

    def _position(self) -> str:
        return f"[{self._done + 1}/{self._done + max(1, len(self._queue))}]"

    def _left_s(self) -> float:
        left = sum(self._expected_s.get(c, GUESS_S[device]) for c, device in self._queue)
        return max(1.0, left - (time.monotonic() - self._began))


def clock(seconds: float) -> str:
    """Minutes and seconds, "2:05"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
