"""The verdicts, and pytest's words for them."""

from enum import Enum
from typing import Literal

Outcome = Literal["passed", "failed", "error"]  # pytest's words


class Status(Enum):
    """The verdicts, worst first. What moved gives the reader something to look at."""

    BROKEN = "BROKEN"
    UNFIT = "UNFIT"
    NOT_COMPARABLE = "NOT COMPARABLE"
    SLOWER = "SLOWER"
    CHANGED = "CHANGED"
    NO_BASELINE = "NO BASELINE"
    INCONCLUSIVE = "INCONCLUSIVE"
    FASTER = "FASTER"
    SAME = "same"

    @property
    def rank(self) -> int:
        """Return the place in the order; 0 is the worst."""
        return list(Status).index(self)

    @property
    def outcome(self) -> Outcome:
        """Return pytest's word: passed, failed, or error if nothing could be decided."""
        if self in (Status.SAME, Status.FASTER):
            return "passed"
        return "failed" if self in (Status.SLOWER, Status.CHANGED) else "error"
