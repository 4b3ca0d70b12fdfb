"""The compile caches of a checkout, which keep only what was written to its end.

Compilers write many files in place. A launch that is killed meanwhile leaves a part of a file, or a
lock, and each later launch takes it for the whole. So a launch has a mark in the cache while its
processes may write. All that is as new as the mark of a launch that has ended is removed. Another
run would lose files that it is about to load, so only one run at a time uses a cache.

.stepguard/cache/inductor/, triton/, extensions/, ...    what compilers wrote
.stepguard/cache/unfinished/<token>                      a launch's mark
.stepguard/cache/set-aside/                              what failed to load
.stepguard/cache/lock                                    locked by the run that uses the cache
.stepguard/cache-2/                                      of a second run at the same time
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

# Folders of compiled extensions, one for each tree. No later run uses other revisions' trees.
KEPT_EXTENSIONS = 4
_MARKS, _ASIDE, _LOCK = "unfinished", "set-aside", "lock"


def user_cache() -> Path:
    """Return the folder for files that all checkouts of a user share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "stepguard")


def cache_of(folder: Path) -> Path:
    """Return a checkout's compile caches: in ``folder``, if compilers accept its path."""
    inside = folder.absolute() / "cache"
    # The path is not quoted in the compiler's command line: a blank, for example, would split it.
    if re.fullmatch(r"[\w./+@,-]+", str(inside), re.ASCII):
        return inside
    return user_cache() / hashlib.sha256(os.fsencode(inside)).hexdigest()[:16]


class Mark:
    """The mark of a launch whose processes may write into a compile cache."""

    def __init__(self, cache: Path, token: str) -> None:
        self._cache, self._path = cache, cache / _MARKS / token

    def begin(self) -> None:
        """Make the mark. One that is there stays as old as it is."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.open("x").close()

    def end(self) -> None:
        """Remove the mark: all that was written is whole."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Have the mark in this block. It stays if the block raises."""
        self.begin()
        yield
        self.end()

    def clean(self) -> None:
        """Remove what is as new as the mark, if it is there. The launch has ended."""
        _remove_unfinished(self._cache, [self._path])


def _remove_unfinished(cache: Path, marks: Iterable[Path]) -> None:
    """Remove what is as new as the oldest of these marks, then the marks."""
    with contextlib.suppress(OSError):  # a mark may be missing
        marks = [mark for mark in marks if mark.exists()]
        # The file system's clock made the marks and the files. A rename, too, sets st_ctime.
        begin_ns = min((mark.stat().st_mtime_ns for mark in marks), default=None)
        if begin_ns is None:
            return
        for part in _parts(cache):
            for folder, _, names in os.walk(part):
                for path in (Path(folder, name) for name in names):
                    if path.lstat().st_ctime_ns >= begin_ns:
                        path.unlink(missing_ok=True)
        for mark in marks:  # last: this process, too, may be killed
            mark.unlink()


def _parts(cache: Path) -> list[Path]:
    own = (_MARKS, _ASIDE)
    return [path for path in cache.iterdir() if path.is_dir() and path.name not in own]


class CompileCache:
    """The compile cache of one run: the first, from ``folder`` on, that is free."""

    def __init__(self, checkouts: Path) -> None:
        self.folder, self._lock = checkouts, -1
        with contextlib.suppress(OSError):  # it cannot be written, or its file system cannot lock
            self.folder, self._lock = _first_free(checkouts)
            _remove_unfinished(self.folder, (self.folder / _MARKS).glob("*"))
            extensions = sorted(self.folder.glob("extensions/*"), key=_used_at)
            for old in extensions[:-KEPT_EXTENSIONS]:
                shutil.rmtree(old, ignore_errors=True)

    def older_file(self, text: str, ns: int) -> str:
        """Return the last file in a text, where a traceback has its message, that the cache has had
        since before ``ns``, in nanoseconds since 1970; "" if there is none, or if other runs may
        use the cache, too: no run may empty that.
        """
        if self._lock < 0:
            return ""
        names = re.findall(re.escape(f"{self.folder}/") + r"[\w./+@,-]+", text, re.ASCII)
        for name in reversed(names):
            with contextlib.suppress(OSError):
                if os.stat(name).st_ctime_ns < ns:
                    return str(name)
        return ""

    def set_aside(self) -> Path:
        """Empty the cache. Return the folder that has its content, in place of an earlier one."""
        aside = self.folder / _ASIDE
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for part in _parts(self.folder):
            part.rename(aside / part.name)
        return aside

    def put_back(self) -> None:
        """Undo set_aside(), and forget what was compiled since."""
        for part in _parts(self.folder):
            shutil.rmtree(part)
        for part in (self.folder / _ASIDE).iterdir():
            part.rename(self.folder / part.name)

    def close(self) -> None:
        """Let other runs use the cache."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _first_free(checkouts: Path) -> tuple[Path, int]:
    """Return the first cache that no other run uses, and the descriptor that locks it."""
    number = 1
    while True:
        # Checkouts may share a cache by a link.
        folder = checkouts if number == 1 else Path(f"{checkouts.resolve()}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, lock
        except BlockingIOError:
            number += 1
            os.close(lock)
        except OSError:
            os.close(lock)
            raise


def _used_at(extensions: Path) -> float:
    """Return when a tree's extensions were last used, in seconds since 1970; 0 if unknown.
    torch makes a lock file in an extension's folder at each use, which changes the folder's time.
    """
    with contextlib.suppress(OSError):  # it may be removed meanwhile
        return max(path.stat().st_mtime for path in (extensions, *extensions.iterdir()))
    return 0.0
