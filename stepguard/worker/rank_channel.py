"""Connect the ranks of a launch to the host, and to each other. On one node ranks meet through a
file, without an open port. Each group has its own keys in the one store, so a script can make its
process group beside the channel.

The host's end is launch/worker_group.py. Rank 0 has the socket, and passes commands to the other
ranks. Ranks have no standard input, and run in sessions of their
own. So commands come over a Unix socket in the abstract namespace, which has no file. Rank 0
broadcasts each command on a gloo group, where waiting costs nothing: a waiting NCCL call would spin
on the GPU.
"""

import functools
import itertools
import json
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers, rendezvous

Meeting = tuple[dist.Store, int, int]  # the store, this rank, the number of ranks


@functools.cache
def _store() -> dist.Store:
    if path := os.environ.get("STEPGUARD_STORE"):  # of a launch on one node; see launch/torchrun.py
        return dist.FileStore(path, int(os.environ["WORLD_SIZE"]))
    store, _, _ = next(rendezvous("env://"))
    return store


def meet(name: str) -> Meeting:
    """Return the store, this rank and the number of ranks. A name is for one group only."""
    ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return dist.PrefixStore(name, _store()), *ranks


def join_process_group(backend: str) -> None:
    """Join the other ranks, if there are any. If a case with several ranks runs with one, this rank
    joins a group of one: its workload may reduce without asking how many ranks there are.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    store, rank, ranks = meet("group")
    # No device_id: that would open NCCL at once, on a card that another launch is measured on.
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)


def let_script_join() -> None:
    """Have a script that calls init_process_group() meet in the launch's own store."""
    _store()  # opened first, since the store of several nodes needs torch's own handler
    numbers = itertools.count()  # a group that was destroyed leaves its keys

    def by_launch(url: str, *others: Any, **more: Any) -> Iterator[Meeting]:
        yield meet(f"script-{next(numbers)}")

    _rendezvous_handlers["env"] = by_launch


Message = dict[str, Any]
_EXIT = '{"command": "exit"}'
_IDLE_LIMIT = timedelta(hours=6)  # longer than the real limits, which the host enforces


class Channel:
    """Commands in, and one reply out for all ranks, in a group beside torch's default one."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self._group: Any = None
        if self.world_size > 1:
            self._group = dist.ProcessGroupGloo(*meet("channel"), _IDLE_LIMIT)
        if self.rank == 0:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(f"\0stepguard-{os.environ['STEPGUARD_TOKEN']}")
            self._lines = self._socket.makefile("r", encoding="utf-8")
        # The gather waits for all ranks, so a hello means that all of them have imported.
        pids = self.gather(os.getpid())
        self.reply({"hello": os.environ["STEPGUARD_TOKEN"], "pids": pids})

    def receive(self) -> Message:
        """Return the next command, on every rank; ``exit`` once the socket is closed."""
        line = (self._lines.readline() or _EXIT) if self.rank == 0 else ""
        if self._group is not None:
            line = self._from_first(line.encode()).decode()
        message: Message = json.loads(line)
        return message

    def _from_first(self, data: bytes) -> bytes:
        how = dist.BroadcastOptions()
        how.rootRank = 0
        length = torch.tensor([len(data)])
        self._group.broadcast([length], how).wait()
        box = _bytes(data, int(length))
        self._group.broadcast([box], how).wait()
        return bytes(box.numpy())

    def gather(self, value: Any) -> list[Any]:
        """Return all ranks' values on rank 0, in rank order; an empty list on the others."""
        if self._group is None:
            return [value]
        data = json.dumps(value).encode()
        lengths = self._numbers(len(data))
        most = max(lengths)
        first = self.rank == 0
        boxes = [torch.zeros(most, dtype=torch.uint8) for _ in lengths]
        how = dist.GatherOptions()
        how.rootRank = 0
        self._group.gather([boxes] if first else [], [_bytes(data, most)], how).wait()
        both = zip(boxes, lengths, strict=True)
        return [json.loads(bytes(box[:length].numpy())) for box, length in both] if first else []

    def any(self, value: bool) -> bool:
        """Return, on all ranks, whether ``value`` is true on any."""
        return any(self._numbers(int(value))) if self._group is not None else value

    def _numbers(self, value: int) -> list[int]:
        numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        self._group.allgather([numbers], [torch.tensor([value])]).wait()
        return [int(number) for number in numbers]

    def barrier(self) -> None:
        """Line the ranks up before a block, without touching the GPUs."""
        if self._group is not None:
            self._group.barrier().wait()

    def begin(self) -> None:
        """Tell the host that the command's work begins: there its own clock starts."""
        self.reply({"begin": True})

    def reply(self, message: Message) -> None:
        """Answer the host; only rank 0 does."""
        if self.rank == 0:
            self._socket.sendall(json.dumps(message).encode() + b"\n")


def _bytes(data: bytes, length: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(data.ljust(length, b"\0")), dtype=torch.uint8)
