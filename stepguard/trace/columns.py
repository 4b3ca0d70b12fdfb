"""A trace as columns. Times are in us, from the trace's begin. One row is one event. Names are
numbers into ``Trace.names``: a gigabyte of events has only a few thousand different ones.
"""

from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stepguard.core.profile import Work

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Kinds of host events.
OPERATOR, ANNOTATION, CALL, PYTHON, OVERHEAD = range(5)
# Kinds of records of the GPU.
KERNEL, COPY, FILL = range(3)
LaunchShape = tuple[tuple[int, ...], tuple[int, ...]]  # the grid and block of a kernel's launch
NONE = -1  # no correlation, no operator, no stream


def numbers() -> "defaultdict[Any, int]":
    """Return a dict that gives each new key the next number, from 0 on."""
    return defaultdict(count().__next__)


@dataclass(frozen=True)
class _Table:
    def where(self, rows: Bools) -> Self:
        """Return only these rows."""
        return type(self)(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Host(_Table):
    """What the host did, sorted by begin: operators, annotations, CUDA calls."""

    kind: Ints
    name: Ints
    start_us: Floats
    end_us: Floats
    thread: Ints
    correlation: Ints  # of a call; its GPU record has the same
    external: Ints  # of an operator or call; the GPU record has the same


@dataclass(frozen=True)
class GpuRecords(_Table):
    """What the GPU did, sorted by begin."""

    kind: Ints
    name: Ints
    start_us: Floats
    end_us: Floats
    device: Ints
    stream: Ints
    correlation: Ints
    external: Ints
    shape: Ints  # into Trace.shapes; NONE for a copy or a fill


@dataclass(frozen=True)
class Allocations(_Table):
    """What was allocated and freed (``profile_memory=True``), sorted by time."""

    when_us: Floats
    thread: Ints  # as in Host
    on_gpu: Ints  # 1; or 0 for the CPU
    address: Ints
    bytes: Ints  # negative if freed


@dataclass(frozen=True)
class Differentiated(_Table):
    """The operators whose gradients a backward pass in the file computes, sorted by begin."""

    start_us: Floats
    thread: Ints  # as in Host


NO_OPERATORS = Differentiated(np.empty(0), np.empty(0, np.int64))


@dataclass(frozen=True)
class Message:
    """What a collective exchanges, as the process group noted it."""

    name: str
    elements_in: int
    elements_out: int
    dtype: str
    group: int  # number of ranks; 0 or less if unknown


@dataclass(frozen=True)
class Machine:
    """Where the file was recorded, as far as it says."""

    gpu: str = ""
    rank: int | None = None
    world_size: int = 1
    software: tuple[tuple[str, str], ...] = ()  # ("cuda_driver_version", "13000")
    base_ns: int = 0  # the file's times count from here


@dataclass(frozen=True)
class Trace:
    """One rank's trace."""

    names: tuple[str, ...]
    host: Host
    gpu: GpuRecords
    shapes: tuple[LaunchShape, ...] = ()
    messages: dict[int, Message] = field(default_factory=dict)  # by the operator's external id
    # Hash of generated source, by the operator's external id.
    codes: dict[int, str] = field(default_factory=dict)
    machine: Machine = Machine()
    began_us: float = 0.0  # the time in the file at which the columns begin
    allocations: Allocations | None = None
    work: dict[int, Work] = field(default_factory=dict)  # by the operator's external id
    differentiated: Differentiated = NO_OPERATORS

    @cached_property
    def calls(self) -> Host:
        """Return the CUDA calls."""
        return self.host.where(self.host.kind == CALL)

    @cached_property
    def operators(self) -> Host:
        """Return the operators."""
        return self.host.where(self.host.kind == OPERATOR)

    @cached_property
    def annotations(self) -> Host:
        """Return the user's annotations."""
        return self.host.where(self.host.kind == ANNOTATION)

    def named(self, wanted: Container[str]) -> Ints:
        """Return the numbers of these names, as far as they occur."""
        return np.array([i for i, name in enumerate(self.names) if name in wanted], np.int64)


def launched_by(calls: Host, correlation: Ints) -> Ints:
    """Return the row of the call for each correlation; NONE if it has no call."""
    with_one = np.flatnonzero(calls.correlation != NONE)
    order = with_one[np.argsort(calls.correlation[with_one], kind="stable")]
    return look_up(calls.correlation[order], order, correlation)


def taken(values: Floats, rows: Ints, missing: float) -> Floats:
    """Return ``values[rows]``, with ``missing`` where a row is NONE."""
    return np.append(values, missing)[rows]  # NONE, -1, selects the last value


def look_up(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Return the value of each wanted key among sorted ``keys``; NONE for a key that is missing."""
    if not len(keys):
        return np.full(len(wanted), NONE, np.int64)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[at] == wanted) & (wanted != NONE), values[at], NONE)
