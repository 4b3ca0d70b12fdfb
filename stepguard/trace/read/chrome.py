"""Read a Chrome trace as torch.profiler (Kineto) writes it, of any size, plain or gzip.

    with open("trace.json.gz", "rb") as file:
        trace = read_chrome(file)

Memory is what the columns need, 60 to 100 bytes an event, and a few chunks of text.
"""

from array import array
from collections.abc import Iterable
from typing import Any, BinaryIO

import msgspec
import numpy as np

from stepguard.trace.columns import (
    ANNOTATION,
    CALL,
    COPY,
    FILL,
    KERNEL,
    NONE,
    OPERATOR,
    OVERHEAD,
    PYTHON,
    Gpu,
    Host,
    LaunchShape,
    Machine,
    Message,
    Trace,
)
from stepguard.trace.read.chunks import CHUNK_BYTES, Chunks, Event, Scalar, TraceError

# Lower case: before 2023 Kineto wrote "Kernel", "Runtime", "Operator".
_HOST = {
    "cpu_op": OPERATOR,
    "operator": OPERATOR,
    "user_annotation": ANNOTATION,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "python_function": PYTHON,
    "overhead": OVERHEAD,
}
_GPU = {
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "memcpy": COPY,
    "gpu_memset": FILL,
    "memset": FILL,
}
_NOTHING = Scalar()


class _Device(msgspec.Struct):
    name: str = ""


class _Ranks(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _Head(msgspec.Struct):
    """What a trace says beside its events, as far as it is used."""

    devices: list[_Device] | None = msgspec.field(name="deviceProperties", default=None)
    ranks: _Ranks | None = msgspec.field(name="distributedInfo", default=None)
    base_ns: int | float | None = msgspec.field(name="baseTimeNanoseconds", default=None)


_SOFTWARE = ("cuda_driver_version", "cuda_runtime_version", "cupti_version")


def read_chrome(file: BinaryIO, chunk_bytes: int = CHUNK_BYTES) -> Trace:
    """Return the trace in an open binary file.

    Raises TraceError, one sentence, for a file that is no trace, is cut off, has an event that ends
    before it begins, or whose GPU records cannot be told from each other.
    """
    chunks = Chunks(file, chunk_bytes)
    columns = _Columns()
    try:
        for events in chunks:
            columns.add(events)
        return columns.trace(_machine(chunks.head))
    except OverflowError:
        raise TraceError("it has a number that no profiler writes") from None


class _Columns:
    """The columns in the making."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._threads: dict[object, int] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        self._messages: dict[int, Message] = {}
        self._host = [array(code) for code in "biddiqq"]
        self._gpu = [array(code) for code in "biddiiqqqi"]

    def add(self, events: Iterable[Event]) -> None:
        """Append the events that last, of the kinds that are read."""
        names, threads = self._names, self._threads
        host = [column.append for column in self._host]
        for event in events:
            if event.ph != "X" or event.cat is None:
                continue
            kind = _HOST.get(event.cat)
            if kind is None:
                kind = _HOST.get(event.cat.lower(), NONE)
            if kind == NONE:
                self._add_record(event)
                continue
            start, us = self._times(event)
            args = event.args or _NOTHING
            name = names.setdefault(str(event.name), len(names))
            thread = threads.setdefault((event.pid, event.tid), len(threads))
            external = _number(args.external, args.external_old)
            row = (kind, name, start, start + us, thread, _number(args.correlation), external)
            for append, value in zip(host, row, strict=True):
                append(value)  # type: ignore[arg-type]  # of its column's type
            if args.collective is not None:
                self._messages[external] = _message(args)

    def _add_record(self, event: Event) -> None:
        kind = _GPU.get((event.cat or "").lower())
        if kind is None:
            return
        start, us = self._times(event)
        args = event.args or _NOTHING
        external = _number(args.external, args.external_old)
        row = (
            kind,
            self._names.setdefault(str(event.name), len(self._names)),
            start,
            start + us,
            _number(args.device, event.pid),
            _number(args.stream, event.tid),
            _number(args.correlation),
            external,
            _number(args.bytes),
            self._shape(args) if kind == KERNEL else NONE,
        )
        for column, value in zip(self._gpu, row, strict=True):
            column.append(value)  # type: ignore[arg-type]
        if args.collective is not None:
            self._messages.setdefault(external, _message(args))

    def _times(self, event: Event) -> tuple[float, float]:
        """Return begin and length in us."""
        us = event.dur or 0.0
        if event.ts is None or us < 0:
            what = "no begin" if event.ts is None else f"a length of {us} us"
            raise TraceError(f"the event {event.name!r} has {what}")
        return event.ts, us

    def _shape(self, args: Scalar) -> int:
        key = (
            tuple(args.grid or ()),
            tuple(args.block or ()),
            int(args.registers or 0),
            int(args.shared or 0),
        )
        return self._shapes.setdefault(key, len(self._shapes))

    def trace(self, machine: Machine) -> Trace:
        """Return the columns in order of time, from the earliest begin."""
        host = [np.frombuffer(column, dtype=column.typecode) for column in self._host]
        gpu = [np.frombuffer(column, dtype=column.typecode) for column in self._gpu]
        self._host, self._gpu = [], []  # each column is freed when it has been sorted
        if not len(host[0]) + len(gpu[0]):
            raise TraceError("it has no operator, call or GPU record: no trace of torch.profiler")
        began = min((float(part[2].min()) for part in (host, gpu) if len(part[2])), default=0.0)
        return Trace(
            names=tuple(self._names),
            host=Host(*_ordered(host, began)),
            gpu=Gpu(*_ordered(gpu, began)),
            shapes=tuple(LaunchShape(*key) for key in self._shapes),
            messages=self._messages,
            machine=machine,
            began_us=began,
        )


def _ordered(columns: list[Any], began: float) -> list[Any]:
    """Return the columns sorted by begin (the longer first) and counted from ``began``."""
    order = np.lexsort((-columns[3], columns[2]))
    columns.reverse()
    found = [columns.pop()[order] for _ in range(len(columns))]
    found[2], found[3] = found[2] - began, found[3] - began
    return found


def _number(*values: int | float | str | None) -> int:
    """Return the first of the values that is a number, NONE without any."""
    for value in values:
        if isinstance(value, int | float):
            return int(value)
        if value is not None and value.lstrip("-").isdigit():
            return int(value)
    return NONE


def _message(args: Scalar) -> Message:
    return Message(
        name=str(args.collective).replace("_", "").lower(),
        elements_in=_number(args.elements_in),
        elements_out=_number(args.elements_out),
        dtype=str(args.dtype or "").lower(),
        group=_number(args.group),
    )


def _machine(head: dict[str, Any]) -> Machine:
    try:
        found = msgspec.convert(head, _Head)
    except msgspec.ValidationError as error:
        raise TraceError(f"what it says of its machine is not as it should be: {error}") from None
    return Machine(
        gpu=found.devices[0].name if found.devices else "",
        rank=found.ranks.rank if found.ranks else None,
        world_size=(found.ranks and found.ranks.world_size) or 1,
        software=tuple((key, str(head[key])) for key in _SOFTWARE if key in head),
        base_ns=int(found.base_ns or 0),
    )
