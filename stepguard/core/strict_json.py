"""JSON documents read strictly: typed, each key once, every number one that can be reckoned with.

A document that cannot be trusted in every line is refused whole: a gate that skips what it does not
understand turns green by accident. Time and memory are linear in its size. No I/O.
"""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_args

import msgspec

from stepguard.core.text import cut

LARGEST = 1e60  # of a number: its square, or a product of a few, is still one
EXAMPLE = "not a date like 2026-12-31"
Content = TypeVar("Content")
Check = Callable[[Content], Iterable[str]]  # yields what is wrong with a content of sound types
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]  # what it cannot make sense of it leaves alone
NO_OLDER: Mapping[int, Upgrade] = {}


class OtherSchema(ValueError):
    """A document of another version, which is not damaged."""

    def __init__(self, value: Any, schema: int) -> None:
        super().__init__(f"schema {value!r}, this version of stepguard reads {schema}")
        self.newer = type(value) is int and value > schema


def parse(
    text: str,
    kind: type[Content],
    schema: int,
    check: Check[Content] | None = None,
    older: Mapping[int, Upgrade] = NO_OLDER,
) -> Content:
    """Return the document as a ``kind``. ``older`` schemas are made into this one before its fields
    are read.

    Raises ValueError when it is truncated, has NaN, a number beyond LARGEST, a key twice, a wrong,
    missing or unknown field, or what ``check`` yields; OtherSchema for another one than ``schema``.
    """
    if not text.strip():  # as a redirection leaves it whose command failed
        raise ValueError("it is empty")
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
        if type(raw["schema"]) is int and (upgrade := older.get(raw["schema"])):
            raw = upgrade(raw)
        if raw["schema"] != schema:
            raise OtherSchema(raw["schema"], schema)
        content = converted(raw, kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError as error:  # of an integer that a float cannot hold
        raise ValueError(str(error)) from None
    # Beyond types: which metrics there are, and what fits to what.
    for problem in check(content) if check else ():
        raise ValueError(problem)
    return content


def converted(raw: Any, kind: type[Content]) -> Content:
    """Return plain data as a ``kind``. Raises ValueError in words for whoever edited it, and then
    leaves no whole ``raw``.
    """
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at ")
        struct: Any = _struct(kind) if "unknown field" in text else None
        for name in re.findall(r"\.(\w+)", at) if struct else ():
            struct = _struct(
                {field.name: field.type for field in msgspec.structs.fields(struct)}[name]
            )
        possible = f"; possible: {', '.join(struct.__struct_fields__)}" if struct else ""
        # msgspec's word for a date has no example, which is what its reader needs.
        text = text.replace("Invalid RFC3339 encoded date", EXAMPLE)
        where = f" - at {_located(raw, kind, str(error))}" if at else ""
        raise ValueError(f"{text}{where}{possible}") from None


def _located(raw: Any, kind: Any, error: str) -> str:
    """Return the path in an error of msgspec's, `$.cases[...].date`, with the keys that it leaves
    out, and the value there as it is written, unless that is a whole object or list.
    """
    at = error.partition(" - at ")[2]
    before, _, steps = at.partition("$")
    path, here = f"{before}$", raw
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", steps):
        if index == "...":
            key = _wrong_key(raw, kind, here, error)
            path, here = f"{path}[{json.dumps(key)}]", here[key]
        else:
            path += f".{name}" if name else f"[{index}]"
            here = here.get(name) if name else here[int(index)]
    value = "" if isinstance(here, dict | list) else f": {cut(json.dumps(here), 40)}"
    return f"{path}`{value}"


def _wrong_key(raw: Any, kind: Any, here: dict[str, Any], error: str) -> str:
    """Return the first key with an error of an object somewhere in ``raw``, and leave it no other:
    the error is there with the keys up to it, and not with fewer.
    """
    items = [*here.items()]

    def keep(some: Sequence[tuple[str, Any]]) -> None:
        here.clear()
        here.update(some)

    def is_there(count: int) -> bool:
        keep(items[:count])
        try:
            msgspec.convert(raw, kind, strict=True)
        except msgspec.ValidationError as problem:
            return str(problem) == error
        return False

    wrong = items[bisect_left(range(len(items)), True, key=is_there) - 1]
    keep([wrong])
    return wrong[0]


def _struct(kind: Any) -> Any:
    """Return the Struct that a type is, or holds as list[Waiver] and Plot | None do; else None."""
    if hasattr(kind, "__struct_fields__"):
        return kind
    return next(filter(None, map(_struct, get_args(kind))), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:  # the later one would win silently
            raise ValueError(f"key {key!r} is there twice")
        content[key] = value
    return content


def _number(text: str, kind: Callable[[str], float] = float) -> float:
    value = kind(text)
    if not math.fabs(value) <= LARGEST:
        raise ValueError(f"{text[:20]} is larger than anything that is measured")
    return value


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that can be compared")
