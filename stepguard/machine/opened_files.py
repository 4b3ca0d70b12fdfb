"""Which of some files any process opens, asked of the kernel (inotify). Only for Linux.

Modules of a rank are not all that it reads: a script may execute a settings file, start a program,
or load a library. Whatever opens a file does so by the kernel.
"""

import contextlib
import ctypes
import glob
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_IN_ATTRIB, _IN_OPEN, _IN_Q_OVERFLOW, _IN_MOVE_SELF = 0x4, 0x20, 0x4000, 0x800  # linux/inotify.h
# A file that another one replaces loses a link, or moves. The other one's name is the same, but
# whoever opens it is not heard. So this counts as opened.
_EVENTS = _IN_OPEN | _IN_ATTRIB | _IN_MOVE_SELF
_EVENT = struct.Struct("iIII")  # inotify_event without its name, which a watch on a file lacks
_READ_BYTES = 1 << 16


class OpenedFiles:
    """Watches files from its start until close().

    A file that is not there cannot be opened. Of a Python file its bytecode is watched, too. A
    folder counts as opened, since what is opened below it is not heard. So does what is neither a
    file nor a folder.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._opened: set[Path] = set()
        self._watched: dict[int, Path] = {}  # by the kernel's number
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._known = self._queue >= 0  # False: something may have been missed
        for path in paths:
            self._watch(path)
        self._known = self._known and self._hears()

    def opened(self) -> frozenset[Path] | None:
        """Return the files that were opened so far; None if that is not known."""
        self._read()
        return frozenset(self._opened) if self._known else None

    def close(self) -> None:
        """Stop watching. What was opened until then stays known."""
        self._read()
        if self._queue >= 0:
            os.close(self._queue)
            self._queue = -1

    def _watch(self, path: Path) -> None:
        # Not by methods of Path, which fail where this process may not look.
        if os.path.exists(path) and not os.path.isfile(path):
            self._opened.add(path)
            return
        names = f"{glob.escape(str(path.parent))}/__pycache__/{glob.escape(path.stem)}.*"
        bytecode = glob.glob(names) if path.suffix == ".py" else ()
        for file in (path, *bytecode):
            number = self._libc.inotify_add_watch(self._queue, os.fsencode(file), _EVENTS)
            if number >= 0:
                self._watched[number] = path
            elif os.path.exists(file):
                self._known = False

    def _hears(self) -> bool:
        """Tell whether the kernel reports that one of the files is opened. Some file systems and
        sandboxes report nothing.
        """
        for number, path in self._watched.items():
            with contextlib.suppress(OSError):
                path.open("rb").close()
                return number in self._numbers()
        return not self._watched

    def _read(self) -> None:
        self._opened |= {self._watched[number] for number in self._numbers() & {*self._watched}}

    def _numbers(self) -> set[int]:
        """Return the kernel's numbers of the files that were opened since the last call."""
        numbers: set[int] = set()
        with contextlib.suppress(BlockingIOError):  # there are no more events
            while self._queue >= 0:
                events = os.read(self._queue, _READ_BYTES)
                for number, mask, _, length in _EVENT.iter_unpack(events):
                    self._known = self._known and not length and not mask & _IN_Q_OVERFLOW
                    numbers.add(number)
        return numbers
