"""Cases that tests declare: which test has one, and which tests pytest collects.

Every project of the environment loads this, so it imports next to nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from stepguard.core.case import Case
from stepguard.core.device import CPU, GPU

FIXTURE_MODULE = "stepguard.plugin"  # of our fixture perf
NOTHING_MEASURED = "the test asked for perf and measured nothing: call perf(case)"
# What gets a test's samples in ms, and what describes them.
Sink = Callable[[Sequence[float], Mapping[str, object]], None]


class _Declared(list[Any]):
    """The parameters that cases() makes. Its class tells @cases from other parameters."""


def cases(*items: Case) -> pytest.MarkDecorator:
    """Parametrize a test over cases. The markers follow from each case's device and world size."""
    return pytest.mark.parametrize(
        "case", _Declared(pytest.param(c, id=c.name, marks=_marks(c)) for c in items)
    )


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    names = ["smoke" if case.device == CPU else "gpu"]
    names += ["multi_gpu"] if case.device == GPU and case.world_size > 1 else []
    names += ["extended"] if case.extended else []
    return [getattr(pytest.mark, name) for name in names]


def case_of(item: pytest.Item) -> Case | None:
    """Return the case that a test is parametrized with, if it has the fixture perf; else None."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec else None
    return case if isinstance(case, Case) and "perf" in _fixtures(item) else None


def asks_for_perf(item: pytest.Item) -> bool:
    """Tell whether a test has stepguard's fixture perf. One that declares a case has."""
    if "perf" not in _fixtures(item):
        return False
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    definitions = known.get("perf", ())
    # pytest uses the last definition, which is the closest to the test.
    ours = not definitions or definitions[-1].func.__module__ == FIXTURE_MODULE
    return ours or case_of(item) is not None


def lacks_perf(item: pytest.Item) -> bool:
    """Tell whether a test has @cases but not the fixture."""
    if "perf" in getattr(item, "fixturenames", ("perf",)):
        return False
    parametrized = item.iter_markers("parametrize")
    return any(isinstance(value, _Declared) for mark in parametrized for value in mark.args)


def refuse_without_perf(item: pytest.Item) -> None:
    """Raise UsageError for a test with @cases but without the fixture: it would always pass."""
    if lacks_perf(item):
        raise pytest.UsageError(
            f"{item.nodeid} has @cases but not the fixture perf, so it would pass unmeasured: "
            "take perf as an argument and call perf(case)"
        )


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


class Collected:
    """The tests that take ``perf``, and what kept others from being collected."""

    def __init__(self) -> None:
        self.tests: dict[str, pytest.Item] = {}  # by node id
        self.deselected: set[str] = set()  # node ids that pytest deselected
        self.modules: list[str] = []  # modules that gave no tests, and why

    @property
    def cases(self) -> dict[str, Case]:
        """Return all cases that were collected, by id."""
        return {case.id: case for item in self.tests.values() if (case := case_of(item))}

    def add(self, item: pytest.Item) -> None:
        """Add a test, before anything can deselect it."""
        if asks_for_perf(item):
            self.tests[item.nodeid] = item

    def add_report(self, report: pytest.CollectReport) -> None:
        """Add a module that was skipped as a whole, or failed: its cases were not collected."""
        if report.skipped and isinstance(report.longrepr, tuple):
            self.modules.append(f"{report.nodeid} was skipped: {report.longrepr[2]}")
        elif not report.passed:
            self.modules.append(f"{report.nodeid} could not be collected")
