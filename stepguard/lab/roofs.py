"""The position of the classes of kernels under this card's roof, for work that is known."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepguard.core.profile import KernelRow, Profile, grouped, mean
from stepguard.core.roofline import Peaks, Position, position


@dataclass(frozen=True)
class ClassRoof:
    """The kernels of one class whose work is known."""

    kind: str
    known_us: float  # in each step, of those kernels
    all_us: float  # in each step, of all kernels of the class
    tflops_per_s: float
    gb_per_s: float
    position: Position


def class_roofs(profile: Profile, peaks: Peaks) -> list[ClassRoof]:
    """Return a row for each class with known work, the longest first."""
    kinds = grouped(profile.kernels, lambda row: row.kind)
    roofs = [roof for kind, rows in kinds.items() if (roof := _roof(kind, rows, peaks))]
    return sorted(roofs, key=lambda roof: -roof.known_us)


def _roof(kind: str, rows: Sequence[KernelRow], peaks: Peaks) -> ClassRoof | None:
    """Return the mean position of a class, weighted by time."""
    launched = ((row, mean(row.us) / mean(row.calls)) for row in rows if mean(row.calls))
    known = [(row, at) for row, us in launched if (at := position(row.work, us, peaks))]
    us = sum(mean(row.us) for row, _ in known)
    if not us:
        return None
    flops = sum(row.work.flops * mean(row.calls) for row, _ in known)
    moved = sum(row.work.bytes * mean(row.calls) for row, _ in known)
    shares = [
        sum(getattr(where, name) * mean(row.us) for row, where in known) / us
        for name in ("flops_share", "bytes_share")
    ]
    whole = sum(mean(row.us) for row in rows)
    return ClassRoof(kind, us, whole, flops / us / 1e6, moved / us / 1e3, Position(*shares))
