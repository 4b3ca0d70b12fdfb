"""What a launch has to do at least, and what a card reached: a matrix product and a copy (doctor
--peaks). lab/roofs.py sets one against the other.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
_WORDS = {"bfloat16": "bf16", "half": "fp16", "float": "fp32"}


class Peaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one card reached."""

    device_name: str
    device_uuid: str  # "" for a CPU
    date: str
    torch: str
    copy_bytes_per_s: Positive  # read and written
    flops_per_s: dict[str, Positive]  # of matrix products, by type: "bf16"


@dataclass(frozen=True)
class Work:
    """What a launch has to do at least; 0 where that is not known."""

    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = ""  # of the products, as Peaks names it


def type_of(dtype: str) -> str:
    """Return the name in Peaks of a type as traces name it, "c10::BFloat16"."""
    return _WORDS.get(dtype.lower().removeprefix("c10::"), "")
