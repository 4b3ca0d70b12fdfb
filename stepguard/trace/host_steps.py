"""Calls and identity of profiled steps, from the host's events of a Chrome trace.

API calls are counted, not the GPU's records of them: records get lost, while calls are exact over
processes, ranks and steps. Only the direction and the bytes of a copy come from the GPU's record. A
step counts its copies whose record is missing (``lost_copies``).

The identity is unknown if anything is not certain: a launch without a GPU record, a graph (whose
kernels may have changed since the last launch), or steps that are not all alike.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod
from typing import Any

import msgspec
import numpy as np

from stepguard.core.profile import StepIdentity, summed
from stepguard.trace.api_calls import (
    API_CATEGORIES,
    DTYPE_BYTES,
    LAUNCH_CALLS,
    SYNC_CALLS,
    is_copy,
    is_memset,
    orders,
    works,
)
from stepguard.trace.chrome_trace import DetailedEvent as Event
from stepguard.trace.chrome_trace import Details
from stepguard.trace.phases import LIBRARIES
from stepguard.trace.step_windows import step_at

HOST = ("cpu_op", *API_CATEGORIES)  # categories of events


@dataclass(frozen=True)
class Sync:
    """One call that makes the host wait, and the operators around it."""

    kind: str  # "stream", "device", "event" or "copy"
    chain: tuple[str, ...]  # enclosing operators, outermost first
    after_copy: str = ""  # the copy that it waits for, as "HtoD (Pageable -> Device)"


@dataclass(frozen=True)
class StepCalls:
    """The calls of one step. Counters map a name to calls or bytes."""

    operators: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    copy_bytes: Counter[str] = field(default_factory=Counter)
    lost_copies: int = 0  # copies whose GPU record is missing
    memsets: int = 0
    syncs: tuple[Sync, ...] = ()
    collectives: Counter[str] = field(default_factory=Counter)  # by name and size, "allreduce 8 B"
    collective_bytes: Counter[str] = field(default_factory=Counter)
    # The trace does not have their bytes.
    unsized_collectives: Counter[str] = field(default_factory=Counter)
    api_us: float = 0.0  # host time inside CUDA calls
    sync_us: float = 0.0  # the part of api_us inside calls that wait


def read_steps(events: Sequence[Event], mark: str, steps: int) -> list[StepCalls]:
    """Return the calls in each marked step, by time. Raises RuntimeError if a step is missing."""
    with sound_events():
        sizes = _gloo_sizes(events)
        records = records_of(events, ("gpu_memcpy", "gpu_memset"))
        return [_step(host, records, sizes) for host in host_steps(events, mark, steps)]


@contextmanager
def sound_events() -> Iterator[None]:
    """Raise RuntimeError for a field that an event lacks, or has with another type."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"an event of the trace is malformed: {problem}") from None


def host_steps(events: Sequence[Event], mark: str, steps: int) -> list[list[Event]]:
    """Return the operators and calls of each marked step. Raises RuntimeError."""
    marks = [e for e in events if e.name == mark and e.cat == "user_annotation"]
    if len(marks) != steps:
        raise RuntimeError(f"the trace has {len(marks)} of {steps} marked steps")
    marks.sort(key=_begin)
    host = sorted((e for e in events if e.cat in HOST), key=_begin)
    begin = np.array([e.ts for e in marks])
    end = begin + np.array([e.dur for e in marks])
    step = step_at(np.array([e.ts for e in host]), begin, end)
    return [[host[row] for row in np.flatnonzero(step == at).tolist()] for at in range(steps)]


def _begin(event: Event) -> float:
    return event.ts


def records_of(events: Iterable[Event], categories: Collection[str]) -> dict[float, Event]:
    """Return the GPU's records by correlation. One may lie after the step of its call."""
    return {
        e.args.correlation: e
        for e in events
        if e.cat in categories and e.args.correlation is not None
    }


def record_of(call: Event, records: Mapping[float, Event]) -> Event | None:
    """Return the GPU's record of a call; None if it got lost."""
    return None if call.args.correlation is None else records.get(call.args.correlation)


@lru_cache(maxsize=1 << 12)  # a model has a few hundred kinds of operands
def decoded(text: bytes) -> Any:
    """Return an argument of an event, decoded from JSON; None if the event does not have it."""
    return msgspec.json.decode(text) if text else None


