"""What pytest collects, noted as it comes: no later hook can hide a case.

Every project of the environment has this, so that it imports next to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from stepguard.case import Case
from stepguard.plugin.items import asks_for_perf, case_of


@dataclass(frozen=True)
class CollectedTest:
    """A test that takes ``perf``, as pytest collected it."""

    case: Case | None  # that it declares
    file: str
    line: int  # from 1


class Collected:
    """The tests that take ``perf``, and what kept others from being collected."""

    def __init__(self) -> None:
        self.tests: dict[str, CollectedTest] = {}  # by node id
        self.deselected: set[str] = set()  # node ids that pytest was told of
        self.modules: list[str] = []  # that gave no tests, and why

    @property
    def cases(self) -> frozenset[str]:
        """Return the ids of all cases that were collected."""
        return frozenset(test.case.id for test in self.tests.values() if test.case)

    def add(self, item: pytest.Item) -> None:
        """Take a test, before anything can deselect it."""
        if asks_for_perf(item):
            file, line, _ = item.location
            self.tests[item.nodeid] = CollectedTest(case_of(item), file, (line or 0) + 1)

    def add_report(self, report: pytest.CollectReport) -> None:
        """Take a module that was skipped whole, or failed: its cases were never collected."""
        if report.skipped and isinstance(report.longrepr, tuple):
            self.modules.append(f"{report.nodeid} was skipped: {report.longrepr[2]}")
        elif not report.passed:
            self.modules.append(f"{report.nodeid} was {report.outcome}")

    def deselect(self, items: Sequence[pytest.Item]) -> None:
        """Take what pytest was told that it is deselected."""
        self.deselected.update(item.nodeid for item in items)
