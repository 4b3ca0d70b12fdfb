"""Where do the seconds of a run go, stage by stage? A plugin for pytest.

    python -m pytest -p benchmarks.stage_seconds perf_tests --perf-against=HEAD~1

The time from one progress text to the next belongs to the first of them. Numbers are left out of
the texts, so all pairs share a row. What comes before the first text is "start" (pytest, git, the
checks), and each text's last time ends with the next case or with the run. The table is printed,
and the seconds are written to .stepguard/stage_seconds.json.
"""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepguard.measure.case_workers import Ticker

OUT = Path(".stepguard/stage_seconds.json")
_FRONT = re.compile(r"^confirming, .*? at most: ")
_NUMBERS = re.compile(r"\b\d+([.,]\d+)*\b")


class Stages:
    """Seconds by stage, in the order in which stages first came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stage, self._began = clock, "start", clock()
        self.seconds: dict[str, float] = {}

    def enter(self, stage: str) -> None:
        """End the stage that runs, and begin another one."""
        now = self._clock()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._began
        self._stage, self._began = stage, now


def stage_of(text: str) -> str:
    """Return the stage of a progress text: without numbers, and without a confirmation's limit."""
    return _NUMBERS.sub("N", _FRONT.sub("", text))


class Plugin:
    """Follow the progress texts of a run; print and write the seconds at its end."""

    def __init__(self, stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stages, self._patch = stages, monkeypatch
        shown = Ticker.__call__

        def show(ticker: Ticker, text: str) -> None:
            stages.enter(stage_of(text))
            shown(ticker, text)

        monkeypatch.setattr(Ticker, "__call__", show)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """What follows a case is no more of its last stage."""
        self._stages.enter("between cases and end")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table and write the file."""
        self._patch.undo()
        self._stages.enter("")
        rows = {stage: round(seconds, 2) for stage, seconds in self._stages.seconds.items()}
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(rows, indent=1) + "\n")
        terminalreporter.section("seconds by stage")
        for stage, seconds in rows.items():
            terminalreporter.write_line(f"{seconds:8.2f}  {stage}")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.pluginmanager.register(Plugin(Stages(), pytest.MonkeyPatch()))
