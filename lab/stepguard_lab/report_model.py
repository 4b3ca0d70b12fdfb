"""The parts of a report, as the template takes them: tables, charts and sections."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stepguard.core.text import cut
from stepguard_lab.charts import Chart

MOST_ROWS = 30  # of a table of a case; the kept evidence has all rows
MANY_CASES, FEW_ROWS = 50, 8  # in a run of more than 50 cases a table has at most 8 rows
CELL_CHARACTERS = 240


@dataclass(frozen=True)
class Cell:
    """A cell's text, and the address that it leads to; ``css`` names a verdict's colour."""

    text: str
    href: str = ""
    css: str = ""


@dataclass(frozen=True)
class Table:
    """A table. The first ``left`` columns are text, and the last one if ``ends_in_text``. All
    others are figures.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left: int = 1
    more: int = 0  # rows that it leaves out
    ends_in_text: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a case's report. ``picture`` is an SVG that the report made, with escaped texts."""

    title: str
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    picture: str = ""

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to show."""
        return not (self.charts or self.tables or self.notes or self.picture)


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str | Cell]],
    left: int = 1,
    most: int = MOST_ROWS,
    ends_in_text: bool = False,
) -> tuple[Table, ...]:
    """Return a table of at most so many rows, or none where there is no row. A column without a
    text is left out; a long text is cut.
    """
    cells = [[_cell(content) for content in row] for row in rows]
    if not cells:
        return ()
    kept = [at for at in range(len(head)) if any(row[at].text for row in cells)]
    body = tuple(tuple(row[at] for at in kept) for row in cells[:most])
    texts = sum(at < left for at in kept)
    more = max(0, len(cells) - most)
    is_last = ends_in_text and kept[-1] == len(head) - 1
    return (Table(caption, tuple(head[at] for at in kept), body, texts, more, is_last),)


def shortened(section: Section, most: int) -> Section:
    """Return the section with at most so many rows in each table."""
    tables = [
        replace(full, rows=full.rows[:most], more=full.more + max(0, len(full.rows) - most))
        for full in section.tables
    ]
    return replace(section, tables=tuple(tables))


def _cell(content: str | Cell) -> Cell:
    cell = content if isinstance(content, Cell) else Cell(content)
    return Cell(cut(cell.text, CELL_CHARACTERS), cell.href, cell.css)


def charts(*drawn: Chart | None) -> tuple[Chart, ...]:
    """Return the charts without None, which stands for a chart without data."""
    return tuple(chart for chart in drawn if chart is not None)


def signed(value: float, digits: int = 2) -> str:
    """Return a value with its sign, and never "-0.00"."""
    return f"{round(value, digits) + 0.0:+,.{digits}f}"