def _step(
    host: Sequence[Event], records: Mapping[float, Event], sizes: dict[tuple[str, int], int]
) -> StepCalls:
    operators = [e for e in host if e.cat == "cpu_op"]
    api = [e for e in host if e.cat in API_CATEGORIES]
    copies = [e for e in api if is_copy(e.name)]
    known = [record for e in copies if (record := record_of(e, records)) is not None]
    waits = [e for e in api if e.name in SYNC_CALLS]
    messages = _collectives(operators, sizes)
    return StepCalls(
        operators=Counter(e.name for e in operators if e.name.startswith("aten::")),
        launches=Counter(e.name for e in api if e.name in LAUNCH_CALLS),
        copies=Counter(_direction(record) for record in known),
        copy_bytes=summed((_direction(r), int(r.args.copied_bytes)) for r in known),
        lost_copies=len(copies) - len(known),
        memsets=sum(is_memset(e.name) for e in api),
        syncs=tuple(_sync(e, operators, copies, records) for e in waits),
        collectives=Counter(_described(name, size) for name, size in messages),
        collective_bytes=summed((name, size) for name, size in messages if size is not None),
        unsized_collectives=Counter(n for n, size in messages if size is None and n != "barrier"),
        api_us=sum(e.dur for e in api),
        sync_us=sum(e.dur for e in waits),
    )


def _direction(record: Event) -> str:
    """Return "HtoD (Pageable -> Device)" of "Memcpy HtoD (Pageable -> Device)"."""
    return record.name.removeprefix("Memcpy ")


def _sync(
    wait: Event,
    operators: Sequence[Event],
    copies: Sequence[Event],
    records: Mapping[float, Event],
) -> Sync:
    # Only operators of the same thread: autograd's thread runs the backward pass, and operators of
    # other threads may run at the same time.
    around = [e for e in operators if e.tid == wait.tid and _holds(e, wait)]
    # They are sorted by start, so the last one that contains the call is the innermost.
    inner = around[-1] if around else None
    waited_for = ""
    for copy in copies:  # the last copy in the same operator, before the wait
        # <=, since a blocking copy is the copy and the wait in one call.
        same = copy.tid == wait.tid and copy.ts <= wait.ts
        if same and inner is not None and _holds(inner, copy):
            record = record_of(copy, records)
            waited_for = _direction(record) if record is not None else ""
    return Sync(SYNC_CALLS[wait.name], tuple(e.name for e in around), waited_for)


def _holds(outer: Event, inner: Event) -> bool:
    return outer.ts <= inner.ts < outer.ts + outer.dur


def _collectives(
    operators: Sequence[Event], sizes: dict[tuple[str, int], int]
) -> list[tuple[str, int | None]]:
    """Return each collective's name and bytes, None if unknown. gloo notes types (``sizes``)."""
    messages: list[tuple[str, int | None]] = []
    noted = [e for e in operators if e.name == "record_param_comms"]
    for event in operators:
        if not event.name.startswith("c10d::"):
            continue
        name = event.name.removeprefix("c10d::").strip("_")
        inside = [e for e in noted if e.tid == event.tid and _holds(event, e)]
        elements: float | None
        if inside:
            elements = inside[0].args.elements_in
            size = DTYPE_BYTES.get(str(inside[0].args.dtype).lower())
        else:
            elements = _elements(event)
            size = sizes.get((_bare(name), int(elements)))
        if name == "barrier" or elements is None or size is None:
            messages.append((name, None))
        else:
            messages.append((name, int(elements) * size))
    return messages


def _described(name: str, size: int | None) -> str:
    """Return "allreduce 2480 B"; a barrier has no payload."""
    if name == "barrier":
        return name
    return f"{name} {size} B" if size is not None else f"{name} of unknown size"


def _gloo_sizes(events: Iterable[Event]) -> dict[tuple[str, int], int]:
    """Return an element's bytes, by gloo's collective and number of elements, if of one type."""
    noted: dict[tuple[str, int], set[int | None]] = {}
    for event in events:
        if event.cat == "user_annotation" and event.name.startswith("gloo:"):
            types = decoded(bytes(event.args.types)) or [""]
            key = (_bare(event.name.removeprefix("gloo:")), _elements(event))
            noted.setdefault(key, set()).add(DTYPE_BYTES.get(str(types[0]).lower()))
    sole = {key: next(iter(sizes)) for key, sizes in noted.items() if len(sizes) == 1}
    return {key: size for key, size in sole.items() if size is not None}


def _bare(collective: str) -> str:
    """Return "allreduce" for "all_reduce": c10d and gloo write it differently."""
    return collective.replace("_", "")


def _elements(event: Event) -> int:
    """Return the elements of all input tensors, by the trace's shapes. An input that is no tensor
    also has the shape [], but no type of one.
    """
    types = [str(name).lower() for name in decoded(bytes(event.args.types)) or []]
    total = 0
    for index, dims in enumerate(decoded(bytes(event.args.dims)) or []):
        if dims and isinstance(dims[0], list):
            total += sum(prod(shape) for shape in dims)
        elif dims or types[index : index + 1] and types[index] in DTYPE_BYTES:
            total += prod(dims)
    return total


