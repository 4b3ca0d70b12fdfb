"""The verdicts, and pytest's words for them."""

from enum import Enum
from typing import Literal

Outcome = Literal["passed", "failed", "error"]  # pytest's words


class Status(Enum):
    """The verdicts, worst first. Of a case's metrics one that is known to have moved decides before
    one of which nothing is known: it is what there is to look at, and to confirm.
    """

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
        """Return the place in the order, 0 for the worst."""
        return list(Status).index(self)

    @property
    def outcome(self) -> Outcome:
        """Return pytest's word: passed, failed, or error when nothing could be decided."""
        if self in (Status.SAME, Status.FASTER):
            return "passed"
        return "failed" if self in (Status.SLOWER, Status.CHANGED) else "error"
