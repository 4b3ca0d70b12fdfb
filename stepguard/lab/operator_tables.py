"""Pages about the tables of nsys stats and ncu."""

from collections import Counter
from collections.abc import Iterator, Sequence

from stepguard.lab.nsys_ncu_csv import NcuRow, Stats, StatsTable
from stepguard.lab.trace_page import WIDTH
from stepguard.report.kernel_names import short
from stepguard.report.table import aligned, fitted
from stepguard.trace.kernel_classes import Classes


def stats_page(
    tables: Sequence[StatsTable], classes: Classes, top: int, width: int = WIDTH
) -> Iterator[str]:
    """Yield the reports, and the kernels by class."""
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
