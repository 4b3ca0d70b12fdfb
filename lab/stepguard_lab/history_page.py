"""A history as one HTML file: a chart and a table for each series."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepguard import __version__
from stepguard.core.metrics import METRICS, format_value
from stepguard.core.text import short_hash
from stepguard_lab.charts import Chart, Level, points_chart
from stepguard_lab.history_table import card_of, point_rows, said
from stepguard_lab.history_view import Anchor, View, day
from stepguard_lab.report_model import Table, table

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

    return TEMPLATES.get_template("history.html").render(
        title="History",
        version=__version__,
        anchor=anchor.name if anchor else "",
        series=[_series(at, view, anchor) for at, view in enumerate(views, start=1)],
    )


def _series(number: int, view: View, anchor: Anchor | None) -> _Series:
    series, metric = view.series, view.series.metric
    points = [
        (value, f"{day(point)} {short_hash(point.commit)}: {format_value(metric, value)}")
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
            points,
            list(_levels(view)),
            [mark.at - 0.5 for mark in view.marks if mark.at],
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
