"""Read the Chrome trace of a rank's own profile, and make columns of the events of any trace that
torch.profiler (Kineto) wrote.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np

from stepguard.core.profile import Work
from stepguard.trace.chrome_events import (
    NO_JSON,
    UNDECODED,
    CutOffError,
    DetailedEvent,
    Event,
    Plain,
    Scalar,
    TraceError,
    Triple,
    mended,
)
from stepguard.trace.columns import (
    ANNOTATION,
    CALL,
    COPY,
    FILL,
    KERNEL,
    NO_OPERATORS,
    NONE,
    OPERATOR,
    OVERHEAD,
    PYTHON,
    Allocations,
    Differentiated,
    GpuRecords,
    Host,
    LaunchShape,
    Machine,
    Message,
    Numbers,
    Trace,
)
from stepguard.trace.flops_of_launches import Inputs, is_known, work_of

# In lower case: before 2023 Kineto wrote "Kernel", "Runtime", "Operator".
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
_NO_ARGS = Scalar()
_MOST_US = 1e17  # 3,000 years since 1970
_STEP = "ProfilerStep#"  # torch 1.9 wrote its marks of steps among the operators
_MEMORY, _CUDA = "[memory]", 1  # the event of an allocation, and its "Device Type" on a GPU
# The profiler draws an arrow from each operator to its node of the backward pass.
_BEGIN, _TO_BACKWARD = "s", "fwdbwd"  # ph and category of the arrow's begin


class _Device(msgspec.Struct):
    name: str = ""


class _Ranks(msgspec.Struct):
    rank: Plain = None
    world_size: Plain = None


class _Head(msgspec.Struct):
    """The other fields of a trace, as far as they are used."""

    devices: list[_Device] | None = msgspec.field(name="deviceProperties", default=None)
    ranks: _Ranks | None = msgspec.field(name="distributedInfo", default=None)
    base_ns: int | float | None = msgspec.field(name="baseTimeNanoseconds", default=None)


_SOFTWARE = ("cuda_driver_version", "cuda_runtime_version", "cupti_version")


class _File(msgspec.Struct):
    """A whole file. The head's fields are named as in the file."""

    traceEvents: list[DetailedEvent]
    deviceProperties: Any = None
    distributedInfo: Any = None
    baseTimeNanoseconds: Any = None
    cuda_driver_version: Any = None
    cuda_runtime_version: Any = None
    cupti_version: Any = None


_decode = msgspec.json.Decoder(_File).decode


@dataclass(frozen=True)
class Decoded:
    """The events of a file, decoded once for a step's counts, identity and profile. They take 1 KB
    each, while columns take 60 to 100 bytes an event.
    """

    used: list[DetailedEvent]  # by columns or by counts
    head: dict[str, object]

    @property
    def events(self) -> list[DetailedEvent]:
        """Return the events that have a length."""
        return [event for event in self.used if event.ph == "X"]

    def trace(self) -> Trace:
        """Return the columns. Raises TraceError as in_columns() does."""
        return in_columns([self.used], self.head)


def decode_all(text: bytes) -> Decoded:
    """Return the events of a trace that this process made, as far as columns or counts use them.

    Raises CutOffError if the text ends too early; TraceError if it is no trace, or if an event has
    no begin or no length.
    """
    file = _decoded(text)
    events = [event for event in file.traceEvents if event.ph == "X" or _begins_arrow(event)]
    for event in events:
        if event.ph == "X" and not (event.dur >= 0 and math.isfinite(event.ts)):
            raise TraceError(f"the event {event.name!r} has no begin or no length")
    file.traceEvents = []
    return Decoded(events, msgspec.structs.asdict(file))


def _decoded(text: bytes) -> _File:
    try:
        return _decode(text)
    except msgspec.ValidationError as error:
        raise TraceError(str(error)) from None
    except UNDECODED:
        pass
    try:
        return _decode(mended(text))
    except UNDECODED as error:
        kind = CutOffError if "truncated" in str(error) else TraceError
        raise kind(str(error)) from None


def _begins_arrow(event: Event) -> bool:
    return event.ph == _BEGIN and event.cat == _TO_BACKWARD


def in_columns(parts: Iterable[Sequence[Event]], head: dict[str, object]) -> Trace:
    """Return the columns of a file's events, which come in parts. ``head`` has its other fields
    once the last part was read. Raises TraceError if an event has no begin or a negative length, or
    if nothing in the file is of torch.profiler.
    """
    columns = _Columns()
    try:
        for events in parts:
            columns.add(events)
        return columns.trace(_machine(head))
    except OverflowError:
        raise TraceError("it has a number that no profiler writes") from None


