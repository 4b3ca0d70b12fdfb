"""The progress line: what runs, for how long, and how much time is left if that is known.

On a terminal one line is rewritten in place, at least once a second while the engine waits for
ranks, and removed when the case is over. The text that was there before stays, and the cursor
returns to it. In a log each case has a line, with -v each stage has one, and no LOG_S pass without
a line while a case is measured.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TextIO

from stepguard.core.text import printable, shortened

ID_LEAST = 10  # columns that a case's id keeps
LOG_S = 30.0
CLEAR = "\x1b[K"  # to the end of the line
UP, RIGHT = "\x1b[A", "\x1b[{}C"


@dataclass(frozen=True)
class Display:
    """Where progress is shown. ``width`` is asked each time, since a window may be resized."""

    write: Callable[[str], None]  # past any capturing
    terminal: bool = False  # one whose cursor can be moved
    width: Callable[[], int] = lambda: 80  # columns
    column: Callable[[], int] = lambda: 0  # of the cursor, in a line that pytest has begun


class ProgressLine:
    """Progress of a run of cases. ``devices`` are by case id, in the order of the run."""

    def __init__(
        self,
        display: Display,
        verbose: bool,
        devices: Mapping[str, str],
        last_s: Mapping[str, float],
    ) -> None:
        self._display, self._write, self._verbose = display, display.write, verbose
        self._terminal, self._column = display.terminal, 0
        self._last_s = last_s  # how long cases took last time, by id
        self._took_s: dict[str, float] = {}  # in this run
        self._device, self._queue = devices, [*devices]
        self._done = 0
        self._case = ""
        self._began = 0.0
        self._most_s: float | None = None
        self._stage = ""
        self._stage_began = 0.0
        self._logged_s = 0.0  # when a log's newest line was written
        self._known = ""  # what it last said of the pairs

    @contextlib.contextmanager
    def case(self, case_id: str, most_s: float | None = None) -> Iterator[None]:
        """Show a case while it runs; see begin()."""
        self.begin(case_id, most_s)
        try:
            yield
        finally:
            self.end()

    def begin(self, case_id: str, most_s: float | None = None) -> None:
        """Begin a case. ``most_s``: how many seconds it may take, if it is limited."""
        self._case, self._began, self._stage = printable(case_id), time.monotonic(), ""
        self._most_s = most_s
        if not self._terminal:
            left = self._most(0.0) or self._left(0.0)
            self._log(f"\n{self._position()} {self._case}{left and f': {left}'}")
        elif column := self._display.column():
            self._column = column % self._display.width()
            self._write("\n")

    def stage(self, text: str) -> None:
        """Show the case's stage: on a terminal its time; in a log once, and each LOG_S."""
        text = printable(text)
        now, begins = time.monotonic(), text != self._stage
        if begins:
            self._stage, self._stage_began = text, now
        if self._terminal:
            seconds = int(now - self._stage_began)
            self._write(self._line(text, f" {seconds} s" if seconds else "", now - self._began))
        elif self._verbose and begins:
            stage, _, known = text.partition("; ")
            text, self._known = stage if known == self._known else text, known
            self._log(f"  {now - self._began:6.1f} s  {text}")
        elif now - self._logged_s >= LOG_S:
            lasted = f"{now - self._stage_began:.0f} s into {text}"
            self._log(f"  {now - self._began:6.1f} s  {self._case}: {lasted}")

    def _log(self, text: str) -> None:
        self._logged_s = time.monotonic()
        self._write(f"{text}\n")

    def _line(self, text: str, lasted: str, took_s: float) -> str:
        """Return the whole line. If it is too long, first what pairs say so far is left out, then
        the time is shortened, then the case's id is cut in its middle, and last the stage.
        """
        width, front = self._display.width() - 1, f"{self._position()} "
        least, tails = min(ID_LEAST, len(self._case)), self._tails(took_s)
        fixed = len(front) + len(": ") + len(lasted)
        if fixed + len(self._case) + len(text) + len(tails[0]) > width:
            text = text.partition("; ")[0]
        rooms = ((tail, room) for room in (len(self._case), least) for tail in tails)
        fits = (tail for tail, room in rooms if fixed + room + len(text) + len(tail) <= width)
        tail = next(fits, tails[-1])
        text = text[: max(0, width - fixed - least - len(tail))]
        case = shortened(self._case, max(least, width - fixed - len(text) - len(tail)))
        line = f"{front}{case}: {text}{lasted}".ljust(width - len(tail)) + tail
        return f"\r{line[: max(0, width)]}{CLEAR}"

    def _tails(self, took_s: float) -> list[str]:
        took = f"  {clock(took_s)}"
        if most := self._most(took_s):
            return [f"{took}, {most}", took]
        expected_s, others_s = self._known_s(self._case), self._others_s()
        if expected_s is None or took_s <= expected_s:
            left = self._left(took_s)
            return [f"{took}, {left}", f"  {left}", f"  {left.split()[1]} left"] if left else [took]
        longer = f"{took}, longer than expected ({clock(expected_s)})"
        then = [f"{longer}, then about {clock(others_s)}"] if others_s else []
        return [*then, longer, took]

    def _most(self, took_s: float) -> str:
        """Return "up to about 5:00"; empty if a better estimate is known."""
        known_s = self._known_s(self._case)
        if self._most_s is None or known_s is not None and took_s <= known_s:
            return ""
        return f"up to about {clock(self._most_s)}"

    def end(self) -> None:
        """End the case, and remove its line."""
        if self._terminal and self._case:
            back = UP + RIGHT.format(self._column) if self._column else ""
            self._write(f"\r{CLEAR}{back}")
        self._queue = [case_id for case_id in self._queue if case_id != self._case]
        self._done += 1
        self._case, self._column = "", 0

    def learn(self, case_id: str, took_s: float) -> None:
        """Note how long a complete case took, to estimate how long others will take."""
        self._took_s[case_id] = took_s

    def _position(self) -> str:
        return f"[{self._done + 1}/{self._done + max(1, len(self._queue))}]"

    def _left(self, took_s: float) -> str:
        """Return "about 2:20 left"; empty if nothing is known of a case that is left."""
        expected_s, others_s = self._known_s(self._case), self._others_s()
        if expected_s is None or others_s is None:
            return ""
        return f"about {clock(max(1.0, max(0.0, expected_s - took_s) + others_s))} left"

    def _others_s(self) -> float | None:
        """Return how many seconds the remaining cases will take; None if that is not known."""
        others = [self._known_s(case_id) for case_id in self._queue if case_id != self._case]
        known = [seconds for seconds in others if seconds is not None]
        return sum(known) if len(known) == len(others) else None

    def _known_s(self, case_id: str) -> float | None:
        device = self._device.get(case_id)
        alike = {name: s for name, s in self._took_s.items() if self._device.get(name) == device}
        return expected_s(case_id, self._last_s, alike)


def expected_s(
    case_id: str, last_s: Mapping[str, float], took_s: Mapping[str, float]
) -> float | None:
    """Return how many seconds a case will take: its last time, scaled by how this run's cases took
    beside their last ones; without one their mean; None if nothing is known.
    """
    if case_id in last_s:
        both = took_s.keys() & last_s.keys()
        before_s = sum(last_s[name] for name in both)
        pace = sum(took_s[name] for name in both) / before_s if before_s else 1.0
        return last_s[case_id] * pace
    return fmean(took_s.values()) if took_s else None


def has_cursor(file: TextIO) -> bool:
    """Tell whether a file is a terminal whose cursor can be moved."""
    return file.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def columns(file: TextIO) -> int:
    """Return how wide a text may be: COLUMNS, or the terminal's width, or 80."""
    if (asked := os.environ.get("COLUMNS", "")).isdecimal() and int(asked):
        return int(asked)
    with contextlib.suppress(OSError):
        return os.get_terminal_size(file.fileno()).columns or 80
    return 80


def clock(seconds: float) -> str:
    """Return minutes and seconds, "2:05"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
