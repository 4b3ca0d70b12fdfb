"""A launch: a new worker group under torchrun, with a time limit. It never outlives this process.

All processes of a launch have its token in their environment. close() kills the processes with the
token, and returns only when none is left. If this process dies, the agent does the same
(worker/agent.py).

Rank 0 gets commands and answers, each a line of JSON, always with a deadline. The socket is in
Linux's abstract namespace: it has no file, so a killed process leaves none. A launch identifies
itself by its token, and only this user may connect. While the host waits, it polls the launch's
processes, the machine's telemetry and the progress. The ranks say when a block begins, and the host
measures the time from then to their answer: nothing in the workload's process can change that
clock.
"""

import contextlib
import json
import os
import secrets
import select
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from stepguard.core.replies import REPLIES
from stepguard.launch import nodes, torchrun
from stepguard.launch.diagnosis import LaunchFailed, Scene, lost_worker, no_answer
from stepguard.launch.torchrun import GONE_LIMIT_S, LaunchSpec
from stepguard.machine.lifeline import alive, interrupts_deferred
from stepguard.storage.compile_cache import Mark
from stepguard.worker.agent import STANDBY

Message = dict[str, Any]
Poll = Callable[[], None]
POLL_S = 0.05


class LostWorker(Exception):
    """Rank 0 has closed the socket, or a process has ended."""


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
            with contextlib.suppress(ValueError, TypeError):
                hello = self._receive(until, poll)
                if hello and hello.get("hello") == self._token:
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
        """Send a command and return all ranks' answers, with ``outside_ms``: how many ms the host
        measured since they began. Raises Overdue after ``deadline_s``, LostWorker without rank 0.
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
            if message is None:
                raise LostWorker("the socket was closed")
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

    def _receive(self, until: float, poll: Poll) -> Message | None:
        """Return the next message; None if the other side has closed the socket."""
        assert self._peer is not None
        while b"\n" not in self._buffer:
            self._wait(self._peer, until, poll)
            try:
                chunk = self._peer.recv(1 << 20)
            except OSError:  # it was reset
                return None
            if not chunk:
                return None
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


HELLO_LIMIT_S = 120.0


class WorkerGroup:
    """A running launch, in ``environment`` and what a launch sets. It leaves nothing behind."""

    def __init__(self, spec: LaunchSpec, environment: Mapping[str, str] = os.environ) -> None:
        self.spec = spec
        self.token = secrets.token_hex(16)
        self.began = time.monotonic()
        self._asked_s = 0.0  # what commands took; only this counts against the time limit
        self.pids: dict[int, int] = {}  # by rank
        self._closed = False
        self._poll: Poll = lambda: None
        # An older launch's errors do not belong to this one.
        shutil.rmtree(spec.folder, ignore_errors=True)
        spec.folder.mkdir(parents=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="stepguard-"))
        self._control = Control(self.token)
        self._mark = Mark(spec.cache, self.token)
        self._mark.begin()
        try:
            start = nodes.start if spec.launcher else torchrun.start
            self._agent = start(spec, self.token, self._scratch, environment=environment)
        except BaseException:
            self._control.close()
            self._mark.end()
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def __enter__(self) -> "WorkerGroup":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def imported(self) -> bool:
        """Tell whether a standby's agent has imported. Raises LaunchFailed if it cannot."""
        imported = (self._scratch / STANDBY).exists()
        self._still_starts(imported)
        if imported and not self.released:
            self._mark.end()
        return imported

    @property
    def released(self) -> bool:
        """Tell whether the ranks were started."""
        return self._agent.stdin is None or self._agent.stdin.closed

    def release(self) -> None:
        """Let a standby start its ranks. Another call does nothing."""
        if self._agent.stdin and not self.released:
            self._mark.begin()
            # The agent waited on purpose until now. That must not count against HELLO_LIMIT_S.
            self.began = time.monotonic()
            with contextlib.suppress(OSError):  # it has ended, which hello() will notice
                self._agent.stdin.write(b"\n")
                self._agent.stdin.close()

    def hello(self, poll: Poll = lambda: None) -> None:
        """Wait until the ranks have imported. Raises LaunchFailed."""
        self.release()
        if not self.pids:
            self._accept(poll)
        self.began = time.monotonic()

    def _accept(self, poll: Poll) -> None:
        with self._faults("start", poll):
            pids = self._control.accept(HELLO_LIMIT_S, self._watch)["pids"]
        self.pids = dict(enumerate(pids))
        self._mark.end()

    def ready(self) -> bool:
        """Tell, without waiting, whether the ranks have imported. Raises LaunchFailed."""
        if not self.pids and self._control.somebody_waits():
            self._accept(lambda: None)
        else:
            self._still_starts(bool(self.pids))
        return bool(self.pids)

    def _still_starts(self, imported: bool) -> None:
        """Raise LaunchFailed if the import takes longer than HELLO_LIMIT_S, or a process ended."""
        with self._faults("start", lambda: None):
            if not imported and time.monotonic() - self.began > HELLO_LIMIT_S:
                raise Overdue
            self._watch()

    def request(
        self,
        command: str,
        *,
        limit_s: float,
        poll: Poll,
        progress: Callable[[str], None],
        **args: Any,
    ) -> list[Any]:
        """Return all ranks' answers to a command. Raises LaunchFailed if a process ends, or if none
        comes in time.
        """
        left_s, began = self.spec.time_limit_s - self._asked_s, time.monotonic()
        with self._faults(command, poll), self._mark.during():
            limit_s = max(1.0, min(limit_s, left_s))
            ranks: list[Message] = self._control.request(
                command, args, limit_s, self._watch, progress
            )
            self._asked_s += time.monotonic() - began
            return [msgspec.convert(rank, REPLIES[command]) for rank in ranks]

    @contextlib.contextmanager
    def _faults(self, command: str, poll: Poll) -> Iterator[None]:
        self._poll = poll
        try:
            yield
        except (LostWorker, Overdue) as error:
            scene = Scene(
                spec=self.spec,
                token=self.token,
                pids=self.pids,
                agent=self._agent,
                during=f"{self.spec.label}, {command}",
                waited_s=time.monotonic() - self.began,
            )
            fault = no_answer(scene) if isinstance(error, Overdue) else lost_worker(scene)
            raise LaunchFailed(fault) from None

    def _watch(self) -> None:
        """Raise LostWorker if a process has ended, even a rank with status 0."""
        self._poll()
        if self._agent.poll() is not None:
            raise LostWorker("the launcher ended")
        for pid in self.spec.here(self.pids).values():
            if not alive(pid):
                raise LostWorker(f"process {pid} ended")

    def let_exit(self) -> None:
        """Let the ranks exit by themselves, without waiting for it."""
        self._mark.begin()  # they keep precompiled headers
        self._control.close()

    def leave(self) -> None:
        """Let the ranks exit by themselves, for GONE_LIMIT_S at most. Then close the launch."""
        self.let_exit()
        until = time.monotonic() + GONE_LIMIT_S
        while (ending := self._ends()) and time.monotonic() < until:
            time.sleep(0.02)
        if not ending:
            self._mark.end()
        self.close()

    def _ends(self) -> bool:
        """Tell whether the ranks here, or a launcher, are still ending by themselves."""
        running = bool(self.spec.launcher) and self._agent.poll() is None
        return running or any(map(alive, self.spec.here(self.pids).values()))

    def close(self) -> None:
        """Kill what is left, and remove the scratch folder. A second Ctrl-C has to wait."""
        if self._closed:
            return
        with interrupts_deferred():
            standby = not self.released and (self._scratch / STANDBY).exists()
            # What has imported and was never asked for anything has written all to its end.
            if not self.pids and (standby or self._control.somebody_waits()):
                self._mark.end()
            self._control.close()
            # The launcher is ended first: only it can end the parts on other nodes. A token finds
            # only processes of this host.
            if self.spec.launcher:
                nodes.end_launcher(nodes.launcher_token(self.token))
            here = self.spec.here(self.pids).values()
            torchrun.end(self._agent, self.token, self._scratch, here)
            self._mark.clean()
            self._closed = True
