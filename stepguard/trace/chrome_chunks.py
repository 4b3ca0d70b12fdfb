"""Cut a Chrome trace into lists of events, a few megabytes at a time.

A trace is one JSON object (or one list) that may be larger than memory. It is cut where an event
ends. If the part before a cut decodes as a list of events, the cut is right: after any other cut
brackets and quotes do not match.
"""

import math
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any, BinaryIO, Generic, TypeVar

import msgspec

try:  # isal unpacks in a third of zlib's time
    from isal import isal_zlib

    _unpacker: Callable[..., Any] = isal_zlib.decompressobj
    _DAMAGED: type[Exception] = isal_zlib.error  # type: ignore[assignment]
except ImportError:
    _unpacker, _DAMAGED = zlib.decompressobj, zlib.error

CHUNK_BYTES = 1 << 18  # larger chunks do not fit into the cache: 1 MiB takes a tenth longer
# No event is larger: the longest known ones have a shape list of some hundred KiB.
MAX_EVENT_BYTES = 256 << 20
_GZIP, _GZIP_WBITS = b"\x1f\x8b", 31
_PACKED_BYTES = 1 << 15  # unpacked, these are one or two chunks
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_END = re.compile(rb"[}\[]\s*,?\s*\](?=\s*(?:\}|,\s*\"|$))")
# Kineto has written these, which are no JSON numbers.
_NO_NUMBER = re.compile(rb'("\s*:\s*)-?(?:nan|inf(?:inity)?)\b', re.IGNORECASE)
_CONTROL = bytes(range(32))
_UNDECODED = (msgspec.DecodeError, UnicodeDecodeError)
# msgspec's messages if the list ends and more text follows.
_AT_THE_END = ("trailing characters", "trailing comma in array")
_TRIES = 8  # cuts tried in one chunk: a name may contain text that looks like a border
_UNDECIDED_BYTES = 8 << 20  # so much more is read if no cut is right


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
    dur: float = 0.0
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


E = TypeVar("E", bound=Event)
Decode = Callable[[bytes], list[E]]
# Files of any size are decoded without details, which would take up to a tenth longer.
EVENTS: Decode[Event] = msgspec.json.Decoder(list[Event]).decode
DETAILED: Decode[DetailedEvent] = msgspec.json.Decoder(list[DetailedEvent]).decode


class Chunks(Generic[E]):
    """Iterates over lists of events. Afterwards ``head`` has the file's other fields.

    Raises TraceError if the file is no trace, is cut off, or cannot be decoded.
    """

    def __init__(self, file: BinaryIO, decode: Decode[E], chunk_bytes: int = CHUNK_BYTES) -> None:
        self.head: dict[str, object] = {}
        self._decode = decode
        self._pull = _source(file, chunk_bytes)
        self._events = 0

    def __iter__(self) -> Iterator[list[E]]:
        buffer, is_list = self._open()
        wanted = 0
        while more := self._more(wanted):
            buffer += more
            cut = self._cut(buffer)
            if cut is None:
                if len(buffer) > MAX_EVENT_BYTES:
                    raise TraceError(f"no event ends in {MAX_EVENT_BYTES >> 20} MiB: not a trace")
                wanted = len(buffer)  # read twice as much before the next try, not chunk by chunk
                continue
            wanted = 0
            events, buffer = cut
            self._events += len(events)
            yield events
        yield self._last(buffer, is_list)

    def _more(self, least: int) -> bytes:
        """Return the next chunk, or several with at least so many bytes together; b"" at the
        end.
        """
        parts: list[bytes] = []
        while more := self._pull():
            parts.append(more)
            if (least := least - len(more)) <= 0:
                break
        return b"".join(parts)

    def _open(self) -> tuple[bytes, bool]:
        """Read up to the first event. Return what follows, and whether the file is a bare list."""
        buffer = b""
        while more := self._more(len(buffer)):
            buffer += more
            start = buffer.lstrip()
            if start.startswith(b"["):
                if start[1:].lstrip()[:1] not in (b"{", b"]", b""):
                    raise TraceError("it is a list, and not of events: no Chrome trace")
                return start[1:], True
            if array := _ARRAY.search(buffer):
                self._keep(buffer[: array.start()] + b'"_":0}')
                return buffer[array.end() :], False
            if len(buffer) > MAX_EVENT_BYTES:
                break
        raise CutOffError('it has no list "traceEvents": not a Chrome trace, or cut off before it')

    def _cut(self, buffer: bytes) -> tuple[list[E], bytes] | None:
        """Return the events up to the last right border, and the bytes behind it."""
        try:
            return _up_to_a_border(buffer, self._decode)
        except ValueError as error:
            # The list may end within this text, with more text behind it. The end of the file
            # decides.
            if len(buffer) < _UNDECIDED_BYTES and not _is_final(error):
                return None
            raise TraceError(f"after {self._events:,} events: {error}") from None

    def _last(self, buffer: bytes, is_list: bool) -> list[E]:
        """Return the events in the rest of the file, whose end closes the list and the object."""
        error: Exception | None = None
        for end in reversed(list(_END.finditer(b"[" + buffer))):
            # Positions count the added "[", so ``inside`` still has the brace of the last event.
            inside = buffer[: max(0, end.start())]
            tail = buffer[end.end() - 1 :].strip()
            if (tail != b"") if is_list else not self._closes(tail):
                continue
            try:
                return _events(inside, self._decode) if inside.strip() else []
            except _UNDECODED as problem:
                error = error or problem
        if error:
            raise TraceError(f"after {self._events:,} events: {error}")
        if is_list:  # Chrome's format allows a list without its closing bracket
            with suppress(*_UNDECODED):
                return _events(buffer.rstrip().removesuffix(b","), self._decode)
        raise CutOffError(f"it is cut off after {self._events:,} events: the list has no end")

    def _closes(self, tail: bytes) -> bool:
        """Return whether the bytes behind the list end the object. Their fields are kept."""
        return tail[:1] in (b",", b"}") and self._keep(b'{"_":0' + tail)

    def _keep(self, text: bytes) -> bool:
        try:
            content = msgspec.json.decode(_mended(text))
        except _UNDECODED:
            return False
        self.head |= {key: value for key, value in content.items() if key != "_"}
        return True


