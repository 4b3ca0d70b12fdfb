"""Waits until the process's other threads are at rest, and holds what they may let go of last.

gloo's threads, for one, let go of a collective's tensor a moment after the caller of ``wait()`` has
gone on, on a loaded machine a long moment. torch tells a CPU profile only of what the profiling
thread frees: a tensor that such a thread lets go of last reads as never freed.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

LIMIT_S = 2.0  # a thread that never rests must not stop the count
LOOK_S = 0.002
LOOKS = 3  # in a row: one thread may be about to wake another
_AT_REST = frozenset("SIZX")  # proc(5): asleep, idle, ended; R waits for a CPU, D for a disk
# What torch.distributed's functions call of a group, whichever way they were imported; some of them
# have other names from torch 2.13 on.
_EXCHANGES = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)


@contextlib.contextmanager
def exchanged_held() -> Iterator[None]:
    """Keep the tensors that are given to collectives, and free them here, at the end.

    Those that C++ exchanges, as DistributedDataParallel does its buckets, are not seen.
    """
    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    held: list[object] = []
    group = dist.ProcessGroup
    plain = {name: vars(group)[name] for name in _EXCHANGES if name in vars(group)}
    for name in plain:
        setattr(group, name, _holding(getattr(group, name), held))
    try:
        yield
    finally:
        for name, method in plain.items():
            setattr(group, name, method)
        held.clear()


def _holding(call: Callable[..., Any], held: list[object]) -> Callable[..., Any]:
    @functools.wraps(call)
    def exchange(*args: object, **kwargs: object) -> Any:
        held.append((args, kwargs))
        return call(*args, **kwargs)

    return exchange


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
