"""Progress that is told again while a stage goes on, so that a live line does not stand still."""

import time
from collections.abc import Callable

TICK_S = 0.5


class Ticker:
    """Passes the text of every stage on, and the current one again when ``tick`` finds it old."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._text = ""
        self._told = 0.0

    def __call__(self, text: str) -> None:
        """A stage begins, or goes on."""
        self._text, self._told = text, time.monotonic()
        self._tell(text)

    def tick(self) -> None:
        """To be called often by whoever waits."""
        if self._text and time.monotonic() - self._told >= TICK_S:
            self(self._text)
