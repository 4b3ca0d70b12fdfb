"""The rows of a sweep as a table, as CSV and as a chart."""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepguard.core.case import Scalar
from stepguard.core.metrics import METRICS, format_value
from stepguard.core.profile import grouped
from stepguard.core.reasons import Reason
from stepguard.report.table import LOG_WIDTH, aligned
from stepguard_lab.sweep_file import MEASURED, Row, SweepFile

HEADING = 12  # columns of a line of a heading: "step_ms [ms]"
_STYLES = ("-", "--", ":", "-.")  # each for ten lines: there are ten colours


def table(content: SweepFile, width: int = 0) -> Iterator[str]:
    """Yield the rows with the columns that the sweep asks for, and the status of each.

    If the table is wider than ``width`` columns, headings get several lines, and as many of the
    first parameters as needed move to a line of their own above their rows. ``width`` 0 is for a
    file or a log: each row has one line, and headings get several if the table is wider than
    LOG_WIDTH.
    """
    names, columns = list(content.sweep.grid), content.sweep.report.columns
    header = [*names, *(f"{name} {_unit(name)}".rstrip() for name in columns), "status"]
    rows = [
        [
            *(str(row.parameters[name]) for name in names),
            *(_cell(row, name) for name in columns),
            row.status if row.status == MEASURED else Reason[row.status].phrase,
        ]
        for row in content.rows
    ]
    lines = list(_grouped(header, rows, above=0))
    for above in range(len(names) if width else 1):
        if max(map(len, lines)) > (width or LOG_WIDTH):
            narrow = [*header[:above], *map(_narrow, header[above:])]
            lines = list(_grouped(narrow, rows, above))
    yield from lines


def _grouped(header: list[str], rows: list[list[str]], above: int) -> Iterator[str]:
    """Yield the table. The first ``above`` columns are on a line above the rows that share them."""
    cells = [row[above:] for row in (header, *rows)]
    texts = list(aligned(cells, left=(len(cells[0]) - 1,)))
    first = len(texts) - len(rows)
    yield from texts[:first]
    before: list[str] = []
    for row, text in zip(rows, texts[first:], strict=True):
        if row[:above] != before:
            before = row[:above]
            yield named(dict(zip(header, before, strict=False)))
        yield text


def named(parameters: Mapping[str, Scalar]) -> str:
    """Return "width 64, seq 1024"."""
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def _narrow(heading: str) -> str:
    """Break a heading into lines, between its words."""
    lines = [""]
    for word in re.findall("[_: ]?[^_: ]+", heading):
        if lines[-1] and len(lines[-1] + word) > HEADING:
            lines.append("")
        lines[-1] += word
    return "\n".join(map(str.strip, lines))


def _cell(row: Row, column: str) -> str:
    value = row.values.get(column)
    return "" if value is None else format_value(column.partition(":")[0], value)


def _unit(column: str) -> str:
    unit = METRICS[column.partition(":")[0]].unit
    return "" if unit == "B" else f"[{unit}]"  # the cells themselves have MiB or GiB


def write_csv(content: SweepFile, path: Path) -> None:
    """Write every row with all of its figures, as measured."""
    names = list(content.sweep.grid)
    figures = sorted({name for row in content.rows for name in row.values})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "status", "message", *figures])
        for row in content.rows:
            parameters = [row.parameters[name] for name in names]
            values = [row.values.get(name, "") for name in figures]
            writer.writerow([*parameters, row.status, row.message, *values])


def write_plot(content: SweepFile, path: Path) -> str:
    """Draw the chart that the sweep asks for. Return why there is none; empty if there is one.

    A row that was not measured is a cross on the axis.
    """
    plot = content.sweep.report.plot
    assert plot is not None
    path.unlink(missing_ok=True)  # the chart of an earlier call may show other rows
    if not any(_known(content.rows, column) for column in plot.y):
        return "no row has a value of it"
    try:
        import matplotlib
    except ImportError:
        return "pip install matplotlib, then the same command draws it"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(plot.y), figsize=(6 * len(plot.y), 4), squeeze=False, layout="constrained"
    )
    drawn = zip(panels[0], plot.y, strict=True)
    crosses = sum(_draw(axes, content, plot.x, column) for axes, column in drawn)
    handles, labels = panels[0][0].get_legend_handles_labels()
    if len(labels) > 1:
        columns = max(1, int(figure.get_figwidth() / (0.6 + 0.075 * max(map(len, labels)))))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize="small")
        figure.set_figheight(4 + 0.2 * math.ceil(len(labels) / columns))
    cross = "; x: no value" if crosses else ""
    figure.suptitle(f"{content.sweep.workload}, {content.machine}{cross}")
    figure.savefig(path)
    pyplot.close(figure)
    return ""


def _known(rows: Sequence[Row], column: str) -> list[Row]:
    return [row for row in rows if row.status == MEASURED and column in row.values]


def _draw(axes: Any, content: SweepFile, x: str, column: str) -> int:
    """Draw a line for each combination of the other parameters. If all values of ``x`` are positive
    numbers, its axis is logarithmic, and so is that of a column whose values differ. Return the
    number of crosses.
    """
    crosses = 0
    unit = METRICS[column.partition(":")[0]].unit
    unit, of_unit = ("MiB", 2.0**20) if unit == "B" else (unit, 1.0)
    for number, (label, rows) in enumerate(_lines(content, x).items()):
        known = _known(rows, column)
        at = [row.parameters[x] for row in known]
        values = [row.values[column] / of_unit for row in known]
        (drawn,) = axes.plot(at, values, _STYLES[number // 10 % 4], marker="o", label=label)
        unknown = [row.parameters[x] for row in rows if row not in known]
        crosses += len(unknown)
        bottom = axes.get_xaxis_transform()
        axes.plot(unknown, [0.02] * len(unknown), "x", color=drawn.get_color(), transform=bottom)
    axes.set(xlabel=x, ylabel=f"{column} [{unit}]")
    numbers = [n for n in content.sweep.grid[x] if isinstance(n, int | float) and n > 0]
    if numbers == content.sweep.grid[x]:
        axes.set_xscale("log", base=2)
        if len({row.values.get(column) for row in content.rows}) > 1:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            low, high = axes.get_ylim()
            if high < 20 * low:  # the axis may have only one power of ten to read values from
                axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_xticks(numbers, [str(n) for n in numbers], fontsize="x-small")
    return crosses


def _lines(content: SweepFile, x: str) -> dict[str, list[Row]]:
    """Return the rows grouped by the parameters beside ``x`` that have several values."""
    varied = [name for name, values in content.sweep.grid.items() if len(values) > 1 and name != x]
    return grouped(content.rows, lambda row: named({name: row.parameters[name] for name in varied}))
