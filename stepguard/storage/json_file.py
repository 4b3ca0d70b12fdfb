"""JSON files that people review and merge: read strictly, written whole or not at all.

A file that cannot be trusted in every line is refused whole: a gate that skips what it does not
understand turns green by accident.
"""

import contextlib
import json
import os
import shlex
import stat
import tempfile
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

MAX_BYTES = 64 << 20  # a baseline file has some hundred KiB
LINE_WIDTH = 100
Content = TypeVar("Content", bound=msgspec.Struct)


class FileError(Exception):
    """A file that cannot be used or written; one sentence with the remedy."""


def read(path: Path, kind: type[Content], schema: int, renew: str) -> Content | None:
    """Return the file's content, or None where there is no file.

    Raises FileError when it is truncated, has conflict markers, NaN, a key twice, a wrong, missing
    or unknown field, or another schema; ``renew`` is the command that makes it anew then.
    """
    text = _text(path)
    if text is None:
        return None
    # Before JSON, whose error would name a column and not the merge.
    _refuse_conflict(path, text)
    try:
        raw = json.loads(text, object_pairs_hook=_unique, parse_constant=_not_a_number)
        json.dumps(raw, allow_nan=False, ensure_ascii=False).encode()  # no 1e999, no half character
        if not isinstance(raw, dict) or "schema" not in raw:
            raise ValueError("it has no schema")
        # Before the fields: another schema has others, and restoring the file does not help then.
        if raw["schema"] == schema:
            return msgspec.convert(raw, kind, strict=True)
    except (ValueError, RecursionError) as error:  # msgspec's ValidationError is a ValueError
        raise FileError(f"{path}: {error}; {restore(path)}") from None
    raise FileError(
        f"{path}: schema {raw['schema']!r}, this version of stepguard reads {schema}; "
        f"make it anew: {renew}"
    )


def _text(path: Path) -> str | None:
    """Return the text of a file of moderate size; a device or a pipe might never end."""
    try:
        # Without O_NONBLOCK opening a pipe waits until somebody writes to it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            # Of the open file, since the path may name another one by now.
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is not a regular file")
            if status.st_size > MAX_BYTES:
                raise ValueError(f"{status.st_size:,} bytes, at most {MAX_BYTES:,} are read")
            return file.read(MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise FileError(f"{path}: it is a directory; {restore(path)}") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read: {error}; {restore(path)}") from None


def _refuse_conflict(path: Path, text: str) -> None:
    for number, line in enumerate(text.splitlines(), start=1):
        # No line of JSON begins so: a string cannot contain a line break.
        if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ")):
            raise FileError(
                f"{path}, line {number}: merge conflict marker {line[:20]!r}; "
                f"keep one side, e.g.: git checkout --ours {shlex.quote(str(path))}"
            )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:  # the later one would win silently
            raise ValueError(f"key {key!r} is there twice")
        found[key] = value
    return found


def _not_a_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that can be compared")


def restore(path: Path) -> str:
    """Return the command that brings the committed file back."""
    return f"restore it with: git checkout -- {shlex.quote(str(path))}"


def save(path: Path, content: msgspec.Struct, remedy: str) -> None:
    """Write a file of sorted keys that read() accepts.

    Raises FileError, and leaves the old file as it was, for content that could not be read back,
    and where the folder cannot be written; ``remedy`` then says what to do.
    """
    plain = msgspec.to_builtins(content)
    try:
        # msgspec checks types and ranges when it reads, not when a Struct is made.
        msgspec.convert(plain, type(content), strict=True)
        data = f"{layout(plain)}\n".encode()
    except ValueError as error:
        raise FileError(f"{path}: not written: {error}; {remedy}") from None
    try:
        replace_file(path, data)
    except OSError as error:
        raise FileError(
            f"{path}: cannot be written: {error.strerror or error}; the old file is unchanged, "
            f"and {remedy}"
        ) from None


def replace_file(path: Path, data: bytes) -> None:
    """Write beside the file and rename over it: the old file stays until the new one is whole.

    Raises OSError, and leaves nothing but the old file, when that cannot be done.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename replaces a file at once only within one file system.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            # Else a crash of the machine after the rename could leave an empty file of that name.
            os.fsync(file.fileno())
        # mkstemp makes it readable by its owner alone.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def layout(value: Any, depth: int = 0) -> str:
    """Return JSON with sorted keys; what fits a line is on one, so that a diff shows whole facts.

    Raises ValueError for a number that is not finite.
    """
    compact = json.dumps(value, sort_keys=True, allow_nan=False)
    # The outer levels are always spread: a small file on one line would conflict at every merge.
    short = len(compact) + depth <= LINE_WIDTH and depth > 2
    if short or not value or not isinstance(value, dict | list):
        return compact
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, list):
        items = [f"{pad}{layout(item, depth + 1)}" for item in value]
        return "[\n" + ",\n".join(items) + f"\n{end}]"
    items = [f"{pad}{json.dumps(key)}: {layout(value[key], depth + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(items) + f"\n{end}}}"
