"""Make a pytest within a test start sooner.

pytest looks up the hooks and fixtures of each plugin, anew in every run. Here they are found in a
quicker way, with the same result. Half of the time of a run of the gate is pytest's own start.
"""

from types import FunctionType, ModuleType
from typing import Any

import pytest
from _pytest import fixtures
from pluggy import _manager


def shorten_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of pytest within this process start sooner, until ``monkeypatch`` is undone."""
    find_hook = getattr(_manager, "_static_hook_attr", None)
    find_fixtures = fixtures.FixtureManager.parsefactories

    def hook(plugin: object, name: str) -> Any:
        """Return a module's function. Unlike the original, do not search base classes: a module has
        none.
        """
        value = vars(plugin).get(name) if type(plugin) is ModuleType else None
        return (value, value) if type(value) is FunctionType else find_hook(plugin, name)

    def parse(manager: Any, *arguments: Any, **named: Any) -> None:
        """Search a plugin for fixtures only if it has one: few have."""
        holder = named.get("holder", arguments[0] if arguments else None)
        if not isinstance(holder, pytest.Item | pytest.Collector) and not _has_fixtures(holder):
            return
        find_fixtures(manager, *arguments, **named)

    monkeypatch.setattr(fixtures.FixtureManager, "parsefactories", parse)
    # Older versions have neither of these two.
    monkeypatch.setattr(_manager, "_static_hook_attr", hook, raising=False)
    # pytest 9 checks all names of plugins for fixtures that are wrapped by mistake. That takes a
    # twelfth of a run.
    monkeypatch.setattr(
        fixtures.FixtureManager, "_check_for_wrapped_fixture", lambda *_: None, raising=False
    )


def _has_fixtures(holder: object) -> bool:
    kind = holder if isinstance(holder, type | ModuleType) else type(holder)
    places = kind.__mro__ if isinstance(kind, type) else (kind,)
    made = fixtures.FixtureFunctionDefinition
    return any(type(value) is made for place in places for value in vars(place).values())
