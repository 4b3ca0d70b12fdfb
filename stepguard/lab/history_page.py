"""A history as one HTML file: a chart and a table for each series, nothing loaded from elsewhere.

Charts are SVG that the page holds, so they are there without a script, in print and in mail.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepguard.core.metrics import METRICS, format_value
from stepguard.core.text import short_hash
from stepguard.lab.history_table import card_of, said
from stepguard.lab.history_view import Anchor, View, day

BEGINS = "<!doctype html>\n<!-- stepguard history -->"
WIDTH, HEIGHT, PAD = 640, 140, 8  # of a chart, in its own units


@dataclass(frozen=True)
class _Chart:
    """A series as the template draws it."""

    number: int
    title: str
    label: str
    metric: str
    crept: bool
    run: str  # numbers, so that the template need neither escape nor bound it
    dots: list[tuple[float, float, str]]
    levels: list[tuple[float, float, float]]
    marks: list[tuple[float, str]]
    said: list[str]
    rows: list[tuple[str, str, str, str]]


def page(views: Sequence[View], anchor: Anchor | None) -> str:
    """Return the page. Raises ModuleNotFoundError without jinja2."""
    # Here, because each command of the gate imports this module.
    from stepguard.lab.html_templates import TEMPLATES

    return TEMPLATES.get_template("history.html").render(
        anchor=anchor.name if anchor else "",
        series=[_chart(at, view, anchor) for at, view in enumerate(views, start=1)],
        width=WIDTH,
        height=HEIGHT,
    )


def _chart(number: int, view: View, anchor: Anchor | None) -> _Chart:
    series = view.series
    unit, values = METRICS[series.metric].unit, series.values
    low, high = min(values), max(values)
    step = (WIDTH - 2 * PAD) / max(1, len(values) - 1)
    scale = (HEIGHT - 2 * PAD) / ((high - low) or 1.0)

    def across(at: float) -> float:
        return round(PAD + step * at, 1)

    def up(value: float) -> float:
        return round(HEIGHT - PAD - scale * (value - low), 1)

    dots = [
        (
            across(at),
            up(value),
            f"{day(point)} {short_hash(point.commit)}: {format_value(series.metric, value)}",
        )
        for at, (point, value) in enumerate(zip(series.points, values, strict=True))
    ]
    return _Chart(
        number=number,
        title=f"{series.case_id} {series.metric} on {card_of(view)}",
        label=(
            f"{len(values)} points from {day(series.points[0])} to {day(series.points[-1])}, "
            f"{format_value(series.metric, low)} to {format_value(series.metric, high)} {unit}"
        ),
        metric=f"{series.metric} [{unit}]",
        crept=view.crept,
        run=" ".join(f"{x},{y}" for x, y, _ in dots),
        dots=dots,
        levels=[(across(x1), across(x2), up(value)) for x1, x2, value in _levels(view)],
        marks=[(across(mark.at - 0.5), mark.text) for mark in view.marks if mark.at],
        said=list(said(view, anchor)),
        rows=[_row(view, at) for at in range(len(values) - 1, -1, -1)],
    )


def _levels(view: View) -> Iterator[tuple[int, int, float]]:
    """Yield the first and last point of each level, and its value."""
    begin = 0
    for at, change in enumerate(view.changes):
        yield begin, change.at - 1, change.before
        begin = change.at
        if at == len(view.changes) - 1:
            yield begin, len(view.series.points) - 1, change.after


def _row(view: View, at: int) -> tuple[str, str, str, str]:
    point, value = view.series.points[at], view.series.values[at]
    beside = "; ".join(mark.text for mark in view.marks if mark.at == at)
    return (
        point.date[:16].replace("T", " "),
        short_hash(point.commit),
        format_value(view.series.metric, value),
        beside,
    )
