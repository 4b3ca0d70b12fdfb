"""Measured peaks of cards, by a matrix product and a copy: one file for each card in the user's
cache. They belong to the machine, not to a project.
"""

import re
from pathlib import Path
from typing import Annotated

import msgspec

from stepguard.machine.interpreter import as_typed
from stepguard.storage.compile_cache import user_cache
from stepguard.storage.json_file import FileError, replace_file, restore

Positive = Annotated[float, msgspec.Meta(gt=0)]


class Peaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The peaks that one card reached."""

    device_name: str
    device_uuid: str  # empty for a CPU
    date: str
    torch: str
    copy_bytes_per_s: Positive  # bytes read and written
    flops_per_s: dict[str, Positive]  # of matrix products, by type: "bf16"


def folder() -> Path:
    """Return the folder of measured peaks."""
    return user_cache() / "peaks"


def save(peaks: Peaks) -> Path:
    """Keep a card's peaks in place of its older ones. Return the file."""
    name = re.sub(r"[^\w-]+", "-", peaks.device_uuid or peaks.device_name)
    path = folder() / f"{name}.json"
    replace_file(path, msgspec.json.format(msgspec.json.encode(peaks)) + b"\n")
    return path


def newest(device_name: str) -> Peaks | None:
    """Return the newest peaks of a card of this name; None if there are none. Raises FileError."""
    known = [peaks for path in sorted(folder().glob("*.json")) if (peaks := _load(path))]
    mine = [peaks for peaks in known if peaks.device_name == device_name]
    return max(mine, key=lambda peaks: peaks.date, default=None)


def _load(path: Path) -> Peaks:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Peaks)
    except (OSError, msgspec.DecodeError) as error:
        command = as_typed("stepguard peaks")
        raise FileError(f"{path}: {error}; {restore(path)}; measure again: {command}") from None
