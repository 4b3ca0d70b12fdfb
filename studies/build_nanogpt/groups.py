"""Groups of ranks that are alive together and alternate on the same devices.

Every rank holds a connection to this process and waits for orders there, on the host; its memory
stays where it is. An order is a number of steps; the answer is their wall time.
"""

import json
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.common import ranks
from studies.common.series import slowest

SOCKET_ENV = "STEPGUARD_ORDERS"  # where a rank finds this process: "path group"
HELLO_S = 150.0  # importing, building, and joining the other ranks
LEAVE_S = 8.0  # for ranks that were told to leave
RANK_LINES, REPORT_LINES = 60, 14  # of a log, when it is shown


class GroupError(Exception):
    """A group that did not do as told; with the end of its log."""


@dataclass(frozen=True)
class Block:
    """One block of steps, as a group reports it."""

    step_ms: float  # wall time over steps, slowest rank
    rank_ms: tuple[float, ...]
    tokens_per_step: int  # of all ranks
    reserved_bytes: int  # most that the allocator of any rank ever held
    wall_s: float  # as this process saw it, lead-in included


class Group:
    """A running torchrun group; close() ends it. All that it prints goes to ``folder``/log."""

    def __init__(
        self,
        name: str,
        program: Sequence[str],
        count: int,
        folder: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.count = name, count
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log.txt"
        path = folder / "orders"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen(count)
        self._lines: list[socket.socket] = []
        with self.log.open("wb") as log:
            self._process: subprocess.Popen[bytes] = ranks.start(
                program,
                count,
                env={**(env or {}), SOCKET_ENV: str(path)},
                cwd=folder,
                output=log.fileno(),
            )

    def hello(self, limit_s: float = HELLO_S) -> None:
        """Wait until every rank stands ready."""
        until = time.monotonic() + limit_s
        while len(self._lines) < self.count:
            self._await([self._server], until, "to stand ready")
            connection, _ = self._server.accept()
            self._lines.append(connection)

    def block(self, steps: int, lead_in: int, limit_s: float) -> Block:
        """Have the group run ``lead_in`` untimed steps and ``steps`` timed ones."""
        began = time.monotonic()
        for line in self._lines:
            try:
                _send(line, {"steps": steps, "lead_in": lead_in})
            except OSError:
                raise self._failed("a rank hung up") from None
        answers = []
        for line in self._lines:
            self._await([line], began + limit_s, f"for {lead_in} + {steps} steps")
            with line.makefile("r", encoding="utf-8") as reader:  # an order has one answer
                text = reader.readline()
            if not text:
                raise self._failed("a rank hung up")
            answers.append(json.loads(text))
        if any(answer["steps"] != steps for answer in answers):
            raise self._failed(f"{steps} steps were ordered; the answers: {answers}")
        tokens = {int(answer["tokens_per_step"]) for answer in answers}
        if len(tokens) != 1:
            raise self._failed(f"ranks disagree on the tokens of a step: {sorted(tokens)}")
        rank_ms = tuple(answer["wall_ms"] / steps for answer in answers)
        return Block(
            step_ms=slowest(rank_ms),
            rank_ms=rank_ms,
            tokens_per_step=tokens.pop(),
            reserved_bytes=max(answer["reserved_bytes"] for answer in answers),
            wall_s=time.monotonic() - began,
        )

    def _await(self, sources: list[Any], until: float, what: str) -> None:
        while not select.select(sources, [], [], 0.2)[0]:
            if self._process.poll() is not None:
                raise self._failed(f"torchrun ended with status {self._process.returncode}")
            if time.monotonic() > until:
                raise self._failed(f"waited too long {what}")

    def _failed(self, why: str) -> GroupError:
        if self._process.poll() is None:
            time.sleep(1.0)  # for what a dying rank still has to say
        log = self.log.read_text(encoding="utf-8", errors="replace")
        return GroupError(f"{self.name}: {why}; of its log:\n{what_matters(log)}")

    def close(self) -> None:
        """Tell the ranks to leave, then make sure; their memory is free when this returns."""
        for line in self._lines:
            try:
                _send(line, {"steps": 0, "lead_in": 0})
            except OSError:  # it has left already
                continue
        until = time.monotonic() + LEAVE_S
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        ranks.end(self._process)
        for line in self._lines:
            line.close()
        self._server.close()


def what_matters(log: str) -> str:
    """The last lines of the ranks, and the last ones of torchrun, which reports at length."""
    lines = log.splitlines()
    reports = (at for at, line in enumerate(lines) if "torch/distributed/elastic" in line)
    first = next(reports, len(lines))
    said, report = lines[:first][-RANK_LINES:], lines[first:][-REPORT_LINES:]
    return "\n".join([*said, *(["..."] if report else []), *report])


def _send(line: socket.socket, message: dict[str, Any]) -> None:
    line.sendall(json.dumps(message).encode() + b"\n")
