"""Make a pytest within a test start sooner.

pytest looks up the hooks, fixtures and options of each plugin, anew in every run. Here they are
found in a quicker way, with the same result. Half of the time of a run of the gate is pytest's own
start.
"""

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pluggy
import pytest
from _pytest import fixtures
from _pytest.config.argparsing import OptionGroup
from pluggy import _manager


def shorten_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs of pytest within this process start sooner, until ``monkeypatch`` is undone."""

    def put(module: Any, name: str, value: object) -> None:
        monkeypatch.setattr(module, name, value, raising=False)

    # Both search all names of a plugin: a few of a hundred are a hook, or a fixture.
    put(_manager, "dir", lambda plugin: [name for name in dir(plugin) if name[:7] == "pytest_"])
    put(fixtures, "dir", _fixtures_of)
    # Older versions have none of these.
    if find_hook := getattr(_manager, "_static_hook_attr", None):
        put(_manager, "_static_hook_attr", functools.partial(_hook, find_hook))
    for module in filter(None, (getattr(pluggy, name, None) for name in ("_decorators", "_impl"))):
        put(module, "varnames", _quicker(module.varnames))
    # Whether two options are alike: the run that this one is in has asked that of the same plugins.
    if add := getattr(OptionGroup, "_addoption_inner", None):
        put(OptionGroup, "addoption", lambda group, *names, **of: add(group, names, of, False))


def _hook(find: Callable[[object, str], Any], plugin: object, name: str) -> Any:
    """Return a plugin's function, and how it is called. Unlike the original, do not look for
    properties and slots where a plain function stands.
    """
    kind = type(plugin)
    places = (
        [plugin] if kind is ModuleType else [] if hasattr(plugin, "__slots__") else kind.__mro__
    )
    value = next((vars(place)[name] for place in places if name in vars(place)), None)
    if type(value) is not FunctionType or (kind is not ModuleType and name in vars(plugin)):
        return find(plugin, name)
    return value, value if kind is ModuleType else value.__get__(plugin)


def _fixtures_of(holder: object) -> list[str]:
    """Return the names that can be fixtures: few plugins have any."""
    kind = holder if isinstance(holder, type | ModuleType) else type(holder)
    places = kind.__mro__ if isinstance(kind, type) else (kind,)
    made = fixtures.FixtureFunctionDefinition
    return sorted({name for at in places for name, v in vars(at).items() if type(v) is made})


def _quicker(varnames: Callable[..., Any]) -> Callable[..., Any]:
    """Return pluggy's search for the parameters of a function, which is asked again and again for
    those of the same modules.
    """
    known = functools.lru_cache(4096)(varnames)

    def found(function: object, **how: bool) -> Any:
        return (known if type(function) is FunctionType else varnames)(function, **how)

    return found
