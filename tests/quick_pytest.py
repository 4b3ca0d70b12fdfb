"""A pytest within a test in less time: what it looks up about each plugin, in every run anew, is
found in another way, with the same answer. Half of a run of the gate is pytest's own start.
"""

from types import FunctionType, ModuleType
from typing import Any

import pytest
from _pytest import fixtures
from pluggy import _manager


def shorten_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs within this process start sooner."""
    find_hook = getattr(_manager, "_static_hook_attr", None)
    find_fixtures = fixtures.FixtureManager.parsefactories

    def hook(plugin: object, name: str) -> Any:
        """Return a module's function without a look at what it inherits: it inherits nothing."""
        value = vars(plugin).get(name) if type(plugin) is ModuleType else None
        return (value, value) if type(value) is FunctionType else find_hook(plugin, name)

    def parse(manager: Any, *arguments: Any, **named: Any) -> None:
        """Look at each attribute of those only that have a fixture: few plugins do."""
        holder = named.get("holder", arguments[0] if arguments else None)
        if not isinstance(holder, pytest.Item | pytest.Collector) and not _has_fixtures(holder):
            return
        find_fixtures(manager, *arguments, **named)

    monkeypatch.setattr(fixtures.FixtureManager, "parsefactories", parse)
    # Older versions have neither of these two.
    monkeypatch.setattr(_manager, "_static_hook_attr", hook, raising=False)
    # pytest 9 looks for a mistake of plugins in all their names: a twelfth of a run.
    monkeypatch.setattr(
        fixtures.FixtureManager, "_check_for_wrapped_fixture", lambda *_: None, raising=False
    )


def _has_fixtures(holder: object) -> bool:
    kind = holder if isinstance(holder, type | ModuleType) else type(holder)
    places = kind.__mro__ if isinstance(kind, type) else (kind,)
    made = fixtures.FixtureFunctionDefinition
    return any(type(value) is made for place in places for value in vars(place).values())
