"""The rank's side of groups.py: wait for an order, run steps, report their time."""

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from studies.build_nanogpt.groups import SOCKET_ENV


class Leave(Exception):
    """The order to go home."""


class Line:
    """This rank's connection."""

    def __init__(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(os.environ[SOCKET_ENV])
        self._file = connection.makefile("rw", encoding="utf-8", newline="\n")

    def order(self) -> tuple[int, int]:
        """The next order, as (lead-in, steps); Leave when there will be none."""
        text = self._file.readline()
        found = json.loads(text) if text else {"steps": 0}
        if not found["steps"]:
            raise Leave
        return int(found["lead_in"]), int(found["steps"])

    def answer(self, steps: int, wall_ms: float, tokens_per_step: int) -> None:
        """Send the wall time of the order's timed steps, all together."""
        said = {"steps": steps, "wall_ms": wall_ms, "tokens_per_step": tokens_per_step}
        said["reserved_bytes"] = reserved_bytes()
        self._file.write(json.dumps(said) + "\n")
        self._file.flush()


class Borders:
    """Orders for a loop that is not ours: ``reached()`` is called where a step begins.

    The loop has waited for its device there. Time runs from the border after the lead-in to the
    border after the last step, so whatever the loop does between its steps is in it.

    Args:
        line: where orders come from.
        most: so many steps at the most; RuntimeError beyond, as they would not be alike.
        now_ns: a clock, in ns.
    """

    def __init__(
        self, line: Any, most: int, now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._line, self._most, self._now_ns = line, most, now_ns
        self._lead_in = self._steps = self._done = 0
        self._began_ns = 0
        self.total = 0

    def reached(self, tokens_per_step: int) -> None:
        """A border: answer if the order is done, and wait for the next one. May raise Leave."""
        now_ns = self._now_ns()
        if self._steps and self._done == self._lead_in + self._steps:
            self._line.answer(self._steps, (now_ns - self._began_ns) / 1e6, tokens_per_step)
            self._steps = 0
        if not self._steps:
            self._lead_in, self._steps = self._line.order()
            self._done = 0
            now_ns = self._now_ns()
        if self._done == self._lead_in:
            self._began_ns = now_ns
        self._done += 1
        self.total += 1
        if self.total > self._most:
            raise RuntimeError(
                f"{self._most} steps are the most: beyond, the loop validates or loads a shard in "
                "a step's time; ask for fewer or shorter pairs"
            )


def reserved_bytes() -> int:
    """The most that torch's allocator has held on this rank's GPU; 0 without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.max_memory_reserved())
