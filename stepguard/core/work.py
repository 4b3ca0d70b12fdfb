"""The least work that a launch has to do."""

from dataclasses import dataclass

_WORDS = {"bfloat16": "bf16", "half": "fp16", "float": "fp32"}


@dataclass(frozen=True)
class Work:
    """The least that a launch has to do; 0 if unknown."""

    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = ""  # the type of the products: "bf16"


def type_of(dtype: str) -> str:
    """Return the short name of a type of a trace: "bf16" of "c10::BFloat16"."""
    return _WORDS.get(dtype.lower().removeprefix("c10::"), "")
