"""Tracebacks as a user wants to read them: from the factory inwards, without the engine itself."""

import re
from collections.abc import Iterator

_FRAME = '  File "'
_WITHIN = ("    ", "  [Previous line repeated ")  # what belongs to the frame above
# What stands between a rank's main() and the user's code: the engine, and how Python imports.
_OURS = re.compile(r'^  File "(.*/stepguard/worker/|.*/importlib/__init__\.py"|<frozen importlib)')


def users_frames(traceback: str) -> str:
    """The traceback less the engine's frames; empty if it has frames and all are the engine's."""
    kept: list[str] = []
    dropped = frames = 0
    for part in _parts(traceback):
        if _OURS.match(part[0]):
            dropped += 1
            continue
        frames += part[0].startswith(_FRAME)
        kept += part
    return "\n".join(kept) if frames or not dropped else ""


def _parts(traceback: str) -> Iterator[list[str]]:
    """Frames, each with the source under it, and the lines between them."""
    part: list[str] = []
    for line in traceback.splitlines():
        if part and part[0].startswith(_FRAME) and line.startswith(_WITHIN):
            part.append(line)
            continue
        if part:
            yield part
        part = [line]
    if part:
        yield part