# Operators of torch and NCCL. Their code changes only with these versions, which are part of the
# software.
_TORCHS = ("aten::", "c10d::", "nccl:", "record_param_comms")
_LABELS = "profiler::"
_RECORDS = ("kernel", "gpu_memcpy", "gpu_memset")


def identity_of(events: Sequence[Event], mark: str, steps: int) -> StepIdentity:
    """Return the identity of the marked steps. Raises RuntimeError if one is missing."""
    with sound_events():
        return _identity(events, mark, steps)


def _identity(events: Sequence[Event], mark: str, steps: int) -> StepIdentity:
    records, hosts = records_of(events, _RECORDS), host_steps(events, mark, steps)
    called = {e.args.correlation for e in events if e.cat in HOST and works(e.name)}
    # A launch from before the begin of the file has a lower correlation number.
    first_call = min((n for n in called if n is not None), default=0)
    if any(n > first_call and n not in called for n in records):
        return StepIdentity(problem="it launches by calls that are not known")
    of_steps: list[dict[str, str]] = []
    for events_of in hosts:
        parts = _parts(events_of, records)
        if isinstance(parts, str):
            return StepIdentity(problem=parts)
        of_steps.append(parts)
    moving = [name for name in of_steps[0] if len({parts[name] for parts in of_steps}) > 1]
    if moving:
        return StepIdentity(problem=f"{', '.join(moving)} differ from step to step")
    return StepIdentity(of_steps[0])


def _parts(host: Sequence[Event], records: Mapping[float, Event]) -> dict[str, str] | str:
    """Return the hashes of one step, or why it has none."""
    threads: dict[Any, int] = {}
    streams: dict[Any, int] = {}
    operators, calls, work, messages = [], [], [], []
    around: dict[Any, list[Event]] = defaultdict(list)  # by thread: operators that have begun
    for event in host:
        name = event.name
        operator = event.cat == "cpu_op"
        launches = works(name)
        if operator:
            around[event.tid].append(event)
        # One more wait between streams takes away an overlap, so such calls count.
        called = launches or name in SYNC_CALLS or orders(name)
        # Not polls, whose number and threads vary, and not the labels of record_function.
        silent = LIBRARIES.search(name) or name.startswith(_LABELS)
        if not called and (not operator or silent):
            continue
        thread = threads.setdefault(event.tid, len(threads))
        if operator and name == "record_param_comms":
            messages.append([thread, *_message(event.args)])
        elif operator:
            operators.append([thread, name, *_inputs(event.args)])
        else:
            calls.append([thread, name])
        if launches:
            if "Graph" in name:
                return "it launches a graph"
            record = record_of(event, records)
            if record is None:
                return "launches lack the GPU's record"
            if name in LAUNCH_CALLS and not _known_code(around[event.tid], event.ts):
                return "a kernel's code is not known: no operator of torch's launches it"
            stream = streams.setdefault(record.args.stream, len(streams))
            work.append([thread, stream, record.name, *_shape(record.args)])
    if not work:
        return "it launches nothing"
    parts = {"kernels and copies": work, "operators": operators, "CUDA calls": calls}
    return {name: _hash(rows) for name, rows in (parts | {"collectives": messages}).items()}


def _inputs(args: Details) -> tuple[Any, ...]:
    """Return the operands. For a kernel of the compiler also return which kernel it is."""
    operands = args.dims, args.strides, args.types, args.values
    kernel = args.code, args.kernel_kwargs, args.warps, args.stages, args.backend
    return *(decoded(bytes(operand)) for operand in operands), *kernel


def _message(args: Details) -> tuple[Any, ...]:
    """Return what a collective exchanges. Other inputs contain a counter."""
    return args.collective, args.elements_in, args.elements_out, args.dtype, args.group


def _shape(args: Details) -> tuple[Any, ...]:
    """Return how a kernel is launched, or how much is copied."""
    return args.grid, args.block, args.registers, args.shared_memory, args.copied_bytes


def _known_code(around: list[Event], ts: float) -> bool:
    """Tell whether the innermost operator at that time is torch's own, NCCL's, or generated code
    with a hash. A kernel that somebody wrote can change while its name, grid and registers stay the
    same.
    """
    while around and around[-1].ts + around[-1].dur < ts:
        around.pop()
    if not around:
        return False
    return around[-1].name.startswith(_TORCHS) or bool(around[-1].args.code)


def with_settings(identity: StepIdentity, settings: dict[str, Any]) -> StepIdentity:
    """Return a known identity with the settings as one more part; an unknown one as it is."""
    if identity.problem:
        return identity
    return replace(identity, parts=identity.parts | {"settings": _hash([settings])})


def _hash(rows: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