class _Columns:
    """Builds the columns, whole lists at a time: a loop over events takes three times as long."""

    def __init__(self) -> None:
        self._names, self._threads, self._shapes = Numbers(), Numbers(), Numbers()
        self._messages: dict[int, Message] = {}
        self._codes: dict[int, str] = {}
        self._host = [array(code) for code in "biddiqq"]
        self._gpu = [array(code) for code in "biddiiqqi"]
        self._work: dict[int, Work] = {}
        self._known: dict[Inputs, Work] = {}
        self._allocations: list[tuple[Any, ...]] = []
        self._arrows: list[tuple[float, int]] = []

    def add(self, events: Iterable[Event]) -> None:
        """Append the events that have a length, of the kinds that are used."""
        by_category: defaultdict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            if event.ph == "X":
                by_category[event.cat].append(event)
            elif event.name == _MEMORY and isinstance(event.args, Scalar):
                self._add_allocation(event, event.args)
            elif _begins_arrow(event) and event.ts is not None and math.isfinite(event.ts):
                self._arrows.append((event.ts, self._threads[event.pid, event.tid]))
        for category, rows in by_category.items():
            kind = (category or "").lower()
            if kind == "operator" and (marks := [row for row in rows if _is_step(row)]):
                self._add_host(ANNOTATION, marks)
                rows = [row for row in rows if not _is_step(row)]
            if not rows:
                continue
            if kind in _HOST:
                self._add_host(_HOST[kind], rows)
            elif kind in _GPU:
                self._add_gpu(_GPU[kind], rows)

    def _add_allocation(self, event: Event, args: Scalar) -> None:
        figures = (args.address, args.changed)
        if event.ts is None or args.changed is None:
            raise TraceError("it has an allocation without time or bytes")
        if args.address is None:  # as torch 1.9 wrote it: nobody knows what is freed
            return
        thread, gpu = self._threads[event.pid, event.tid], _number(args.device_type) == _CUDA
        self._allocations.append((event.ts, thread, int(gpu), *map(_number, figures)))

    def _add_host(self, kind: int, rows: list[Event]) -> None:
        threads = self._threads
        args = cast("list[Scalar]", [row.args or _NO_ARGS for row in rows])
        if kind == OPERATOR:
            self._add_work(rows)
        columns = (
            [kind] * len(rows),
            *self._name_and_times(rows),
            [threads[row.pid, row.tid] for row in rows],
            _numbers([arg.correlation for arg in args]),
            self._externals(args),
        )
        _extend(self._host, columns)

    def _add_work(self, rows: list[Event]) -> None:
        """Note the work of operators whose shapes are in the file (``record_shapes=True``)."""
        for row in rows:
            args = row.args
            if (
                not isinstance(args, Scalar)
                or args.dims is NO_JSON
                or not is_known(name := str(row.name))
            ):
                continue
            inputs = Inputs(name, *(bytes(raw) for raw in (args.dims, args.types, args.values)))
            if (work := self._known.get(inputs)) is None:
                work = self._known[inputs] = work_of(inputs)
            external = _number(args.external)
            if (work.flops or work.bytes) and external != NONE:
                self._work[external] = work

    def _add_gpu(self, kind: int, rows: list[Event]) -> None:
        args = cast("list[Scalar]", [row.args or _NO_ARGS for row in rows])
        pairs = list(zip(rows, args, strict=True))
        columns = (
            [kind] * len(rows),
            *self._name_and_times(rows),
            _numbers([row.pid if arg.device is None else arg.device for row, arg in pairs]),
            _numbers([row.tid if arg.stream is None else arg.stream for row, arg in pairs]),
            _numbers([arg.correlation for arg in args]),
            self._externals(args),
            [self._shapes[_sizes(arg.grid), _sizes(arg.block)] for arg in args]
            if kind == KERNEL
            else [NONE] * len(rows),
        )
        _extend(self._gpu, columns)

    def _name_and_times(self, rows: list[Event]) -> tuple[list[int], list[float], list[float]]:
        """Return the columns of name, begin and length. Raises TraceError if an event has none, or
        one that no clock shows.
        """
        names = self._names
        begins, lengths = [row.ts for row in rows], [row.dur for row in rows]
        known = [ts for ts in begins if ts is not None]
        few, both = len(known) < len(rows), (known, lengths)
        if few or min(map(min, both)) < 0 or max(map(max, both)) > _MOST_US:
            row = next(row for row in rows if not _is_time(row.ts) or not _is_time(row.dur))
            what = f"begins at {row.ts} us" if row.ts is not None else "has no begin"
            what = what if not _is_time(row.ts) else f"has a length of {row.dur} us"
            raise TraceError(f"the event {row.name!r} {what if row.dur != -1 else 'has no length'}")
        return [names[str(row.name)] for row in rows], known, lengths

    def _externals(self, args: list[Scalar]) -> list[int]:
        """Return the column of external ids. Note the messages and hashes of code that belong to
        them.
        """
        ids = _numbers([a.external_old if a.external is None else a.external for a in args])
        noted = [at for at, arg in enumerate(args) if arg.collective is not None or arg.code]
        for arg, external in ((args[at], ids[at]) for at in noted if ids[at] != NONE):
            if arg.collective is not None:
                self._messages[external] = _message(arg)
            if arg.code:
                self._codes[external] = str(arg.code)
        return ids

    def trace(self, machine: Machine) -> Trace:
        """Return the columns sorted by time, which begins at 0."""
        host = [np.frombuffer(column, dtype=column.typecode) for column in self._host]
        gpu = [np.frombuffer(column, dtype=column.typecode) for column in self._gpu]
        self._host, self._gpu = [], []  # each column is freed once it is sorted
        if not len(host[0]) + len(gpu[0]):
            raise TraceError("it has no operator, call or GPU record: no trace of torch.profiler")
        began = min((float(part[2].min()) for part in (host, gpu) if len(part[2])), default=0.0)
        return Trace(
            names=tuple(self._names),
            host=Host(*_ordered(host, began)),
            gpu=GpuRecords(*_ordered(gpu, began)),
            shapes=tuple(LaunchShape(*key) for key in self._shapes),
            messages=self._messages,
            codes=self._codes,
            machine=machine,
            began_us=began,
            allocations=_allocations(self._allocations, began),
            work=self._work,
            differentiated=_differentiated(self._arrows, began),
        )


