"""The events of a Chrome trace, as torch.profiler (Kineto) writes it, as far as they are used."""

import math
import re
from typing import Annotated, Any

import msgspec

# Kineto has written these, which are no JSON numbers.
_NO_NUMBER = re.compile(rb'("\s*:\s*)-?(?:nan|inf(?:inity)?)\b', re.IGNORECASE)
_CONTROL = bytes(range(32))
UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # nested too deep
NO_JSON = msgspec.Raw(b"")


class TraceError(ValueError):
    """A trace that cannot be read, or that cannot be right. One sentence."""


class CutOffError(TraceError):
    """A trace that ends too early."""


Plain = int | float | str | None  # some versions and tools write numbers as text
Triple = tuple[int, ...] | str | None  # an operator of Triton's has text: "grid(100,)"


class Scalar(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an event that are used. All others are skipped without decoding."""

    correlation: Plain = None
    external: Plain = msgspec.field(name="External id", default=None)
    external_old: Plain = msgspec.field(name="external id", default=None)
    stream: Plain = None
    device: Plain = None
    grid: Triple = None
    block: Triple = None
    collective: Plain = msgspec.field(name="Collective name", default=None)
    elements_in: Plain = msgspec.field(name="In msg nelems", default=None)
    elements_out: Plain = msgspec.field(name="Out msg nelems", default=None)
    group: Plain = msgspec.field(name="Group size", default=None)
    dtype: Plain = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_JSON)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NO_JSON)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NO_JSON)
    address: Plain = msgspec.field(name="Addr", default=None)
    changed: Plain = msgspec.field(name="Bytes", default=None)
    device_type: Plain = msgspec.field(name="Device Type", default=None)
    code: Plain = msgspec.field(name="kernel_hash", default=None)


Nothing = Annotated[list[Any], msgspec.Meta(max_length=0)]  # PHP's way to write {}


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event as the file has it; times in us."""

    name: Plain = None
    ph: str | None = None
    cat: str | None = None
    ts: float | None = None
    dur: float = -1.0  # missing
    pid: Plain = None
    tid: Plain = None
    args: Scalar | Nothing | None = None


class Details(Scalar, frozen=True, gc=False):
    """More arguments, beside those of Scalar, from which a step's counts and identity are made."""

    correlation: int | float | None = None
    elements_in: int | float | None = msgspec.field(name="In msg nelems", default=None)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NO_JSON)
    kernel_kwargs: Any = None
    warps: Any = msgspec.field(name="num_warps", default=None)
    stages: Any = msgspec.field(name="num_stages", default=None)
    backend: Any = msgspec.field(name="kernel_backend", default=None)
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared_memory: Any = msgspec.field(name="shared memory", default=None)
    copied_bytes: Any = msgspec.field(name="bytes", default=None)


NO_DETAILS = Details()


class DetailedEvent(Event, frozen=True, gc=False):
    """An event of a rank's own profile. A missing field cannot be mistaken for a figure."""

    name: str = ""
    cat: str = ""
    ts: float = math.nan
    dur: float = -1.0
    args: Details = NO_DETAILS


def mended(text: bytes) -> bytes:
    """Return JSON without raw control characters, bytes that are not UTF-8, and NaN."""
    blank = text.translate(bytes.maketrans(_CONTROL, b" " * len(_CONTROL)))
    return _NO_NUMBER.sub(rb"\1null", blank).decode("utf-8", "replace").encode()
