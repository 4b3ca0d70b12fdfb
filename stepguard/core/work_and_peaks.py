"""The least work that a launch has to do, and the peaks of a card, which are measured with a matrix
product and a copy (doctor --peaks). lab/roofline.py compares the two.
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


def type_of(dtype: str) -> str:
    """Return the name that Peaks has for a type of a trace, "c10::BFloat16"."""
    return _WORDS.get(dtype.lower().removeprefix("c10::"), "")