def _is_step(event: Event) -> bool:
    return str(event.name).startswith(_STEP)


def _is_time(us: float | None) -> bool:
    return us is not None and 0 <= us <= _MOST_US


def _allocations(rows: list[tuple[Any, ...]], began: float) -> Allocations | None:
    if not rows:
        return None
    when, *others = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    return Allocations(np.array(when) - began, *(np.array(column, np.int64) for column in others))


def _differentiated(arrows: list[tuple[float, int]], began: float) -> Differentiated:
    if not arrows:
        return NO_OPERATORS
    when, thread = zip(*sorted(arrows), strict=True)
    return Differentiated(np.array(when) - began, np.array(thread, np.int64))


def _extend(columns: list["array[Any]"], values: tuple[list[Any], ...]) -> None:
    for column, new in zip(columns, values, strict=True):
        column.fromlist(new)


def _ordered(columns: list[Any], began: float) -> list[Any]:
    """Return the columns sorted by begin, longer events first, with times relative to ``began``,
    and with the column of ends.
    """
    order = np.lexsort((-columns[3], columns[2]))
    columns.reverse()
    sorted_columns = [columns.pop()[order] for _ in range(len(columns))]
    sorted_columns[2] = sorted_columns[2] - began
    sorted_columns[3] = sorted_columns[2] + sorted_columns[3]
    return sorted_columns


def _numbers(values: list[Any]) -> list[int]:
    """Return whole numbers, with NONE for what is missing or is no number."""
    numbers = [NONE if value is None else value for value in values]
    if set(map(type, numbers)) <= {int}:
        return numbers
    return [_number(value) for value in numbers]


def _sizes(value: Triple) -> tuple[int, ...]:
    """Return the blocks or threads along each axis; () if the file does not list them."""
    return value if isinstance(value, tuple) else ()


def _number(value: Plain) -> int:
    """Return a whole number, which the file may have as text or float; NONE if it is no number."""
    if isinstance(value, int | float):
        return int(value)
    return int(value) if value is not None and value.lstrip("-").isdigit() else NONE


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
        header = msgspec.convert(head, _Head)
    except msgspec.ValidationError as error:
        raise TraceError(f"its record of the machine is malformed: {error}") from None
    ranks = header.ranks or _Ranks()
    rank = _number(ranks.rank)
    return Machine(
        gpu=header.devices[0].name if header.devices else "",
        rank=None if rank == NONE else rank,
        world_size=max(1, _number(ranks.world_size)),
        software=tuple((key, str(head[key])) for key in _SOFTWARE if head.get(key) is not None),
        base_ns=int(header.base_ns or 0),
    )
