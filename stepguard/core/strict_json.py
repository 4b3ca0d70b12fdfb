"""Read JSON documents strictly: fields have their types, a key occurs once, numbers are finite and
not huge. The whole document is refused if any part of it cannot be trusted: a gate that skips what
it does not understand turns green by accident. Time and memory are linear in the size. No I/O.
"""

import json
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar, get_args

import msgspec

from stepguard.core import former
from stepguard.core.text import cut


class DocumentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a document: nobody changes it, and it has no field that nobody knows."""


LARGEST = 1e60  # numbers are at most this large, so that products of a few stay finite
EXAMPLE = "not a date like 2026-12-31"
Content = TypeVar("Content")
# Yields what is wrong with the content, although its types are right.
Check = Callable[[Content], Iterable[str]]


class OtherSchema(ValueError):
    """A document of another version. It is not damaged."""

    def __init__(self, value: Any, schema: int) -> None:
        super().__init__(f"schema {value!r}, this version of stepguard reads {schema}")
        self.newer = type(value) is int and value > schema


def parse(
    text: str, kind: type[Content], schema: int, check: Check[Content] | None = None
) -> Content:
    """Return the document as a ``kind``.

    Raises ValueError if the document is truncated; if it has NaN, a number beyond LARGEST or a key
    twice; if it has a wrong, missing or unknown field; or if ``check`` yields something. Raises
    OtherSchema if its schema is not ``schema``.
    """
    if not text.strip():  # a shell's > leaves an empty file if its command failed
        raise ValueError("it is empty")
    try:
        raw = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_float=_number,
            parse_int=partial(_number, kind=int),
            parse_constant=_not_a_number,
        )
        json.dumps(raw, ensure_ascii=False).encode()  # no half of a surrogate pair
        if not isinstance(raw, dict) or "schema" not in raw:
            raise ValueError("it has no schema")
        # The schema comes before the fields: another schema has others.
        if raw["schema"] != schema:
            raise OtherSchema(raw["schema"], schema)
        content = converted(former.without(raw), kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError as error:  # an integer that a float cannot hold
        raise ValueError(str(error)) from None
    # Beyond types: whether metrics exist, and whether values fit together.
    for problem in check(content) if check else ():
        raise ValueError(problem)
    return content


def converted(raw: Any, kind: type[Content]) -> Content:
    """Return plain data as a ``kind``. Raises ValueError for a wrong, missing or unknown field,
    with its place. ``raw`` may then lack keys.
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
        # msgspec's message about a date has no example, which the reader needs.
        text = text.replace("Invalid RFC3339 encoded date", EXAMPLE)
        where = f" - at {_located(raw, kind, str(error))}" if at else ""
        raise ValueError(f"{text}{where}{possible}") from None


def _located(raw: Any, kind: Any, error: str) -> str:
    """Return the path of msgspec's error with the real keys, and a short value there."""
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
    """Return the first key of an object in ``raw`` whose value has this error, by bisection."""
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
    """Return the Struct in a type, as in list[Waiver] or Plot | None; else None."""
    if hasattr(kind, "__struct_fields__"):
        return kind
    return next(filter(None, map(_struct, get_args(kind))), None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):  # without this the later one would win silently
        times = Counter(key for key, _ in pairs)
        twice = next(key for key, count in times.items() if count > 1)
        raise ValueError(f"key {twice!r} is there twice")
    return content


def _number(text: str, kind: Callable[[str], float] = float) -> float:
    value = kind(text)
    if not math.fabs(value) <= LARGEST:
        raise ValueError(f"{text[:20]} is larger than anything that is measured")
    return value


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that can be compared")
