"""JSON documents read strictly: typed, each key once, every number one that can be reckoned with.

A document that cannot be trusted in every line is refused whole: a gate that skips what it does not
understand turns green by accident. Time and memory are linear in its size. No I/O.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, get_args

import msgspec

from stepguard.text import cut

LARGEST = 1e60  # of a number: its square, or a product of a few, is still one
EXAMPLE = "not a date like 2026-12-31"
Content = TypeVar("Content")
Check = Callable[[Content], Iterable[str]]  # yields what is wrong with a content of sound types


class OtherSchema(ValueError):
    """A document of another version, which is not damaged."""

    def __init__(self, found: Any, schema: int) -> None:
        super().__init__(f"schema {found!r}, this version of stepguard reads {schema}")
        self.newer = type(found) is int and found > schema


def parse(
    text: str, kind: type[Content], schema: int, check: Check[Content] | None = None
) -> Content:
    """Return the document as a ``kind``.

    Raises ValueError when it is truncated, has NaN, a number beyond LARGEST, a key twice, a wrong,
    missing or unknown field, or what ``check`` yields; OtherSchema for another one than ``schema``.
    """
    try:
        raw = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_float=_number,
            parse_int=lambda digits: _number(digits, int),
            parse_constant=_not_a_number,
        )
        json.dumps(raw, ensure_ascii=False).encode()  # no half of a character
        if not isinstance(raw, dict) or "schema" not in raw:
            raise ValueError("it has no schema")
        # Before the fields: another schema has others.
        if raw["schema"] != schema:
            raise OtherSchema(raw["schema"], schema)
        found = converted(raw, kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError as error:  # of an integer that a float cannot hold
        raise ValueError(str(error)) from None
    # Beyond types: which metrics there are, and what fits to what.
    for problem in check(found) if check else ():
        raise ValueError(problem)
    return found


def converted(raw: Any, kind: type[Content]) -> Content:
    """Return plain data as a ``kind``. Raises ValueError in words for whoever edited it."""
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at ")
        found: Any = _struct(kind) if "unknown field" in text else None
        for name in re.findall(r"\.(\w+)", at) if found else ():
            found = _struct({one.name: one.type for one in msgspec.structs.fields(found)}[name])
        possible = f"; possible: {', '.join(found.__struct_fields__)}" if found else ""
        # msgspec's word for a date has no example, which is what its reader needs.
        text = str(error).replace("Invalid RFC3339 encoded date", EXAMPLE) + _found(raw, at)
        raise ValueError(f"{text}{possible}") from None


def _found(raw: Any, at: str) -> str:
    """Return the value at a path of msgspec's, `$.waivers[0].expires`, as it is written; empty for
    a whole object or list, and where the path leaves out a key.
    """
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", at):
        if index == "..." or not isinstance(raw, dict if name else list):
            return ""
        raw = raw[name or int(index)] if index or name in raw else None
    return "" if not at or isinstance(raw, dict | list) else f": {cut(json.dumps(raw), 40)}"


def _struct(kind: Any) -> Any:
    """Return the Struct that a type is, or holds as list[Waiver] and Plot | None do; else None."""
    if hasattr(kind, "__struct_fields__"):
        return kind
    return next(filter(None, map(_struct, get_args(kind))), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:  # the later one would win silently
            raise ValueError(f"key {key!r} is there twice")
        found[key] = value
    return found


def _number(text: str, kind: Callable[[str], float] = float) -> float:
    value = kind(text)
    if not math.fabs(value) <= LARGEST:
        raise ValueError(f"{text[:20]} is larger than anything that is measured")
    return value


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that can be compared")
