"""Read the Chrome trace of a rank's own profile, and make columns of the events of any trace that
torch.profiler (Kineto) wrote. The events are read as far as they are used.

The work of a launch, its FLOPs and bytes, is known from the shapes of its operator:

* Matrix products: 2 M N K FLOPs, and each of the three matrices is moved once.
* Fused attention: two products forward and five backward, and half of that if it is causal.
* Kernels that Triton generated: each tensor is moved once.
"""

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Annotated, Any, cast

import msgspec
import numpy as np

from stepguard.core.profile import Work, type_of
from stepguard.trace.api_calls import DTYPE_BYTES
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
    Machine,
    Message,
    Trace,
    numbers,
)

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
# Index of the query, of the causal flag, and of the dimension of tokens.
_ATTENTION = {
    "aten::_flash_attention_forward": (0, 8, 1),
    "aten::_flash_attention_backward": (1, 11, 1),
    "aten::_cudnn_attention_forward": (0, 10, 2),
    "aten::_cudnn_attention_backward": (1, 14, 2),
    "aten::_scaled_dot_product_cudnn_attention": (0, 6, 2),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 14, 2),
}
_TRITON = "triton_"
Shape = list[Annotated[int, msgspec.Meta(ge=0)]]


def is_known(operator: str) -> bool:
    """Return whether the work of an operator is known."""
    return operator in _PRODUCTS or operator in _ATTENTION or operator.startswith(_TRITON)


@lru_cache(maxsize=1 << 12)  # a model has a few hundred kinds of operands
def work_of(operator: str, dims_json: bytes, types_json: bytes, values_json: bytes) -> Work:
    """Return the work of one call, by its inputs; none if they are not as expected."""
    try:
        dims = msgspec.json.decode(dims_json)
        types = msgspec.json.decode(types_json, type=list[str])
        values = msgspec.json.decode(values_json or b"[]", type=list[str])
        if operator in _PRODUCTS:
            at = _PRODUCTS[operator]
            return _product(_shape(dims[at]), _shape(dims[at + 1]), types[at])
        if operator.startswith(_TRITON):
            return Work(bytes=_bytes([_shape(dim) for dim in dims], types))
        first, causal, tokens = _ATTENTION[operator]
        query, key = (_shape(dim) for dim in dims[first : first + 2])
        products = 5 if first else 2  # the first input of the backward pass is the gradient
        return _attention(query, key, tokens, products, types[first], values[causal] == "True")
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError, OverflowError):
        return Work()


def _shape(dim: object) -> Shape:
    """Return a tensor's shape. Raises ValidationError if it is none, such as a list of shapes."""
    return msgspec.convert(dim, type=Shape)


def _size(dtype: str) -> int:
    return DTYPE_BYTES.get(dtype.lower(), 0)


def _bytes(dims: Sequence[Shape], types: Sequence[str]) -> float:
    # Inputs that are no tensors have the shape [] and do not count.
    both = zip(dims, types, strict=True)
    return float(sum(prod(shape) * _size(dtype) for shape, dtype in both if shape))


def _product(left: Shape, right: Shape, dtype: str) -> Work:
    *batch, m, k = left
    if k != right[-2]:
        return Work()
    n, many = right[-1], prod(batch)
    moved = many * (m * k + k * n + m * n) * _size(dtype)
    return Work(2.0 * many * m * n * k, float(moved), type_of(dtype))


def _attention(
    query: Shape, key: Shape, tokens: int, products: int, dtype: str, causal: bool
) -> Work:
    flops = products * 2.0 * prod(query) * key[tokens] * (0.5 if causal else 1.0)
    # Query, key, value and output; in the backward pass also the gradients of these four.
    moved = (prod(query) + prod(key)) * (2 if products == 2 else 4) * _size(dtype)
    return Work(flops, float(moved), type_of(dtype))


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
    """The events of a file, decoded once. They take 1 KB each, columns 60 to 100 bytes."""

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
    """Return the events of a trace that this process made. Raises TraceError."""
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
    """Return the columns of a file's events; ``head`` is whole after the last part."""
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
        self._names, self._threads, self._shapes = numbers(), numbers(), numbers()
        self._messages: dict[int, Message] = {}
        self._codes: dict[int, str] = {}
        self._host = [array(code) for code in "biddiqq"]
        self._gpu = [array(code) for code in "biddiiqqi"]
        self._work: dict[int, Work] = {}
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
            work = work_of(name, *(bytes(raw) for raw in (args.dims, args.types, args.values)))
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
        """Return the columns of name, begin and length. Raises TraceError for a wrong one."""
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
        """Return the column of external ids. Note the messages and hashes of their code."""
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
            shapes=tuple(self._shapes),
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
    """Return the columns by begin, longer events first, relative to ``began``, with ends."""
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
