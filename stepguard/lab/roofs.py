"""The roofline: how close kernels are to the limits of their GPU, by measured peaks.

A kernel cannot be faster than its products at the peak rate of their type, nor than its bytes at
the peak rate of memory. Each of the two is a share of its time. The larger one is its utilisation,
and says what bounds it; 1 means that the kernel is at its roof. Triton's profiler Proton has the
same formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stepguard.core.profile import KernelRow, Profile, grouped, mean
from stepguard.core.work_and_peaks import Peaks, Work


@dataclass(frozen=True)
class Position:
    """The position of a kernel under the roof."""

    flops_share: float  # share of its time that its products need at the peak
    bytes_share: float

    @property
    def utilisation(self) -> float:
        """Return the larger share."""
        return max(self.flops_share, self.bytes_share)

    @property
    def bound(self) -> str:
        """Return what bounds it: "compute" or "memory"."""
        return "compute" if self.flops_share >= self.bytes_share else "memory"


def position(work: Work, us: float, peaks: Peaks) -> Position | None:
    """Return the position of work that took ``us``; None if the work or its peak is unknown."""
    peak = peaks.flops_per_s.get(work.dtype)
    if us <= 0 or not (work.bytes or work.flops) or (work.flops and peak is None):
        return None
    seconds = us / 1e6
    flops_s = work.flops / peak if peak else 0.0
    return Position(flops_s / seconds, work.bytes / peaks.copy_bytes_per_s / seconds)


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
