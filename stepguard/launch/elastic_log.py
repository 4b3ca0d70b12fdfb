"""What torchrun's log tells of how its ranks ended.

Torch elastic logs the status of every rank that ended with another one than 0, names the ranks that
it then ends itself, its victims, and at last which failure it saw first. Ends of victims are logged
like others, and of a rank that ended with status 0 nothing is.
"""

import re
import signal
from collections.abc import Collection
from dataclasses import dataclass

_STATUS = re.compile(r"exitcode *: (-?\d+)\)?[^\n]*\(pid: (\d+)\)")
_CLOSED = re.compile(r"Sending process (\d+) closing signal")
_FOLLOWING = (signal.SIGABRT, signal.SIGTERM)  # NCCL aborts, torchrun and others terminate
_ROOT = re.compile(r"Root Cause.*?\(pid: (\d+)\)", re.DOTALL)


@dataclass(frozen=True)
class ElasticLog:
    """By process id: statuses, negative for signals; victims; and whose failure was seen first."""

    statuses: dict[int, int]
    victims: frozenset[int]
    root: int | None = None  # None: the report was not written yet

    @classmethod
    def read(cls, text: str) -> "ElasticLog":
        """From torchrun's stderr."""
        root = _ROOT.search(text)
        return cls(
            {int(pid): int(status) for status, pid in _STATUS.findall(text)},
            frozenset(int(pid) for pid in _CLOSED.findall(text)),
            int(root[1]) if root else None,
        )

    def killed(self, pid: int) -> bool:
        """Whether a signal ended it that no other rank's end brings about."""
        status = self.statuses.get(pid, 0)
        return status < 0 and -status not in _FOLLOWING

    def first(self, pids: Collection[int]) -> int:
        """Of processes that ended by no doing of torchrun's the one that the others follow from.

        One that was killed; else that of the report, whose times are whole seconds; else one with a
        status.
        """
        return min(
            pids,
            key=lambda pid: (
                not self.killed(pid),
                pid != self.root,
                pid not in self.statuses,
                self.statuses.get(pid),
            ),
        )
