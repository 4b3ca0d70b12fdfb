"""Send commands to rank 0 and receive answers, always with a deadline.

Each line is one JSON document. The socket is in Linux's abstract namespace: it has no file, so a
killed process leaves none. A launch identifies itself by its token, and only this user may connect.
While the host waits, it polls the launch's processes, the machine's telemetry and the progress.

The ranks say when a block begins, and the host measures the time from then to their answer: nothing
in the workload's process can change that clock.
"""

import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from time import perf_counter
from typing import Any

Message = dict[str, Any]
Poll = Callable[[], None]
POLL_S = 0.05


class LostWorker(Exception):
    """The other side has closed the socket."""


class _ClosedPeer(LostWorker):
    """A read or a write found the socket closed."""


class Overdue(Exception):
    """A deadline has passed."""


class Control:
    """A listening socket for one launch; after accept(), the conversation with its rank 0."""

    def __init__(self, token: str) -> None:
        self.name = f"stepguard-{token}"  # worker/rank_channel.py makes the same name
        self._token = token
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.name)
        self._listener.listen(4)
        self._peer: socket.socket | None = None
        self._buffer = b""

    def accept(self, deadline_s: float, poll: Poll) -> Message:
        """Wait for rank 0's hello and return it. Raises Overdue after ``deadline_s`` seconds."""
        until = time.monotonic() + deadline_s
        while True:
            self._wait(self._listener, until, poll)
            peer, _ = self._listener.accept()
            # A name in the abstract namespace has no permissions: any user can connect.
            if _peer_uid(peer) != os.getuid():
                peer.close()
                continue
            self._peer = peer
            # Another process of this user may send something that is not JSON, or nothing.
            with contextlib.suppress(ValueError, TypeError, _ClosedPeer):
                hello = self._receive(until, poll)
                if hello.get("hello") == self._token:
                    return hello
            peer.close()
            self._buffer = b""

    def somebody_waits(self) -> bool:
        """Tell whether accept() would find a connection at once."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def request(
        self,
        command: str,
        arguments: Message,
        deadline_s: float,
        poll: Poll,
        on_progress: Callable[[str], None],
    ) -> list[Message]:
        """Send a command and return all ranks' answers, in rank order. If the ranks said that they
        began, each answer has ``outside_ms``: how many ms the host measured from then on.

        Raises Overdue after ``deadline_s`` seconds, and LostWorker if rank 0 is gone.
        """
        assert self._peer is not None
        until = time.monotonic() + deadline_s
        try:
            self._peer.sendall(json.dumps({"command": command} | arguments).encode() + b"\n")
        except OSError as error:
            raise LostWorker(str(error)) from None
        began = None
        while True:
            message = self._receive(until, poll)
            if "begin" in message:
                began = perf_counter()
            elif "progress" in message:
                on_progress(message["progress"])
            # A late answer to an earlier command is skipped.
            elif message.get("reply") == command:
                outside = {"outside_ms": (perf_counter() - began) * 1e3} if began else {}
                return [rank | outside for rank in message["ranks"]]

    def close(self) -> None:
        """Close both sockets. For a rank 0 that waits this means the command ``exit``."""
        if self._peer is not None:
            self._peer.close()
        self._listener.close()

    def _receive(self, until: float, poll: Poll) -> Message:
        assert self._peer is not None
        while b"\n" not in self._buffer:
            self._wait(self._peer, until, poll)
            try:
                chunk = self._peer.recv(1 << 20)
            except OSError as error:
                raise _ClosedPeer(str(error)) from None
            if not chunk:
                raise _ClosedPeer("the socket was closed")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    @staticmethod
    def _wait(readable: socket.socket, until: float, poll: Poll) -> None:
        while not select.select([readable], [], [], POLL_S)[0]:
            poll()
            if time.monotonic() > until:
                raise Overdue


def _peer_uid(peer: socket.socket) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