def _source(file: BinaryIO, size: int) -> Callable[[], bytes]:
    """Return a function that returns about the next ``size`` bytes, unpacked if they are gzip."""
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    if not packed:
        return lambda: file.read(size)
    parts = _unpacked(file, size)
    return lambda: next(parts, b"")


def _unpacked(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the content of the members of a gzip file, at most ``size`` bytes at a time. Bytes
    after the last member are ignored, as by gunzip.
    """
    packed = file.read(_PACKED_BYTES)
    while packed.startswith(_GZIP):
        member = _unpacker(wbits=_GZIP_WBITS)
        while not member.eof:
            packed = packed or file.read(_PACKED_BYTES)
            if not packed:
                raise CutOffError("it is cut off: the gzip stream has no end")
            try:
                part = member.decompress(packed, size)
            except _DAMAGED as error:
                raise TraceError(f"the gzip stream is damaged: {error}") from None
            packed = member.unconsumed_tail
            if part:
                yield part
        packed = member.unused_data
        while len(packed) < len(_GZIP) and (more := file.read(_PACKED_BYTES)):
            packed += more


def _last_borders(buffer: bytes) -> list[tuple[int, int]]:
    """Return the last places where an event may end, last first, as (its brace, the next brace)."""
    window = 1 << 12
    while True:
        begin = max(0, len(buffer) - window)
        borders = [(m.start(), m.end()) for m in _BORDER.finditer(buffer, begin)]
        if borders or begin == 0:
            return borders[::-1][:_TRIES]
        window *= 16


def _up_to_a_border(buffer: bytes, decode: Decode[E]) -> tuple[list[E], bytes] | None:
    """Return the events up to the last border, and the bytes behind it; None if there is no border.

    Raises ValueError if no border is right, neither in the text as it is nor with its faults
    mended.
    """
    borders = _last_borders(buffer)
    if not borders:
        return None
    first: ValueError | None = None
    for begin, end in borders:
        try:
            return decode(b"[" + buffer[: begin + 1] + b"]"), buffer[end:]
        except msgspec.ValidationError:
            raise
        except _UNDECODED as error:
            first = first or ValueError(str(error))
    begin, end = borders[0]
    mended, rest = _mended(buffer[: begin + 1]), buffer[begin + 1 :]
    if mended == buffer[: begin + 1]:
        raise first or ValueError("no border")
    return _up_to_a_border(mended + rest, decode)


def _is_final(error: ValueError) -> bool:
    """Tell whether text stays wrong whatever follows: it is malformed, and not because the list
    ended.
    """
    words = str(error)
    wrong = "malformed" in words and not any(end in words for end in _AT_THE_END)
    return wrong or isinstance(error, msgspec.ValidationError)


def _events(text: bytes, decode: Decode[E]) -> list[E]:
    """Decode events without their brackets. Raises an _UNDECODED error."""
    whole = b"[" + text + b"]"
    try:
        return decode(whole)
    except msgspec.ValidationError:
        raise
    except _UNDECODED:
        return decode(_mended(whole))


def _mended(text: bytes) -> bytes:
    """Return JSON without raw control characters, bytes that are not UTF-8, and NaN."""
    blank = text.translate(bytes.maketrans(_CONTROL, b" " * len(_CONTROL)))
    return _NO_NUMBER.sub(rb"\1null", blank).decode("utf-8", "replace").encode()
