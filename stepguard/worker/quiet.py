"""Waits until the process's other threads are at rest.

gloo's threads, for one, let go of a collective's tensor a moment after the caller of ``wait()`` has
gone on, on a loaded machine a long moment. torch tells a CPU profile only of what the profiling
thread frees: a tensor that such a thread lets go of last reads as never freed.
"""

import contextlib
import threading
import time
from pathlib import Path

LIMIT_S = 2.0  # a thread that never rests must not stop the count
LOOK_S = 0.002
LOOKS = 3  # in a row: one thread may be about to wake another
_AT_REST = frozenset("SIZX")  # proc(5): asleep, idle, ended; R waits for a CPU, D for a disk


def wait_for_quiet(limit_s: float = LIMIT_S) -> bool:
    """Whether every other thread slept in LOOKS looks in a row, before ``limit_s`` was over."""
    until, quiet = time.monotonic() + limit_s, 0
    while quiet < LOOKS:
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)  # also lets a thread have the interpreter that waits for it
        quiet = 0 if _busy() else quiet + 1
    return True


def _busy() -> bool:
    """Whether another thread of this process runs, or would if it had a CPU."""
    own = str(threading.get_native_id())
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            # The name stands in brackets, and may have some of its own.
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if task.name != own and state not in _AT_REST:
                return True
    return False
