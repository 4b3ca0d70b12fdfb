"""Read what Nsight Systems exports, nsys export --type sqlite, as columns like a Chrome trace's.

    connection = sqlite3.connect("file:report.sqlite?mode=ro", uri=True)
    (trace,) = read_nsys(connection)

A table exists only if such events were recorded, and columns differ between versions (schema 3.25
is nsys 2026.2), so each is checked for. Ranges of torch's emit_nvtx are operators.
"""

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.columns import (
    ANNOTATION,
    CALL,
    COPY,
    FILL,
    KERNEL,
    NONE,
    OPERATOR,
    OVERHEAD,
    GpuRecords,
    Host,
    Machine,
    Trace,
    numbers,
)

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_WHERE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
# Columns of every version. Any other column that is missing is NULL.
_NEEDED = {"start", "end", "deviceId", "streamId", "correlationId", "nameId", *_GRID, *_BLOCK}
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_VERSION = re.compile(r"_v\d{4,}$")  # cudaLaunchKernel_v7000; cuMemcpyDtoH_v2 is a name
_EMITTED = re.compile(r", (?:seq|op_id) = ")


def read_nsys(connection: sqlite3.Connection) -> list[Trace]:
    """Return the trace of each process that used a GPU, sorted by process id.

    Raises TraceError if the file is no export of nsys, or lacks what is needed.
    """
    try:
        return _read(connection)
    except sqlite3.DatabaseError as error:
        raise TraceError(f"it cannot be read as SQLite: {error}") from None


def _read(connection: sqlite3.Connection) -> list[Trace]:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if "StringIds" not in tables:
        raise TraceError("it has no table StringIds: make it with nsys export --type sqlite")
    if _KERNELS not in tables:
        raise TraceError("it has no kernel of a GPU: record with nsys profile --trace=cuda,nvtx")
    export = _Export(connection, tables)
    gpu, host = _by_process(export.gpu()), _by_process(export.host())
    return [export.trace(host.get(pid, []), gpu[pid]) for pid in sorted(gpu)]


def _by_process(rows: Iterable[tuple[int, tuple[Any, ...]]]) -> dict[int, list[tuple[Any, ...]]]:
    by_process: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for pid, row in rows:
        by_process[pid].append(row)
    return by_process


