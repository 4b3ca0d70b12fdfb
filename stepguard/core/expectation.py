"""An expectation: a metric that a commit says it will move, declared where the commit is reviewed.

A trailer of the commit's message, ``Perf-Expect: CASE METRIC: reason``. It is valid for the
comparison of a range that holds the commit, and for nothing else.
"""

import re
from dataclasses import dataclass
from enum import Enum

from stepguard.core.metrics import GATEABLE, not_gateable
from stepguard.core.text import short_hash

KEY = "Perf-Expect"
FORM = f"{KEY}: CASE METRIC: reason"
_VALUE = re.compile(r"(?P<case>\S+) (?P<metric>\S+): +(?P<reason>\S.*)")


@dataclass(frozen=True)
class Expectation:
    """One metric of one case that may be worse than in the other revision, and who says why."""

    case: str
    metric: str
    reason: str
    commit: str  # in full, whose message says so
    author: str

    @property
    def described(self) -> str:
        """Return "step_ms, a1b2c3d4e5f6 by A. Author: a larger vocabulary"."""
        return f"{self.metric}, {short_hash(self.commit)} by {self.author}: {self.reason}"


class ExpectationEffect(Enum):
    """The effect of an expectation in one comparison."""

    EXPECTED = "expected"
    NOT_NEEDED = "expected and not needed, it does not fail"
    NOT_GATED = "expected, but the case does not gate it"
    NOT_APPLIED = "expected, but not applied: the case as a whole was not compared or decided"


@dataclass(frozen=True)
class ExpectationOutcome:
    """An expectation of a case and what it did there."""

    expectation: Expectation
    effect: ExpectationEffect

    @property
    def sentence(self) -> str:
        """Return what it did, by whom and why."""
        return f"{self.effect.value}: {self.expectation.described}"


def parse(value: str, commit: str, author: str) -> Expectation:
    """Return the expectation of a trailer's value. Raises ValueError saying what is wrong."""
    found = _VALUE.fullmatch(value.strip())
    if found is None:
        raise ValueError("not of that form, or without a reason")
    # Whoever approves the change reads it, in a terminal or a comment.
    if not found["reason"].isprintable() or not any(map(str.isalnum, found["reason"])):
        raise ValueError("its reason is no line of words")
    if found["metric"] not in GATEABLE:
        raise ValueError(not_gateable(found["metric"]))
    return Expectation(found["case"], found["metric"], found["reason"], commit, author)
