"""The roofline: how close a kernel is to the limits of its GPU, by measured peaks.

A kernel cannot be faster than its products at the peak rate of their type, nor than its bytes at
the peak rate of memory. Each of the two is a share of its time. The larger one is its utilisation,
and says what bounds it; 1 means that the kernel is at its roof. Triton's profiler Proton has the
same formula. Peaks are measured with a matrix product and a copy (doctor --peaks).
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
_WORDS = {"bfloat16": "bf16", "half": "fp16", "float": "fp32"}


class Peaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The peaks that one card reached."""

    device_name: str
    device_uuid: str  # empty for a CPU
    date: str
    torch: str
    copy_bytes_per_s: Positive  # bytes read and written
    flops_per_s: dict[str, Positive]  # of matrix products, by type: "bf16"


@dataclass(frozen=True)
class Work:
    """The least that a launch has to do; 0 if unknown."""

    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = ""  # the type of the products, named as in Peaks


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


def type_of(dtype: str) -> str:
    """Return the name that Peaks has for a type of a trace, "c10::BFloat16"."""
    return _WORDS.get(dtype.lower().removeprefix("c10::"), "")
