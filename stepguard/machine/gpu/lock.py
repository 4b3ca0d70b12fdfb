"""One measurement on a GPU at a time: each GPU has a lock that all users of the machine share.

    /tmp/stepguard-<uuid>.lock     locked while a case is measured; names the process
    /tmp/stepguard-<uuid>.queue    locked by the run that is next, so that runs take turns by case

The kernel releases both locks when the process ends, however it ends. The files stay, empty. A
container with a /tmp of its own does not see the files, but its process on the GPU is noticed
(nvml.py). No package of locks queues, names the holder, and safely opens a file that all users
share: so the lock is written here.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path("/tmp")  # not TMPDIR, which may belong to one user
WAIT_LIMIT_S = 900.0  # several times what a case takes
POLL_S = 0.2
NOTE_BYTES = 400


class GpuLocked(Exception):
    """A GPU that is not available. One sentence, with what to do."""


@contextlib.contextmanager
def exclusive(
    uuids: Sequence[str],
    command: str,
    progress: Callable[[str], None],
    folder: Path = FOLDER,
    limit_s: float = WAIT_LIMIT_S,
) -> Iterator[None]:
    """Lock the GPUs during the block, or raise GpuLocked after ``limit_s``."""
    until = time.monotonic() + limit_s

    @contextlib.contextmanager
    def taken(path: Path, uuid: str) -> Iterator[int]:
        """Lock a file of a GPU; yield its descriptor."""
        while (handle := _try(path, uuid)) is None:
            holder = _holder(path.with_suffix(".lock"))
            left = until - time.monotonic()
            if left <= 0:
                raise GpuLocked(
                    f"{uuid}: {holder} measures on it, waited {limit_s:.0f} s; measure again when "
                    "that is over, or choose a GPU with CUDA_VISIBLE_DEVICES"
                )
            # The text stays the same during the wait, since a log has a line for each text.
            progress(f"waiting for the GPU, {limit_s:.0f} s at most: {holder} measures")
            time.sleep(min(POLL_S, left))
        try:
            yield handle
        finally:
            os.close(handle)

    with contextlib.ExitStack() as stack:
        # All runs use one order. Otherwise two runs could each wait for what the other one has.
        for uuid in sorted(uuids):
            path = folder / f"stepguard-{uuid}.lock"
            with taken(path.with_suffix(".queue"), uuid):
                handle = stack.enter_context(taken(path, uuid))
            stack.enter_context(_noted(handle, command))
        yield


def _try(path: Path, uuid: str) -> int | None:
    """Return a descriptor of the locked file; None while another process has the lock."""
    try:
        handle = _opened(path)
    except OSError as error:
        problem = f"{error.strerror or error}; see: ls -l {path}"
        raise GpuLocked(f"{uuid}: cannot be locked: {path}: {problem}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If the file was removed before it was locked, others now open another file.
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except (BlockingIOError, FileNotFoundError):  # another process locked or removed the file
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _opened(path: Path) -> int:
    """Open the file and return its descriptor. If it is missing, make it, readable and writable for
    all users. A link is not followed, since anybody could have put one there. Raises OSError, also
    for anything but a plain file.
    """
    # O_NONBLOCK: otherwise opening a FIFO would wait for its other end.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)  # no O_CREAT: in /tmp the kernel refuses it for others' files
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask is
            return handle
        handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a plain file")
    return handle


@contextlib.contextmanager
def _noted(handle: int, command: str) -> Iterator[None]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    note = f"process {os.getpid()} since {since} ({command})"
    os.ftruncate(handle, 0)
    os.pwrite(handle, note.encode(errors="replace")[:NOTE_BYTES], 0)
    try:
        yield
    finally:
        os.ftruncate(handle, 0)


def _holder(path: Path) -> str:
    """Return what the holder wrote, as one line of plain characters: anybody can write there."""
    try:
        handle = _opened(path)
    except OSError:
        return "another run"
    try:
        text = os.pread(handle, NOTE_BYTES, 0).decode(errors="replace")
    finally:
        os.close(handle)
    return "".join(c if c.isprintable() else "?" for c in text) or "another run"
