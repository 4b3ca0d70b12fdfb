"""JSON files that people review and merge: read strictly, and written whole or not at all.

stepguard/core/strict_json.py says what a document must be.
"""

import contextlib
import errno
import fcntl
import functools
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from stepguard.core.strict_json import Check, OtherSchema, parse
from stepguard.machine.git.revision import is_tracked
from stepguard.machine.interpreter import as_typed
from stepguard.machine.lifeline import interrupts_deferred

MAX_BYTES = 64 << 20  # a baseline file has some hundred KiB
LINE_WIDTH = 100
Content = TypeVar("Content")
Arguments = ParamSpec("Arguments")
Done = TypeVar("Done")


class FileError(Exception):
    """A file that cannot be used or written. One sentence, with the remedy."""


def read(
    path: Path,
    kind: type[Content],
    schema: int,
    renew: str,
    check: Check[Content] | None = None,
    remedy: str = "",
) -> Content | None:
    """Return the file's content; None if there is no file.

    Raises FileError if the file has conflict markers, is no document of that kind and schema, or
    ``check`` finds a problem. The error ends with ``remedy``. If that is empty, it ends with
    restore(), or, for an older schema, with the command that moves the file away and makes it anew:
    ``renew``, a module with its arguments.
    """
    data = contents(path, remedy)
    if data is None:
        return None
    try:
        return _parsed(path, data, kind, schema, check)
    except OtherSchema as error:  # restoring the file does not help then
        # The old file is moved first: the command that makes it anew would read and refuse it.
        anew = f"make it anew: {aside(path)} && {as_typed(renew)}"
        newer = "a newer version wrote it: update stepguard"
        raise FileError(f"{path}: {error}; {remedy or (newer if error.newer else anew)}") from None
    except ValueError as error:
        # Correcting comes first: git's version lacks what somebody wrote, or it may be wrong, too.
        mend = remedy or f"correct it, or {restore(path)}"
        raise FileError(f"{path}: {error}; {mend}") from None


def _parsed(
    path: Path,
    data: bytes,
    kind: type[Content],
    schema: int,
    check: Check[Content] | None,
) -> Content:
    text = data.decode("utf-8")
    # Checked before the JSON is parsed, whose error would name a column and not the merge.
    _refuse_conflict(path, text)
    return parse(text, kind, schema, check)


def contents(path: Path, remedy: str = "") -> bytes | None:
    """Return a file's bytes, or None. Raises FileError for no plain file: a pipe may not end."""
    try:
        # Checked before opening: some devices do something when they are opened.
        _refuse_other_than_file(os.stat(path))
        # Without O_NONBLOCK opening a pipe waits until somebody writes to it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            # The open file is checked, too: the path may lead to another file by now.
            _refuse_other_than_file(os.fstat(handle))
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read: {error}; {remedy or restore(path)}") from None


def _refuse_other_than_file(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ValueError("it is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > MAX_BYTES:
        raise ValueError(f"{status.st_size:,} bytes, at most {MAX_BYTES:,} are read")


def _refuse_conflict(path: Path, text: str) -> None:
    for number, line in enumerate(text.splitlines(), start=1):
        # No line of JSON begins like this: a string cannot contain a line break.
        if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ")):
            raise FileError(
                f"{path}, line {number}: merge conflict marker {line[:20]!r}; "
                f"keep one side, e.g.: git checkout --ours {shlex.quote(str(path))}"
            )


def restore(path: Path) -> str:
    """Return the command that restores git's version of a file, or that moves away a file unknown
    to git. What the file holds is kept: it may be whole, and in no commit.
    """
    if not is_tracked(path):
        return f"put it aside (git does not have it) with: {aside(path)}"
    kept = f"{aside(path)} && " if os.path.lexists(path) else ""
    return f"restore git's version with: {kept}git checkout -- {shlex.quote(str(path))}"


def aside(path: Path) -> str:
    """Return the command that moves a file or a folder to a name that nothing has yet."""
    ends = chain([".old"], (f".old{number}" for number in count(2)))
    free = next(end for end in ends if not os.path.lexists(f"{path}{end}"))
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}{free}')}"


def one_at_a_time(
    update: Callable[Concatenate[Path, Arguments], Done],
) -> Callable[Concatenate[Path, Arguments], Done]:
    """Return ``update`` with a lock: only one process at a time runs it. ``update`` reads a file,
    changes its content and saves it; its first argument is the file or the file's folder. Without
    the lock a process could overwrite what another one saved after it had read the file.
    """

    @functools.wraps(update)
    def alone(path: Path, /, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> Done:
        with contextlib.ExitStack() as stack:
            # The folder is locked, since it exists before its files.
            with contextlib.suppress(OSError):  # some file systems cannot lock
                folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
            return update(path, *arguments, **keywords)

    return alone


def save(
    path: Path, content: Content, schema: int, remedy: str, check: Check[Content] | None = None
) -> None:
    """Write a file with sorted keys. Raises FileError, and leaves the old file, if that fails."""
    try:
        data = f"{layout(msgspec.to_builtins(content))}\n".encode()
        # Types and ranges are checked when a document is read, not when a Struct is made.
        _parsed(path, data, type(content), schema, check)
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data):,} bytes, at most {MAX_BYTES:,} are read")
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: not written: {error}; {remedy}") from None
    try:
        replace_file(path, data)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        first = "free some space" if full else f"make {shlex.quote(str(path.parent))} writable"
        old = "; the old file is unchanged" if path.exists() else ""
        why = f"cannot be written: {error.strerror or error}{old}; {first}"
        raise FileError(f"{path}: {why}; {remedy}") from None


def replace_file(path: Path, data: bytes) -> None:
    """Write a new file beside the old one and rename it: the old file stays until the new one is
    whole.

    Raises OSError, and leaves only the old file, if that fails. Ctrl-C waits until the file is
    written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with interrupts_deferred():
        # In the same folder, since a rename replaces a file at once only within a file system.
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                # Without fsync a crash of the machine after the rename could leave an empty file.
                os.fsync(file.fileno())
            # mkstemp makes a file that only its owner can read.
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def layout(value: Any, depth: int = 0) -> str:
    """Return JSON with sorted keys, a fact on one line if it fits, for a short diff."""
    parts = bool(value) and isinstance(value, dict | list)
    # The outer levels always have lines of their own: a small file on one line would conflict at
    # every merge.
    if depth > 2 or not parts:
        compact = json.dumps(value, sort_keys=True, allow_nan=False)
        if len(compact) + depth <= LINE_WIDTH or not parts:
            return compact
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, list):
        items = [f"{pad}{layout(item, depth + 1)}" for item in value]
        return "[\n" + ",\n".join(items) + f"\n{end}]"
    items = [f"{pad}{json.dumps(key)}: {layout(value[key], depth + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(items) + f"\n{end}}}"
