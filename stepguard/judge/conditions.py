"""What two measurements were made with, and in what that differs. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepguard.core.figures import Changed

Change = tuple[str, Any, Any]  # key, old, new


def first_change(known: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return the first thing that differs, as "batch 32 -> 64"; empty if all is equal."""
    return next(
        (Changed(changes=found[:1]).text for both in known if (found := changes(*both))), ""
    )


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return what differs of cases, versions or settings, "unset" where one lacks it; torch before
    what it brings along.
    """
    then, now = _flat(old), _flat(new)
    return tuple(
        (key, str(then.get(key, "unset")), str(now.get(key, "unset")))
        for key in sorted(then | now, key=lambda key: (key != "torch", key))
        # A parameter that is None differs from one that is not there.
        if (key in then, then.get(key)) != (key in now, now.get(key))
    )


def _flat(case: Mapping[str, Any]) -> dict[str, Any]:
    params = case.get("params")
    flat = {key: value for key, value in case.items() if key != "params"}
    for key, value in params.items() if isinstance(params, Mapping) else ():
        # A parameter may be called like a field of the case, "device" for one.
        flat[f"params.{key}" if key in flat else key] = value
    return flat
