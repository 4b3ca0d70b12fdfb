"""Phases cost little, tell the observer, and need neither a profiler nor the nvtx package.

python -m pytest tests/model/test_phases.py
"""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest

from model import phases


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch):
    """Record what reaches NVTX, through a stand-in for the package."""
    events: list[str] = []

    class Annotate:
        def __init__(self, name: str) -> None:
            events.append(f"make {name}")
            self.name = name

        def __enter__(self) -> None:
            events.append(f"push {self.name}")

        def __exit__(self, *error: object) -> None:
            events.append(f"pop {self.name}")

    phases._range.cache_clear()
    monkeypatch.setattr(phases, "nvtx", SimpleNamespace(annotate=Annotate))
    yield events
    phases._range.cache_clear()


def test_ranges_nest_and_are_made_once(log: list[str]):
    """Ranges open and close in order, and the object for a name is made only once."""
    for _ in range(2):
        with phases.phase("micro_step_0"), phases.phase("forward"):
            pass
    one_pass = ["push micro_step_0", "push forward", "pop forward", "pop micro_step_0"]
    assert [event for event in log if not event.startswith("make")] == one_pass * 2
    assert sorted(event for event in log if event.startswith("make")) == [
        "make forward",
        "make micro_step_0",
    ]


def test_one_name_may_nest_in_itself(log: list[str]):
    """A reused range object can be open twice."""
    with phases.phase("forward"), phases.phase("forward"):
        pass
    assert log[1:] == ["push forward", "push forward", "pop forward", "pop forward"]


def test_the_observer_hears_before_the_range_opens(log: list[str]):
    """on_phase is called on entry, so that a hang inside the phase is reported as that phase."""
    with phases.phase("backward", lambda name: log.append(f"told {name}")):
        pass
    assert log == ["told backward", "make backward", "push backward", "pop backward"]


def test_a_range_closes_on_an_error(log: list[str]):
    """An exception passes through a phase and its range is closed."""
    with pytest.raises(KeyError), phases.phase("forward"):
        raise KeyError
    assert log[-1] == "pop forward"


def test_the_real_package_accepts_our_calls():
    """With the nvtx package as installed (or none), a phase can be entered."""
    phases._range.cache_clear()
    with phases.phase("optimizer"):
        pass


def test_without_the_package_phases_do_nothing(monkeypatch: pytest.MonkeyPatch):
    """The module imports without nvtx; the observer is still told."""
    monkeypatch.setitem(sys.modules, "nvtx", None)
    monkeypatch.delitem(sys.modules, "model.phases")
    without = importlib.import_module("model.phases")
    assert without.nvtx is None
    seen: list[str] = []
    with without.phase("forward", seen.append):
        pass
    assert seen == ["forward"]
