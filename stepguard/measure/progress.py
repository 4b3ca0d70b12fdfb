"""Progress that is repeated while a stage goes on, so that a progress line does not stop."""

import time
from collections.abc import Callable

TICK_S = 0.5

Progress = Callable[[str], None]  # takes the stage that begins, or goes on


class Ticker:
    """Pass the text of every stage on, and the current one again when ``tick`` finds it old."""

    def __init__(self, show: Progress) -> None:
        self._show = show
        self._text = ""
        self._shown_s = 0.0

    def __call__(self, text: str) -> None:
        """Show a stage that begins, or goes on."""
        self._text, self._shown_s = text, time.monotonic()
        self._show(text)

    def tick(self) -> None:
        """Show the stage again if that is due; to be called often by whoever waits."""
        if self._text and time.monotonic() - self._shown_s >= TICK_S:
            self(self._text)
