"""Processes that die with their parent, and the processes of a launch. Only for Linux, and only
with the standard library.
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Signals on which a launch's agent (worker/agent.py) ends the launch. The kernel sends SIGUSR1 when
# the process that started the launch dies.
ENDING_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
)

_ENDS = (signal.SIGTERM, signal.SIGHUP)


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> bool:
    """Have the kernel send ``signum`` when the parent dies. Return False if it is gone."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # If the parent died before the call, the kernel sends no signal.
    return os.getppid() == parent_pid


def pids_by_token(token: str) -> list[int]:
    """Return the processes that inherited ``STEPGUARD_TOKEN=token``, without zombies."""
    wanted = f"\0STEPGUARD_TOKEN={token}\0".encode()
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            # The environment of a zombie is empty.
            with open(f"/proc/{name}/environ", "rb", buffering=0) as environment:
                if wanted in b"\0" + environment.readall() + b"\0":
                    pids.append(int(name))
    return pids


def alive(pid: int) -> bool:
    """Tell whether a process runs. A zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name, in parentheses, may itself contain blanks and parentheses.
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def holds_memory(pid: int) -> bool:
    """Tell whether a process runs or is exiting. A process that exits loses its environment first.
    It keeps its files, and with them its memory on a GPU, until its last thread has ended. Its
    first thread may be a zombie meanwhile.
    """
    with contextlib.suppress(OSError):
        return alive(pid) or len(os.listdir(f"/proc/{pid}/task")) > 1
    return False


def kill_by_token(token: str, spare: int = 0) -> list[int]:
    """Kill every process of the launch except ``spare`` (SIGKILL). Return their pids."""
    killed = []
    for pid in pids_by_token(token):
        if pid not in (spare, os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def notice_ends() -> None:
    """Make sure that SIGCHLD is not ignored, as a supervisor may have set it. Otherwise the kernel
    forgets how processes ended, and a git that failed seems to have succeeded.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextlib.contextmanager
def ends_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, as a KeyboardInterrupt, until the end of the block. By
    default they end the process at once: it leaves folders and worktrees behind, and writes no
    document.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Signals that are ignored (nohup) or already handled stay as they are.
    taken = [number for number in _ENDS if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer Ctrl-C, and the signals treated like it, until the end of the block."""
    # Python lets only the main thread set a handler, and runs handlers only there.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    # A signal mask would not work: it belongs to a thread, and threads of the numerical libraries
    # would get the signal in place of the main thread.
    deferred = [
        signal.SIGINT,
        *(number for number in _ENDS if signal.getsignal(number) is _interrupt),
    ]
    before = [signal.signal(each, lambda number, frame: came.append(number)) for each in deferred]
    try:
        yield
    finally:
        for number, handler in zip(deferred, before, strict=True):
            # None stands for a handler that Python did not set and cannot restore.
            signal.signal(number, handler or signal.SIG_DFL)
        if came:
            signal.raise_signal(came[0])
