"""Limit what ranks print: a workload that prints a tensor in each step would fill a disk.

A rank writes to its files directly, so printing costs what it costs without the engine. The agent
looks at the files from time to time, and removes the middle of a file that is too large. This
module needs only the standard library.
"""

import os
from pathlib import Path

MOST_BYTES = 1 << 20  # of a file, above which its middle is removed
KEPT_BYTES = 1 << 17  # of its beginning, and of its end
_SAYS = "\n[stepguard: {} bytes of output are left out here, more than {} were printed]\n"


class Printed:
    """Files that ranks append to."""

    def __init__(self) -> None:
        self._left_out: dict[Path, int] = {}  # bytes removed so far

    def add(self, path: Path) -> None:
        """Look at this file, too."""
        self._left_out[path] = 0

    def bound(self) -> None:
        """Remove the middle of each file that is too large. What a rank writes at that moment may
        be lost with it.
        """
        for path, before in self._left_out.items():
            if path.exists() and (size := path.stat().st_size) > MOST_BYTES:
                self._left_out[path] = before + _cut(path, size, before)


def _cut(path: Path, size: int, before: int) -> int:
    """Remove the middle of a file of ``size`` bytes. Return how many bytes of the rank's output
    that removes. ``before``: how many were removed earlier.
    """
    # After the first time the middle begins with the notice, which is not the rank's output.
    said = len(_SAYS.format(before, MOST_BYTES)) if before else 0
    left_out = size - 2 * KEPT_BYTES - said
    with path.open("r+b") as file:
        file.seek(size - KEPT_BYTES)
        end = file.read(KEPT_BYTES)
        file.truncate(KEPT_BYTES)
    with path.open("ab") as file:  # behind what the rank may have written in the meantime
        file.write(_SAYS.format(before + left_out, MOST_BYTES).encode() + end)
    return left_out


def open_to_append(path: Path) -> int:
    """Return a descriptor that appends to a file: what is written goes to the file's end, also
    after its middle was removed.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
