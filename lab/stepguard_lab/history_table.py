"""A history as text: sparklines, tables, and a line for each change of level."""

import math
from collections.abc import Iterator, Sequence

from stepguard.core.metrics import METRICS, format_value
from stepguard.core.text import short_hash
from stepguard.machine.interpreter import as_typed
from stepguard.report.table import aligned
from stepguard_lab.change_points import Change
from stepguard_lab.history_view import Anchor, View, day

BARS = "".join(map(chr, range(0x2581, 0x2589)))  # blocks of one to eight eighths
PLAIN_BARS = "_.-=+*#@"  # for an output that cannot show them
SPARKS = 40  # columns of a sparkline, at most


def sparkline(values: Sequence[float], bars: str = BARS, width: int = SPARKS) -> str:
    """Return the newest ``width`` values as bars, between the least and the largest of them."""
    shown = values[-width:]
    low, high = min(shown), max(shown)
    if low == high:
        return bars[0] * len(shown)
    return "".join(bars[round((len(bars) - 1) * (value - low) / (high - low))] for value in shown)


def overview(views: Sequence[View], bars: str = BARS) -> Iterator[str]:
    """Yield a row for each series."""
    header = ["case", "metric", "card", "points", "newest", "history", "last change"]
    rows = [
        [
            view.series.case_id,
            view.series.metric,
            card_of(view),
            str(len(view.series.points)),
            format_value(view.series.metric, view.series.values[-1]),
            sparkline(view.series.values, bars, SPARKS // 2),
            _last_change(view),
        ]
        for view in views
    ]
    yield from aligned([header, *rows], left=(0, 1, 2, 5, 6))


def card_of(view: View) -> str:
    """Return the card of a series as a table names it: the begin of its UUID, or the machine."""
    return view.series.card[:12] or view.series.machine


def _last_change(view: View) -> str:
    if not view.changes:
        return ""
    last = view.changes[-1]
    return f"{moved(view, last)} {day(view.series.points[last.at])}"


def moved(view: View, change: Change) -> str:
    """Return how far a level moved: "+1.02 %", or "6 -> 7" of a counter."""
    metric = view.series.metric
    if METRICS[metric].kind == "counter" or not math.isfinite(change.change_pct):
        return f"{format_value(metric, change.before)} -> {format_value(metric, change.after)}"
    return f"{change.change_pct:+.2f} %"


def story(view: View, anchor: Anchor | None, bars: str = BARS, top: int = 20) -> Iterator[str]:
    """Yield all that is said of a series: sparkline, changes, creep, and the ``top`` newest
    points.
    """
    series = view.series
    unit = METRICS[series.metric].unit
    yield f"{series.case_id} {series.metric} [{unit}] on {series.card or series.machine}"
    low, high = (format_value(series.metric, limit(series.values)) for limit in (min, max))
    yield f"  {sparkline(series.values, bars)}  {low} to {high}, {len(series.points)} points"
    yield from (f"  {line}" for line in said(view, anchor))
    header = ["date", "commit", series.metric, "what else changed"]
    yield from (f"  {line}" for line in aligned([header, *point_rows(view)[-top:]], left=(0, 1, 3)))


def point_rows(view: View) -> list[tuple[str, str, str, str]]:
    """Return a row for each point, oldest first: date, commit, value, and what else changed."""
    series = view.series
    return [
        (
            point.date[:16].replace("T", " "),
            short_hash(point.commit),
            format_value(series.metric, value),
            "; ".join(mark.text for mark in view.marks if mark.at == at),
        )
        for at, (point, value) in enumerate(zip(series.points, series.values, strict=True))
    ]


def said(view: View, anchor: Anchor | None) -> Iterator[str]:
    """Yield a sentence for each change of level, each other mark, and what is known of creep."""
    for change in view.changes:
        beside = view.beside(change) or "nothing else changed"
        yield f"level {moved(view, change)} at {view.range_of(change)}: {beside}"
    changed = {change.at for change in view.changes}
    for mark in view.marks:
        if mark.at and mark.at not in changed:
            point = view.series.points[mark.at]
            yield f"{day(point)} {short_hash(point.commit)}, {mark.text}"
    if view.unsearched:
        yield f"no change points were looked for: {view.unsearched}"
    if view.creep and anchor:
        yield creep_text(view, anchor)


def creep_text(view: View, anchor: Anchor) -> str:
    """Return how far the newest level is from the anchor's. If it crept, add the command that
    judges it.
    """
    assert view.creep is not None
    low, high = view.creep.low_pct, view.creep.high_pct
    interval = f"{view.creep.change_pct:+.2f} % [{low:+.2f}, {high:+.2f}]"
    if not view.crept:
        return f"since {anchor.name}: {interval}"
    pairs = as_typed(f"pytest perf_tests --perf-against={anchor.rev}")
    return f"slower than at {anchor.name}: {interval}; judge it in pairs: {pairs}"
