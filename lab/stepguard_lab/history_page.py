"""A history as one HTML file: what changed, the largest first, and a chart for each series of
several points.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from stepguard import __version__
from stepguard.core.metrics import METRICS, format_value
from stepguard.core.text import short_hash
from stepguard_lab.charts import Chart, Dot, Level, points_chart
from stepguard_lab.history_store import Measurement
from stepguard_lab.history_table import card_of, moved, point_rows, said
from stepguard_lab.history_view import Anchor, View, day, log_ratio
from stepguard_lab.report_model import Cell, Table, table

BEGINS = "<!DOCTYPE html>\n<!-- stepguard history -->"


@dataclass(frozen=True)
class _Series:
    """A series as the template shows it."""

    number: int
    title: str
    crept: bool
    chart: Chart
    said: list[str]
    table: Table


def page(views: Sequence[View], anchor: Anchor | None) -> str:
    """Return the page."""
    # Imported here: every command imports this module, and most do without jinja2.
    from stepguard_lab.html_templates import TEMPLATES

    several = [view for view in views if len(view.series.points) > 1]
    # Of changes of one size, as all from zero are, the newest is first; the rest keeps its order.
    several.sort(key=_last_change, reverse=True)
    several.sort(key=lambda view: _order(view, view.size))
    changed = _changed(several, anchor)
    series = [_series(at, view, anchor) for at, view in enumerate(several, start=1)]
    once = _once([view for view in views if len(view.series.points) == 1])
    tables = (*changed, *once, *(one.table for one in series))
    return TEMPLATES.get_template("history.html").render(
        title=_title(several),
        heads=dict.fromkeys(table.head for table in tables),
        version=__version__,
        anchor=anchor.name if anchor else "",
        changed=changed,
        series=series,
        once=once,
    )


def _title(views: Sequence[View]) -> str:
    changed = sum(view.size > 0 for view in views)
    return f"History: {changed} of {len(views)} series changed" if views else "History"


def _changed(views: Sequence[View], anchor: Anchor | None) -> tuple[Table, ...]:
    """Return a row for each change of level and each creep, the largest first."""
    rows: list[tuple[tuple[bool, bool, float], tuple[str | Cell, ...]]] = []
    for number, view in enumerate(views, start=1):
        series = view.series
        front = (Cell(series.case_id, f"#s{number}"), series.metric, card_of(view))
        for change in view.changes:
            beside = view.beside(change) or "nothing else changed"
            row = (*front, moved(view, change), view.range_of(change), beside)
            rows.append((_order(view, abs(log_ratio(change.change_pct))), row))
        if view.creep and view.crept and anchor:
            creep = view.creep
            crept = f"crept, [{creep.low_pct:+.2f}, {creep.high_pct:+.2f}] %"
            row = (*front, f"{creep.change_pct:+.2f} %", anchor.name, crept)
            rows.append((_order(view, abs(log_ratio(creep.change_pct))), row))
    rows.sort(key=lambda row: row[0])
    head = ("case", "metric", "card", "change", "since", "what else changed")
    shown = [row for _, row in rows]
    return table("What changed, the largest first", head, shown, 5, len(rows), ends_in_text=True)


def _last_change(view: View) -> str:
    return view.series.points[view.changes[-1].at].date if view.changes else ""


def _order(view: View, size: float) -> tuple[bool, bool, float]:
    """Return what sorts changes: times before counters, the largest first."""
    return not size, METRICS[view.series.metric].kind != "time", -size


def _once(views: Sequence[View]) -> tuple[Table, ...]:
    """Return a row for each series of one point: there is nothing to draw."""
    rows = [
        (
            view.series.case_id,
            view.series.metric,
            card_of(view),
            f"{day(view.series.points[0])} {short_hash(view.series.points[0].commit)}",
            format_value(view.series.metric, view.series.values[0]),
        )
        for view in views
    ]
    head = ("case", "metric", "card", "measured", "value")
    return table("Measured once", head, rows, 4, len(rows))


def _seconds(point: Measurement) -> float:
    found = datetime.fromisoformat(point.date)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _series(number: int, view: View, anchor: Anchor | None) -> _Series:
    series, metric = view.series, view.series.metric
    dots = [
        Dot(
            _seconds(point),
            value,
            f"{day(point)} {short_hash(point.commit)}: {format_value(metric, value)}",
        )
        for point, value in zip(series.points, series.values, strict=True)
    ]
    rows = point_rows(view)[::-1]
    head = ("date", "commit", f"{metric} [{METRICS[metric].unit}]", "what else changed")
    (shown,) = table("newest first", head, rows, left=2, most=len(rows), ends_in_text=True)
    return _Series(
        number=number,
        title=f"{series.case_id} {metric} on {card_of(view)}",
        crept=view.crept,
        chart=points_chart(
            metric,
            METRICS[metric].unit,
            dots,
            list(_levels(view)),
            [mark.at for mark in view.marks if mark.at],
            (day(series.points[0]), day(series.points[-1])),
        ),
        said=list(said(view, anchor)),
        table=shown,
    )


def _levels(view: View) -> Iterator[Level]:
    begin = 0
    for at, change in enumerate(view.changes):
        yield Level(begin, change.at - 1, change.before)
        begin = change.at
        if at == len(view.changes) - 1:
            yield Level(begin, len(view.series.points) - 1, change.after)
