"""The progress line: what runs, for how long, and how much time is left.

On a terminal one line is rewritten in place, at least once a second while somebody waits. In a log
a line says that a case begins, and with -v every stage gets one.
"""

import time
from collections.abc import Callable

from stepguard.device import CPU, GPU
from stepguard.text import printable

GUESS_S = {GPU: 110.0, CPU: 20.0}  # a case that never ran here
ID_LEAST = 10  # columns that a case's id keeps
NARROW = 60  # columns: on a narrower terminal the stage is kept, not the time left


class ProgressLine:
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
        self._most_s: float | None = None
        self._stage = ""
        self._stage_began = 0.0

    def plan(self, cases: list[tuple[str, str]]) -> None:
        """Take (case id, device) of every case to come, in order."""
        self._queue = list(cases)

    def begin(self, case_id: str, most_s: float | None = None) -> None:
        """Begin a case. ``most_s`` is how long it may take, where what it took before says nothing
        of that: pairs with another revision go on until they decide.
        """
        self._case, self._began, self._stage = printable(case_id), time.monotonic(), ""
        self._most_s = most_s
        if not self._terminal:
            about = f"about {clock(self._left_s())} left"
            left = about if most_s is None else f"up to about {clock(most_s)}"
            self._write(f"\n{self._position()} {self._case}: {left}\n")

    def stage(self, text: str) -> None:
        """Show that the case's next stage begins; the same text again says that it goes on.

        A terminal's line then shows for how long; a log has each stage once.
        """
        text = printable(text)
        now, begins = time.monotonic(), text != self._stage
        if begins:
            self._stage, self._stage_began = text, now
        if self._terminal:
            seconds = int(now - self._stage_began)
            self._write(self._line(text, f" {seconds} s" if seconds else "", now - self._began))
        elif self._verbose and begins:
            self._write(f"  {now - self._began:6.1f} s  {text}\n")

    def _line(self, text: str, lasted: str, took_s: float) -> str:
        """Return the whole line; where it is too long, the case's id is cut first, then the time
        left, and the stage's text last.
        """
        front, stage = f"{self._position()} ", f": {text}"
        least = len(front) + min(ID_LEAST, len(self._case)) + len(stage) + len(lasted)
        tails = [f"  {clock(took_s)}{left}" for left in self._tails(took_s)]
        tails += [f"  {clock(took_s)}"] if self._width < NARROW else []
        fits = (tail for tail in tails if least + len(tail) < self._width)
        tail = next(fits, tails[-1])
        room = max(0, self._width - 1 - len(tail))
        rest = room - len(front) - len(stage) - len(lasted)
        line = front + shortened(self._case, max(ID_LEAST, rest)) + stage
        line = line[: max(0, room - len(lasted))] + lasted
        return "\r" + (line.ljust(room) + tail)[: self._width - 1]

    def _tails(self, took_s: float) -> list[str]:
        """Return what can be said of the time left, the shortest last."""
        if self._most_s is not None:
            return [f", up to about {clock(self._most_s)}"]
        expected_s, others_s = self._of(self._case), self._others_s()
        if took_s <= expected_s:
            return [f", about {clock(self._left_s())} left"]
        what = "the last time" if self._case in self._expected_s else "guessed"
        longer = f", longer than {what} ({clock(expected_s)})"
        return [f"{longer}, then about {clock(others_s)}", longer] if others_s else [longer]

    def end(self) -> None:
        """End the case, and take its line away."""
        if self._terminal and self._case:
            # One column less than the terminal has: in the last one a terminal may wrap the line.
            self._write("\r" + " " * (self._width - 1) + "\r")
        self._queue = [item for item in self._queue if item[0] != self._case]
        self._done += 1
        self._case = ""

    def _position(self) -> str:
        return f"[{self._done + 1}/{self._done + max(1, len(self._queue))}]"

    def _left_s(self) -> float:
        took_s = time.monotonic() - self._began
        return max(1.0, max(0.0, self._of(self._case) - took_s) + self._others_s())

    def _others_s(self) -> float:
        """Return how long the cases that are still to come will take."""
        return sum(self._of(case_id) for case_id, _ in self._queue if case_id != self._case)

    def _of(self, case_id: str) -> float:
        device = dict(self._queue).get(case_id, "")
        return self._expected_s.get(case_id, GUESS_S.get(device, 0.0))


def shortened(case_id: str, width: int) -> str:
    """Cut an id to so many columns, in its middle: cases differ at the end."""
    if len(case_id) <= width:
        return case_id
    end = (width - 2) // 2
    return f"{case_id[: width - 2 - end]}..{case_id[len(case_id) - end :]}"


def clock(seconds: float) -> str:
    """Return minutes and seconds, "2:05"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