class _Export:
    """One file: its tables and strings."""

    def __init__(self, connection: sqlite3.Connection, tables: set[str]) -> None:
        self._connection, self._tables = connection, tables
        strings = connection.execute("SELECT id, value FROM StringIds")
        self._strings = {number: str(text) for number, text in strings}
        self._names, self._shapes = numbers(), numbers()

    def gpu(self) -> Iterable[tuple[int, tuple[Any, ...]]]:
        """Yield the process and the columns of each record."""
        names = ("demangledName", "shortName")
        for row in self._rows(_KERNELS, (*_WHERE, *names, *_GRID, *_BLOCK)):
            name = self._strings.get(row[6]) or self._strings.get(row[7]) or "?"
            shape = tuple(int(x or 0) for x in row[8:])
            yield self._record(KERNEL, name, row, self._shapes[shape])
        columns = (*_WHERE, "copyKind", "srcKind", "dstKind")
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY", columns):
            sides = f"{_MEMORY.get(row[7], '?')} -> {_MEMORY.get(row[8], '?')}"
            name = f"Memcpy {_DIRECTIONS.get(row[6], '?')} ({sides})"
            yield self._record(COPY, name, row, NONE)
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMSET", _WHERE):
            yield self._record(FILL, "Memset (Device)", row, NONE)

    def _record(
        self, kind: int, name: str, row: tuple[Any, ...], shape: int
    ) -> tuple[int, tuple[Any, ...]]:
        start, end, device, stream, correlation, pid = row[:6]
        columns = (kind, self._names[name], start, end, device, stream, correlation, NONE, shape)
        return _process(pid), columns

    def host(self) -> Iterable[tuple[int, tuple[Any, ...]]]:
        """Yield the process and the columns of each call, range and overhead of the profiler."""
        columns = ("start", "end", "globalTid", "nameId", "correlationId")
        for start, end, tid, name, correlation in self._rows(
            "CUPTI_ACTIVITY_KIND_RUNTIME", columns
        ):
            call = _VERSION.sub("", self._strings.get(name, "?"))
            yield self._event(CALL, call, start, end, tid, correlation)
        for start, end, tid, text, name in self._rows(
            "NVTX_EVENTS", ("start", "end", "globalTid", "text", "textId")
        ):
            if end is not None:  # otherwise it is a mark, or a range that was never closed
                whole = text if text is not None else self._strings.get(name, "?")
                bare = _EMITTED.split(whole)[0]
                kind = ANNOTATION if bare == whole else OPERATOR
                yield self._event(kind, bare, start, end, tid, NONE)
        for table in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
            for start, end, tid in self._rows(table, ("start", "end", "globalTid")):
                yield self._event(OVERHEAD, "profiler", start, end, tid, NONE)

    def _event(
        self, kind: int, name: str, start: int, end: int, tid: int | None, correlation: int | None
    ) -> tuple[int, tuple[Any, ...]]:
        return _process(tid), (kind, self._names[name], start, end, tid, correlation, NONE)

    def _rows(self, table: str, columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
        """Yield these columns of a table, with NULL for those that this version does not have."""
        if table not in self._tables:
            return iter(())
        there = {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
        if missing := (_NEEDED & set(columns)) - there:
            raise TraceError(
                f"its table {table} has no column {min(missing)}: this reader knows the exports "
                "of nsys 2021 to 2026; export the report again with one of those"
            )
        asked = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
        return _checked(self._connection.execute(f"SELECT {asked} FROM {table}"), table, columns)

    def trace(self, host: list[tuple[Any, ...]], gpu: list[tuple[Any, ...]]) -> Trace:
        """Return one process's rows as columns, in us from the earliest begin."""
        began = min(row[2] for row in (*host, *gpu))
        threads = numbers()
        host = [(*row[:4], threads[row[4]], *row[5:]) for row in host]
        return Trace(
            names=tuple(self._names),
            host=Host(*_columns(host, 7, began)),
            gpu=GpuRecords(*_columns(gpu, 9, began)),
            shapes=tuple((row[:3], row[3:]) for row in self._shapes),
            machine=Machine(gpu=self._gpu_name()),
            began_us=began / 1e3,
        )

    def _gpu_name(self) -> str:
        if "TARGET_INFO_GPU" not in self._tables:
            return ""
        row = self._connection.execute("SELECT name FROM TARGET_INFO_GPU LIMIT 1").fetchone()
        return str(row[0]) if row else ""


def _checked(
    rows: Iterable[tuple[Any, ...]], table: str, columns: tuple[str, ...]
) -> Iterable[tuple[Any, ...]]:
    """Yield the rows. SQLite allows any type in any column, so this raises TraceError for a wrong
    one.
    """
    known: set[tuple[type, ...]] = set()
    for row in rows:
        if (kinds := tuple(map(type, row))) not in known:
            for name, value in zip(columns, row, strict=True):
                wanted = str if name == "text" else int
                empty = value is None and name != "start" and (name, table) != ("end", _KERNELS)
                if type(value) is not wanted and not empty:
                    raise TraceError(f"its table {table} has {value!r} in the column {name}")
            known.add(kinds)
        yield row


def _process(serialized: int | None) -> int:
    """Return the process id within nsys's global process or thread id."""
    return 0 if serialized is None else serialized // 0x1000000 % 0x1000000


def _columns(rows: Sequence[tuple[Any, ...]], width: int, began: int) -> list[Any]:
    """Return columns sorted by begin, longer rows first. Begin and end become us; they were ns."""
    table = [[NONE if x is None else x for x in column] for column in zip(*rows, strict=True)]
    columns: list[Any] = [np.array(column, np.int64) for column in table or [[]] * width]
    if (columns[3] < columns[2]).any():
        raise TraceError("an event in it ends before it begins")
    order = np.lexsort((-columns[3], columns[2]))
    columns = [column[order] for column in columns]
    columns[2], columns[3] = (columns[2] - began) / 1e3, (columns[3] - began) / 1e3
    return columns
