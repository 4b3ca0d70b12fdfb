"""From a call stack to the line that somebody wrote."""

import linecache
import os
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_ENGINE = str(Path(__file__).parents[2]) + os.sep  # by the link that it was imported through
_INSTALLED = ("site-packages", "dist-packages")


class Place(NamedTuple):
    """A line of source: ``file`` is relative to the working directory where it lies below it."""

    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""


def frames(innermost: FrameType | None) -> Iterator[tuple[str, int, str]]:
    """(file, line, function) from a frame outwards, for ``locate``."""
    while innermost is not None:
        code = innermost.f_code
        yield code.co_filename, innermost.f_lineno, code.co_qualname.replace(".<locals>", "")
        innermost = innermost.f_back


def locate(stack: Iterable[tuple[str, int, str]]) -> Place:
    """The innermost frame of the measured tree, else the innermost outside torch and this engine.

    ``stack`` goes from the innermost frame outwards. Returns an empty Place when every frame is
    torch's, the standard library's or the engine's (an autograd thread has no Python frame).
    """
    root = Path.cwd()
    fallback = Place()
    for file, line, function in stack:
        if _is_machinery(file):
            continue
        installed = any(part in file for part in _INSTALLED)
        path = Path(file).resolve()
        inside = path.is_relative_to(root) and not installed
        shown = str(path.relative_to(root)) if inside else file
        place = Place(shown, line, function, linecache.getline(file, line).strip())
        if inside:
            return place
        fallback = fallback if fallback.file else place
    return fallback


def _is_machinery(file: str) -> bool:
    """Whether a frame's file is torch's, this engine's, the standard library's, or none."""
    if file.startswith(("<", _TORCH, _ENGINE)):
        return True
    return file.startswith(_STDLIB) and not any(part in file for part in _INSTALLED)


def call_source(innermost: FrameType | None) -> str:
    """The source of the call that somebody wrote, over all its lines; empty if it is not known."""
    frame = innermost
    while frame is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    first, last, start, end = positions
    if first is None or last is None:
        return ""
    lines = [linecache.getline(frame.f_code.co_filename, n) for n in range(first, last + 1)]
    if not all(lines) or start is None or end is None:
        return "".join(lines)
    # Columns are of the line's bytes.
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][start:]
    return b"".join(encoded).decode(errors="replace")
