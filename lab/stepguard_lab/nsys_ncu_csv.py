"""Read the CSV tables of NVIDIA's tools, and print them as pages.

nsys stats --format csv prints several tables into one stream. ncu --csv has two forms: a line for
each launch (--page raw), or a line for each metric of a launch. Both tools print other lines before
a table. Numbers may have commas. A metric that was not collected is None, never 0.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum

from stepguard.report.table import aligned
from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.kernel_classes import Classes, short
from stepguard_lab.printed import fitted
from stepguard_lab.trace_page import WIDTH

_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


class Stats(StrEnum):
    """What a report of nsys stats is about."""

    KERNELS = "kernels"
    CALLS = "CUDA calls (host time)"
    COPIES = "copies and fills"
    RANGES = "NVTX ranges (host time)"
    GPU_RANGES = "NVTX ranges (time on the GPU)"


@dataclass(frozen=True)
class StatsRow:
    """One line of a report of nsys stats."""

    name: str
    calls: int
    total_us: float


@dataclass(frozen=True)
class StatsTable:
    """One report."""

    kind: Stats
    rows: tuple[StatsRow, ...]


@dataclass(frozen=True)
class NcuRow:
    """One launch of a kernel under ncu. Throughputs are in % of what the GPU can sustain."""

    name: str
    us: float | None
    occupancy_pct: float | None  # achieved: active warps / the most that fit
    compute_pct: float | None
    memory_pct: float | None
    dram_pct: float | None
    tensor_pct: float | None  # cycles in which the tensor cores are busy
    l2_hit_pct: float | None
    threads_per_warp: float | None  # warp execution efficiency = this / 32
    registers: float | None  # a thread
    shared_bytes: float | None  # a block


# The metrics of each field of NcuRow, in its order. Their names differ between versions of ncu and
# between GPUs: the first one with a value is read.
_METRICS: dict[str, tuple[str, ...]] = {
    "us": ("gpu__time_duration.sum", "Duration"),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
    "compute_pct": (
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) Throughput",
    ),
    "memory_pct": (
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput",
    ),
    "dram_pct": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput",
    ),
    "tensor_pct": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "l2_hit_pct": ("lts__t_sector_hit_rate.pct", "L2 Hit Rate"),
    "threads_per_warp": (
        "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Active Threads Per Warp",
    ),
    "registers": ("launch__registers_per_thread", "Registers Per Thread"),
    "shared_bytes": ("launch__shared_mem_per_block", "launch__shared_mem_per_block_allocated"),
}
_NOTHING = "No kernels were profiled"
_LONG = ("ID", "Metric Name", "Metric Unit", "Metric Value")
_RAW = "ncu --set detailed --csv --page raw"
MOST_PCT = 110.0  # a unit is never busier; the sampling of counters may show a little more
_NO_LAUNCH = "it has no launch: ncu found no kernel of the name asked for"
_SCALE = {
    **{unit: 1e-3 for unit in ("ns", "nsecond")},
    **{unit: 1.0 for unit in ("us", "usecond")},
    **{unit: 1e3 for unit in ("ms", "msecond")},
    **{unit: 1e6 for unit in ("s", "second")},
    "Kbyte/block": 1e3,
    "Mbyte/block": 1e6,
}


def is_ncu(text: str) -> bool:
    """Return whether the text is what ncu wrote."""
    return any(mark in text for mark in ('"Kernel Name"', "Kernel Name,", _NOTHING))


def refuse_page(text: str) -> None:
    """Raise TraceError for what nsys stats prints on a terminal."""
    if re.search(r"^ *Time \(%\) +Total", text, re.MULTILINE):
        raise TraceError("it is a page of nsys stats; print it as CSV: nsys stats --format csv")


def read_stats(text: str) -> list[StatsTable]:
    """Return the tables in the output of nsys stats. Raises TraceError where there is none."""
    tables: list[StatsTable] = []
    header: list[str] = []
    rows: list[StatsRow] = []
    for cells in [*csv.reader(text.splitlines()), []]:
        if header and len(cells) == len(header):
            rows.append(_stats_row(header, cells))
        elif header:
            tables.append(StatsTable(_kind(header), tuple(rows)))
            header, rows = [], []
        if not header and _column(cells, _TOTALS) is not None:
            header = cells
    if not tables:
        refuse_page(text)
        raise TraceError("it has no table of nsys stats: make it with nsys stats --format csv")
    return tables


_TOTALS = ("Total Proj Time", "Total Time")
_COUNTS = ("Instances", "Num Calls", "Count", "Range Instances")
_NAMES = ("Name", "Operation", "Range")


def _column(header: Sequence[str], titles: Sequence[str]) -> int | None:
    """Return the first column of one of these titles, whatever its unit."""
    bare = [cell.partition(" (")[0] for cell in header]
    return next((i for i, cell in enumerate(bare) if cell in titles), None)


def _kind(header: Sequence[str]) -> Stats:
    if _column(header, ("Total Proj Time",)) is not None:
        return Stats.GPU_RANGES
    if "Range" in header:
        return Stats.RANGES
    if "Operation" in header:
        return Stats.COPIES
    return Stats.CALLS if "Num Calls" in header else Stats.KERNELS


def _stats_row(header: Sequence[str], cells: Sequence[str]) -> StatsRow:
    total, count, name = (_column(header, titles) for titles in (_TOTALS, _COUNTS, _NAMES))
    if total is None or count is None or name is None:
        raise TraceError(f"its table has no count or no name: {','.join(header)[:80]!r}")
    unit = header[total].rpartition("(")[2].rstrip(")")
    try:
        us = _number(cells[total]) * _NS[unit] / 1e3
        return StatsRow(cells[name], int(_number(cells[count])), us)
    except (ValueError, KeyError):
        raise TraceError(f"the line {','.join(cells)[:80]!r} is no row of nsys stats") from None


def read_ncu(text: str) -> list[NcuRow]:
    """Return the launches in the output of ncu --csv. Raises TraceError if there is none, or if the
    table cannot be read.
    """
    rows = [cells for cells in csv.reader(text.splitlines()) if cells]
    start = next((i for i, cells in enumerate(rows) if "Kernel Name" in cells), None)
    if start is None and _NOTHING in text:
        raise TraceError(f"{_NO_LAUNCH}, or none of them in the range asked for")
    if start is None:
        raise TraceError(f'it has no column "Kernel Name": make it with {_RAW}')
    header, *body = rows[start:]
    if not body:
        raise TraceError(_NO_LAUNCH)
    if not set(_LONG) <= set(header):
        units = dict(zip(header, body.pop(0), strict=False))
        launches = [
            {title: (cell, units.get(title, "")) for title, cell in zip(header, cells, strict=True)}
            for cells in _launches(header, body)
        ]
    else:
        launches = _pivoted(header, _launches(header, body))
    ncu_rows = [_ncu_row(cells) for cells in launches]
    if ncu_rows and all(set(astuple(row)[1:]) == {None} for row in ncu_rows):
        raise TraceError(f"it has no metric that is read: make it with {_RAW}")
    return ncu_rows


_Cells = dict[str, tuple[str, str]]  # the text of each column or metric, and its unit


def _pivoted(header: list[str], rows: Iterable[list[str]]) -> list[_Cells]:
    """Return the launches of a table with a line for each metric, as ncu --csv prints it."""
    launches: dict[tuple[str, ...], _Cells] = {}
    for cells in rows:
        line = dict(zip(header, cells, strict=True))
        number, name, unit, value = (line[title] for title in _LONG)
        kernel = line["Kernel Name"]
        launch = launches.setdefault(
            (number, line.get("Process ID", ""), kernel), {"Kernel Name": (kernel, "")}
        )
        # Some throughputs have two lines, in % and in bytes per second: the one in % is kept. A
        # line of ncu's advice has no metric.
        if name and (unit == "%" or not name.endswith("Throughput")):
            launch.setdefault(name, (value, unit))
    return list(launches.values())


def _launches(header: list[str], rows: list[list[str]]) -> Iterator[list[str]]:
    for cells in rows:
        if len(cells) == len(header):
            yield cells
        elif not cells[0].startswith("=="):  # ncu's own messages
            raise TraceError(f"it is cut off in the line that begins with {cells[0]!r}")


def _ncu_row(cells: _Cells) -> NcuRow:
    figures = {key: _metric(cells, names) for key, names in _METRICS.items()}
    if figures["threads_per_warp"] is None:  # ncu of 2025 has only the two counts
        threads, warps = (_metric(cells, (n,)) for n in ("thread_inst_executed", "inst_executed"))
        figures["threads_per_warp"] = threads / warps if threads and warps else None
    for key, share in figures.items():
        if key.endswith("_pct") and share is not None and share > MOST_PCT:
            raise TraceError(
                f"{key} is {share:,.0f} %: ncu writes decimal commas in some languages; make it "
                "with LC_ALL=C"
            )
    return NcuRow(cells["Kernel Name"][0], *figures.values())


def _metric(cells: _Cells, names: tuple[str, ...]) -> float | None:
    """Return the first of the metrics that was collected, in the unit of its field."""
    for name in names:
        text, unit = cells.get(name, ("", ""))
        if text:
            try:
                return _number(text) * _SCALE.get(unit, 1.0)
            except ValueError:  # "n/a"
                continue
    return None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def stats_page(
    tables: Sequence[StatsTable], classes: Classes, top: int, width: int = WIDTH
) -> Iterator[str]:
    """Yield the lines of each report. A report of kernels has a second table, by class."""
    for table in tables:
        total = sum(row.total_us for row in table.rows)
        yield f"{table.kind}: {total / 1e3:,.3f} ms"
        header = ("name", "calls", "[ms]", "[%]", "each [us]")
        rows = sorted(table.rows, key=lambda row: -row.total_us)
        body = [_row(row.name, row.calls, row.total_us, total) for row in rows[:top]]
        yield from fitted([header, *body], width, short)
        if table.kind == Stats.KERNELS:
            yield from _classes(table, classes, total)
        yield ""


def _classes(table: StatsTable, classes: Classes, total: float) -> Iterator[str]:
    us, calls = Counter[str](), Counter[str]()
    for row in table.rows:
        kind = classes.kernel(row.name)
        us[kind] += row.total_us  # type: ignore[assignment]  # a Counter of floats
        calls[kind] += row.calls
    yield ""
    body = [_row(kind, calls[kind], figure, total) for kind, figure in us.most_common()]
    yield from aligned([("class", "calls", "[ms]", "[%]", "each [us]"), *body])


def _row(name: str, calls: int, us: float, total: float) -> tuple[str, ...]:
    share = f"{100 * us / total:.1f}" if total else ""
    each = f"{us / calls:,.1f}" if calls else ""
    return short(name, len(name)), f"{calls:,}", f"{us / 1e3:,.3f}", share, each


def ncu_page(rows: Sequence[NcuRow], top: int, width: int = WIDTH) -> Iterator[str]:
    """Yield a line for each launch, the longest first."""
    header = ("kernel", "[us]", "comp", "mem", "dram", "tens", "occ", "L2", "warp", "regs", "smem")
    ordered = sorted(rows, key=lambda row: -(row.us or 0.0))
    body = [
        (
            short(row.name, len(row.name)),
            _figure(row.us, 1),
            *(_figure(value) for value in (row.compute_pct, row.memory_pct, row.dram_pct)),
            *(_figure(value) for value in (row.tensor_pct, row.occupancy_pct, row.l2_hit_pct)),
            _figure(None if row.threads_per_warp is None else row.threads_per_warp * 100 / 32),
            _figure(row.registers),
            _figure(row.shared_bytes),
        )
        for row in ordered[:top]
    ]
    yield from fitted([header, *body], width, short)
    yield "% of what the GPU can sustain: compute, memory, DRAM, tensor cores; occupancy;"
    yield "% of hits in L2; % of threads active in a warp; registers; bytes a block"


def _figure(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"
