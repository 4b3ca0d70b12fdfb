"""The layout of a baseline file, as frozen types. storage/baseline_files.py reads and writes it.

A file holds cases. A case holds epochs, oldest first. An epoch holds the recordings of one level.
An accepted change of level opens a new epoch. Runs are compared only with the last epoch.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from stepguard.core.margins import Margins, margins_of
from stepguard.core.metrics import METRICS
from stepguard.core.recording import Recording, Text

SCHEMA = 1
KEPT_RECORDINGS = 20  # in an epoch: the first of each software, and the newest ones


class Epoch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recordings at one level, oldest first."""

    reason: Text
    recordings: Annotated[list[Recording], msgspec.Meta(min_length=1)]


class Entry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A case's baseline: the parameters that it was measured with, and its epochs."""

    case: dict[str, Any]
    epochs: Annotated[list[Epoch], msgspec.Meta(min_length=1)]
    extended: bool = False  # not in the core suite: a run may leave it out
    gates: list[str] = []  # empty if the case gates all that is recorded
    margins_pct: list[float] = []  # the case's own margins; empty if they are its device's

    @property
    def level(self) -> Epoch:
        """Return the last epoch: the only one with which runs are compared."""
        return self.epochs[-1]

    @property
    def newest(self) -> Recording:
        """Return the newest recording of the level."""
        return self.level.recordings[-1]

    @property
    def required_gates(self) -> frozenset[str]:
        """Return the metrics that the case must gate to guard as much as when it was recorded."""
        newest = self.newest
        recorded = {*newest.times_ms, *newest.counters, *newest.differences_pct, "tokens_per_step"}
        return frozenset(self.gates or recorded)

    @property
    def margins(self) -> Margins:
        """Return the widest margins with which the case guards as much as when recorded."""
        return margins_of(self.margins_pct, self.case["device"])

    @property
    def digest(self) -> str:
        """Return a hash of the whole entry: any other figure, part or field changes it."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def lacking(self, gates: Iterable[str], device: str, ranks: int) -> list[str]:
        """Return the metrics that a case with these gates must gate, too, on such a device."""
        missing = self.required_gates - set(gates)
        return [n for n, metric in METRICS.items() if n in missing and metric.exists(device, ranks)]


class BaselineFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file: the cases of one kind of machine."""

    schema: int
    machine: Text  # "NVIDIA H200", or "CPU"
    cases: dict[str, Entry]
