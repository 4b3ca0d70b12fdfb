"""JSON documents read strictly: typed, each key once, every number one that can be reckoned with.

A document that cannot be trusted in every line is refused whole: a gate that skips what it does not
understand turns green by accident. Time and memory are linear in its size. No I/O.
"""

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

LARGEST = 1e60  # of a number: its square, or a product of a few, is still one
EXAMPLE = "not a date like 2026-12-31"
Content = TypeVar("Content")


class OtherSchema(ValueError):
    """A document of another version, which is not damaged."""


def parse(text: str, kind: type[Content], schema: int) -> Content:
    """Return the document as a ``kind``.

    Raises ValueError when it is truncated, has NaN, a number beyond LARGEST, a key twice, a wrong,
    missing or unknown field, and OtherSchema for another schema than ``schema``.
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
            raise OtherSchema(f"schema {raw['schema']!r}, this version of stepguard reads {schema}")
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        # msgspec's word for a date has no example, which is what its reader needs.
        raise ValueError(str(error).replace("Invalid RFC3339 encoded date", EXAMPLE)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError as error:  # of an integer that a float cannot hold
        raise ValueError(str(error)) from None


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
