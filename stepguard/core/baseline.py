"""The layout of a baseline file, as frozen types; storage/baseline_files.py reads and writes it.

A file holds cases; a case holds epochs, oldest first; an epoch holds the recordings of one level.
An accepted change of level opens an epoch, and only the last one is compared with.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from stepguard.core.margins import Margins, margins_of
from stepguard.core.metrics import METRICS
from stepguard.core.recording import Recording, Text

SCHEMA = 1
KEPT_RECORDINGS = 20  # of an epoch: the first under each software, and the newest


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
    extended: bool = False  # beyond the core suite: a run may leave it out
    gates: list[str] = []  # where they are fewer than what is recorded; else empty
    margins_pct: list[float] = []  # of the case itself, where not its device's; else empty

    @property
    def level(self) -> Epoch:
        """Return the last epoch, the only one that is compared with."""
        return self.epochs[-1]

    @property
    def newest(self) -> Recording:
        """Return the newest recording of the level."""
        return self.level.recordings[-1]

    @property
    def required_gates(self) -> frozenset[str]:
        """Return the metrics that the case has to gate, so that it guards what it did."""
        newest = self.newest
        recorded = {*newest.times_ms, *newest.counters, *newest.differences_pct, "tokens_per_step"}
        return frozenset(self.gates or recorded)

    @property
    def margins(self) -> Margins:
        """Return the margins that the case may have at most, so that it guards what it did."""
        return margins_of(self.margins_pct, self.case["device"])

    @property
    def digest(self) -> str:
        """Return what tells it from an entry with any other figure, part or field."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def lacking(self, gates: Iterable[str], device: str, ranks: int) -> list[str]:
        """Return the metrics that a case with these gates has to gate, too, on that device."""
        missing = self.required_gates - set(gates)
        return [n for n, metric in METRICS.items() if n in missing and metric.exists(device, ranks)]


class BaselineFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file: one kind of machine."""

    schema: int
    machine: Text  # "NVIDIA H200", or "CPU"
    cases: dict[str, Entry]
