"""Read a Chrome trace as torch.profiler (Kineto) writes it, of any size, plain or gzip.

    with open("trace.json.gz", "rb") as file:
        trace = read_chrome(file)

It takes memory for the columns, 60 to 100 bytes an event, and for a few chunks of text.

A trace is one JSON object (or one list) that may be larger than memory. It is cut where an event
ends. If the part before a cut decodes as a list of events, the cut is right: after any other cut
brackets and quotes do not match.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from stepguard.trace.chrome_trace import (
    UNDECODED,
    CutOffError,
    Event,
    TraceError,
    in_columns,
    mended,
)
from stepguard.trace.columns import Trace

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
# msgspec's messages if the list ends and more text follows.
_AT_THE_END = ("trailing characters", "trailing comma in array")
_TRIES = 8  # cuts tried in one chunk: a name may contain text that looks like a border
_UNDECIDED_BYTES = 8 << 20  # so much more is read if no cut is right
# Without the details of a rank's own profile, which would take up to a tenth longer.
_decode: Callable[[bytes], list[Event]] = msgspec.json.Decoder(list[Event]).decode


def read_chrome(file: BinaryIO, chunk_bytes: int = CHUNK_BYTES) -> Trace:
    """Return the trace in an open binary file.

    Raises TraceError, one sentence, if the file is no trace or is cut off, if an event ends before
    it begins, or if its GPU records cannot be told apart.
    """
    chunks = Chunks(file, chunk_bytes)
    return in_columns(chunks, chunks.head)


class Chunks:
    """Iterates over lists of events. Afterwards ``head`` has the file's other fields.

    Raises TraceError if the file is no trace, is cut off, or cannot be decoded.
    """

    def __init__(self, file: BinaryIO, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.head: dict[str, object] = {}
        self._pull = _source(file, chunk_bytes)
        self._events = 0

    def __iter__(self) -> Iterator[list[Event]]:
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

    def _cut(self, buffer: bytes) -> tuple[list[Event], bytes] | None:
        """Return the events up to the last right border, and the bytes behind it."""
        try:
            return _up_to_a_border(buffer)
        except ValueError as error:
            # The list may end within this text, with more text behind it. The end of the file
            # decides.
            if len(buffer) < _UNDECIDED_BYTES and not _is_final(error):
                return None
            raise TraceError(f"after {self._events:,} events: {error}") from None

    def _last(self, buffer: bytes, is_list: bool) -> list[Event]:
        """Return the events in the rest of the file, whose end closes the list and the object."""
        error: Exception | None = None
        for end in reversed(list(_END.finditer(b"[" + buffer))):
            # Positions count the added "[", so ``inside`` still has the brace of the last event.
            inside = buffer[: max(0, end.start())]
            tail = buffer[end.end() - 1 :].strip()
            if (tail != b"") if is_list else not self._closes(tail):
                continue
            try:
                return _events(inside) if inside.strip() else []
            except UNDECODED as problem:
                error = error or problem
        if error:
            raise TraceError(f"after {self._events:,} events: {error}")
        if is_list:  # Chrome's format allows a list without its closing bracket
            with suppress(*UNDECODED):
                return _events(buffer.rstrip().removesuffix(b","))
        raise CutOffError(f"it is cut off after {self._events:,} events: the list has no end")

    def _closes(self, tail: bytes) -> bool:
        """Return whether the bytes behind the list end the object. Their fields are kept."""
        return tail[:1] in (b",", b"}") and self._keep(b'{"_":0' + tail)

    def _keep(self, text: bytes) -> bool:
        try:
            content = msgspec.json.decode(mended(text))
        except UNDECODED:
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


def _up_to_a_border(buffer: bytes) -> tuple[list[Event], bytes] | None:
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
            return _decode(b"[" + buffer[: begin + 1] + b"]"), buffer[end:]
        except msgspec.ValidationError:
            raise
        except UNDECODED as error:
            first = first or ValueError(str(error))
    begin, end = borders[0]
    repaired, rest = mended(buffer[: begin + 1]), buffer[begin + 1 :]
    if repaired == buffer[: begin + 1]:
        raise first or ValueError("no border")
    return _up_to_a_border(repaired + rest)


def _is_final(error: ValueError) -> bool:
    """Tell whether text stays wrong whatever follows: it is malformed, and not because the list
    ended.
    """
    words = str(error)
    wrong = "malformed" in words and not any(end in words for end in _AT_THE_END)
    return wrong or isinstance(error, msgspec.ValidationError)


def _events(text: bytes) -> list[Event]:
    """Decode events without their brackets. Raises an UNDECODED error."""
    whole = b"[" + text + b"]"
    try:
        return _decode(whole)
    except msgspec.ValidationError:
        raise
    except UNDECODED:
        return _decode(mended(whole))
