"""Connects the ranks to the host: rank 0 has the socket and passes commands to the other ranks.

The host's end is launch/host_channel.py.

Ranks have no standard input and live in sessions of their own, so commands come over a Unix socket
in the abstract namespace (no file to leave behind). Rank 0 broadcasts each on a gloo
group, where waiting costs nothing: a waiting NCCL call would spin on the GPU.
"""

import json
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

Message = dict[str, Any]
_IDLE_LIMIT = timedelta(hours=6)  # the host enforces the real limits; this only must not be shorter


class Channel:
    """Commands in, and one reply out for all ranks together."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self._group: dist.ProcessGroup | None = None
        if self.world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=_IDLE_LIMIT)
        if self.rank == 0:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(f"\0stepguard-{os.environ['STEPGUARD_TOKEN']}")
            self._lines = self._socket.makefile("r", encoding="utf-8")
        # The gather waits for every rank, so a hello says that all of them have imported.
        pids = self.gather(os.getpid())
        self.reply({"hello": os.environ["STEPGUARD_TOKEN"], "pids": pids})

    def receive(self) -> Message:
        """Return the next command, on every rank. A closed socket reads as the command ``exit``."""
        box: list[Message] = [{}]
        if self.rank == 0:
            line = self._lines.readline()
            box[0] = json.loads(line) if line else {"command": "exit"}
        if self._group is not None:
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order, on rank 0; an empty list on the others."""
        if self._group is None:
            return [value]
        gathered: list[Any] = [None] * self.world_size if self.rank == 0 else []
        dist.gather_object(value, gathered or None, dst=0, group=self._group)
        return gathered

    def any(self, value: bool) -> bool:
        """Return, on every rank alike, whether ``value`` is true on any."""
        if self._group is None:
            return value
        values = [False] * self.world_size
        dist.all_gather_object(values, value, group=self._group)
        return any(values)

    def barrier(self) -> None:
        """Line the ranks up before a block, without touching the GPUs."""
        if self._group is not None:
            dist.barrier(self._group)

    def begin(self) -> None:
        """Tell the host that what it asked for begins now: its own clock runs from here on."""
        self.reply({"begin": True})

    def reply(self, message: Message) -> None:
        """Answer the host; only rank 0 does."""
        if self.rank == 0:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
