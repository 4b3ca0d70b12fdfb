"""Charts as shapes with coordinates, which the template of the HTML report draws as inline SVG.

No script draws them, so the page may forbid all scripts, prints, and opens wherever a file opens. A
chart is narrow, so that its text can be read on a phone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepguard.core.text import counted, cut

WIDTH = 420.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 10.0, 8.0, 20.0  # of charts with an axis of values
HEIGHT = 150.0  # of these charts
LABELS, FIGURES = 128.0, 74.0  # widths of a bar's name and of its figure
LABEL_CHARACTERS = 20
TICK_CHARACTERS = 8  # that fit into LEFT
HEAD, BASE = "head", "base"  # the two sides; their colours are in the style sheet
MIDDLE, END = "m", "e"  # which part of a text is at its coordinate
MOST_COLUMNS = 90  # of a side's series; a column shows its least and its greatest value
ROW = 17.0


@dataclass(frozen=True)
class Shape:
    """A shape and its coordinates: "rect", "path", "dot" or "text"; ``css`` are its classes."""

    kind: str
    css: str
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    path: str = ""  # of lines, as SVG has it
    text: str = ""  # of a text; of others what a pointer on it shows


@dataclass(frozen=True)
class Chart:
    """A drawing: ``says`` is read aloud in its place, ``legend`` has a class and its meaning."""

    title: str
    says: str
    height: float
    shapes: tuple[Shape, ...]
    legend: tuple[tuple[str, str], ...] = ()
    width: float = WIDTH


@dataclass(frozen=True)
class Slot:
    """The values of one launch or pair, in order of time, by side."""

    label: str
    head: tuple[float, ...]
    base: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: its values by side, each with its text."""

    label: str
    head: float | None
    base: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Scale:
    """Turns values into coordinates along one axis."""

    low: float
    high: float
    begin: float  # coordinate of ``low``
    end: float

    def at(self, value: float) -> float:
        """Return the coordinate of a value, inside the axis."""
        share = (value - self.low) / (self.high - self.low)
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return round values from ``low`` to ``high``: at most one more than ``most``."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Return the range of values with some room, never an empty one."""
    low, high = min(values), max(values)
    room = share * (high - low) or 0.01 * abs(high) or 1.0
    return low - room, high + room


def _figure(value: float, step: float) -> str:
    """Return the text of a tick: "1.12e14" if that is shorter, where the figure has no room."""
    last = math.floor(math.log10(step) + 1e-9)
    digits = max(0, -last)
    plain = f"{round(value, digits) + 0.0:,.{digits}f}"
    if len(plain) <= TICK_CHARACTERS or not round(value, digits):
        return plain
    power = math.floor(math.log10(abs(value)) + 1e-9)
    return min(plain, f"{value / 10.0**power:.{max(0, power - last)}f}e{power}", key=len)


def slots_chart(title: str, unit: str, what: str, slots: Sequence[Slot]) -> Chart | None:
    """Return a chart of values in their order, slot by slot; None without values. ``what`` is what
    a slot is.

    Of a long series each column keeps the least and the greatest value.
    """
    values = [value for slot in slots for value in (*slot.head, *slot.base)]
    if not values:
        return None
    scale = Scale(*_padded(values), HEIGHT - BOTTOM, TOP)
    width = (WIDTH - LEFT - RIGHT) / len(slots)
    every = math.ceil(len(slots) / 12)
    columns = max(2, MOST_COLUMNS // len(slots))
    borders, paths = "", {BASE: "", HEAD: ""}
    texts = [Shape("text", END, LEFT - 5, HEIGHT - 6, text=what)]
    for number, slot in enumerate(slots):
        x = LEFT + number * width
        borders += f"M{short(x)} {TOP:g}V{HEIGHT - BOTTOM:g}" if number else ""
        if number % every == 0:
            text = cut(slot.label, max(4, int(width * every / 6)))
            texts.append(Shape("text", MIDDLE, x + width / 2, HEIGHT - 6, text=text))
        across = Scale(0, 1, x + 2, x + width - 2)
        paths[BASE] += _path(slot.base, across, scale, columns)
        paths[HEAD] += _path(slot.head, across, scale, columns)
    lines = [Shape("path", css, path=path) for css, path in paths.items() if path]
    legend = ((HEAD, "now"), (BASE, "before")) if paths[BASE] else ()
    says = f"{len(values)} values from {min(values):.4g} to {max(values):.4g} {unit}"
    shapes = (*_value_axis(scale, borders), *texts, *lines)
    return Chart(f"{title} [{unit}]", says, HEIGHT, shapes, legend)


@dataclass(frozen=True)
class Level:
    """The value of a level, and the numbers of its first and its last point."""

    first: int
    last: int
    value: float


@dataclass(frozen=True)
class Dot:
    """A value, when it was measured, in seconds, and what a pointer on it shows."""

    time_s: float
    value: float
    text: str


def points_chart(
    title: str,
    unit: str,
    dots: Sequence[Dot],
    levels: Sequence[Level],
    marks: Sequence[int],
    ends: tuple[str, str],
) -> Chart:
    """Return a chart of values over time, oldest first. The line breaks between two ``levels``.

    ``marks`` are the points that something else changed with, and ``ends`` the first and last day.
    """
    values, times = [dot.value for dot in dots], [dot.time_s for dot in dots]
    scale = Scale(*_padded(values), HEIGHT - BOTTOM, TOP)
    across = Scale(times[0], max(times[-1], times[0] + 1), LEFT + 4, WIDTH - RIGHT - 4)

    def before(points: Sequence[int]) -> str:
        places = ((times[at - 1] + times[at]) / 2 for at in points)
        return "".join(f"M{short(across.at(at))} {TOP:g}V{HEIGHT - BOTTOM:g}" for at in places)

    breaks = [level.first for level in levels[1:]]
    line = "".join(
        f"{'M' if at in (0, *breaks) else 'L'}{short(across.at(dot.time_s))} "
        f"{short(scale.at(dot.value))}"
        for at, dot in enumerate(dots)
    )
    drawn = (("break", before(breaks)), ("mark", before(marks)), (HEAD, line))
    shapes = [*_value_axis(scale, "")]
    shapes += [Shape("path", css, path=path) for css, path in drawn if path]
    for dot in dots:
        shapes.append(Shape("dot", HEAD, across.at(dot.time_s), scale.at(dot.value), text=dot.text))
    for level in levels:
        path = f"M{short(across.at(times[level.first]))} {short(scale.at(level.value))}"
        shapes.append(Shape("path", "level", path=f"{path}H{short(across.at(times[level.last]))}"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    below = (("", LEFT, ends[0]), (MIDDLE, middle, "time"), (END, WIDTH - RIGHT, ends[1]))
    shapes += [Shape("text", css, x, HEIGHT - 6, text=text) for css, x, text in below]
    legend = [("level", "level"), ("break", "the level changed")] * bool(levels)
    legend += [("mark", "something else changed")] * bool(marks)
    reach = f"{min(values):.4g} to {max(values):.4g} {unit}"
    says = f"{counted(len(values), 'point')} from {ends[0]} to {ends[1]}, {reach}"
    return Chart(f"{title} [{unit}]", says, HEIGHT, tuple(shapes), tuple(legend))


def short(value: float) -> str:
    """Return a coordinate in few characters."""
    return f"{round(value, 1):g}"


def _value_axis(scale: Scale, borders: str) -> Iterator[Shape]:
    marks = ticks(scale.low, scale.high)
    step = min((b - a for a, b in pairwise(marks)), default=(scale.high - scale.low) / 4)
    lines = [f"M{LEFT:g} {short(scale.at(value))}H{WIDTH - RIGHT:g}" for value in marks]
    yield Shape("path", "grid", path="".join(lines) + borders)
    for value in marks:
        yield Shape("text", END, LEFT - 5, scale.at(value) + 4, text=_figure(value, step))


def _path(series: Sequence[float], across: Scale, scale: Scale, columns: int) -> str:
    """Return a line through the values, or a dash for a single one."""
    if len(series) == 1:
        return f"M{short(across.at(0.5) - 3)} {short(scale.at(series[0]))}h6"
    points = []
    for begin, part in _columns(series, columns):
        x = short(across.at(begin / (len(series) - 1)))
        points += [f"{x} {short(scale.at(value))}" for value in part]
    return f"M{'L'.join(points)}" if points else ""


def _columns(series: Sequence[float], columns: int) -> Iterator[tuple[int, list[float]]]:
    """Yield where each column begins, with its least and greatest value in their order."""
    size = max(1, math.ceil(len(series) / columns))
    for begin in range(0, len(series), size):
        part = series[begin : begin + size]
        ends = sorted({part.index(min(part)), part.index(max(part))})
        yield begin, [part[at] for at in ends]


@dataclass(frozen=True)
class Interval:
    """A change in percent with the interval that decides; ``label`` says what it is of."""

    label: str
    estimate: float
    low: float
    high: float


def change_chart(
    title: str, changes: Sequence[float], interval: Interval, bands: Sequence[tuple[float, str]]
) -> Chart:
    """Return the changes of pairs, the first one above, and the interval beside the margins.

    ``bands`` are margins in percent and their names, the narrowest first.
    """
    across = _across(changes, interval, [margin for margin, _ in bands])
    rows = min(130.0, 9.0 * len(changes))
    height = TOP + rows + 34 + BOTTOM
    shapes: list[Shape] = []
    for margin, name in reversed(bands):
        x, end = across.at(-margin), across.at(margin)
        css = f"band{[name for _, name in bands].index(name)}"
        shapes.append(Shape("rect", css, x, TOP, end - x, height - TOP - BOTTOM, text=name))
    shapes += _change_axis(across, height)
    for number, change in enumerate(changes):
        y = TOP + rows * (number + 0.5) / len(changes)
        shapes.append(
            Shape("dot", HEAD, across.at(change), y, text=f"pair {number + 1}: {change:+.3f} %")
        )
    y = TOP + rows + 15
    low, high = across.at(interval.low), across.at(interval.high)
    text = f"{interval.low:+.2f} to {interval.high:+.2f} %"
    shapes += [
        Shape("rect", "interval", low, y - 4, max(1.0, high - low), 8, text=text),
        Shape("rect", "estimate", across.at(interval.estimate) - 1, y - 9, 2.5, 18),
        Shape("text", "", 2, y + 4, text=cut(interval.label, 10)),
    ]
    shapes += _beyond(across, interval, y)
    if changes:
        shapes.append(Shape("text", "", 2, TOP + 10, text="pairs"))
    legend = [(f"band{number}", f"{name} +-{margin:.3g} %")
              for number, (margin, name) in enumerate(bands)]  # fmt: skip
    says = f"{interval.label}: {interval.estimate:+.2f} %, {text}"
    legend.append(("interval", interval.label))
    return Chart(title, says, height, tuple(shapes), tuple(legend))


def _beyond(across: Scale, interval: Interval, y: float) -> Iterator[Shape]:
    """Yield an arrow and the bound where the interval leaves the chart."""
    for bound, edge, css, way in (
        (interval.low, across.low, "", -1),
        (interval.high, across.high, END, 1),
    ):
        if way * (bound - edge) > 0:
            x = across.at(edge)
            back = short(x - 2 * way)
            tip = f"M{short(x + 7 * way)} {short(y)}L{back} {short(y - 8)}V{short(y + 8)}"
            yield Shape("path", "arrow", path=tip)
            yield Shape("text", css, x + 7 * way, y + 18, text=f"{bound:+,.0f} %")


def _across(changes: Sequence[float], interval: Interval, margins: Sequence[float]) -> Scale:
    """Return the axis of changes. An interval of two pairs may reach beyond 1,000 %: it ends in an
    arrow at the edge, so that the margins stay visible.
    """
    bounds = [bound for margin in margins for bound in (-margin, margin)]
    most = 4 * max(map(abs, (*changes, interval.estimate, *bounds)))
    ends = (max(-most, interval.low), min(most, interval.high))
    low, high = _padded((*changes, interval.estimate, *ends, *bounds))
    # Room is for what ends inside; what goes on has none.
    low = -most if interval.low < -most else low
    high = most if interval.high > most else high
    return Scale(low, high, LABELS / 2, WIDTH - 2.4 * RIGHT)


def _change_axis(across: Scale, height: float) -> Iterator[Shape]:
    marks = ticks(across.low, across.high, 5)
    step = min((b - a for a, b in pairwise(marks)), default=1.0)
    for value in marks:
        x, is_zero = across.at(value), abs(value) < step / 1e6
        path = f"M{short(x)} {TOP:g}V{short(height - BOTTOM)}"
        yield Shape("path", "zero" if is_zero else "grid", path=path)
        text = f"{'' if value < 0 or is_zero else '+'}{_figure(value, step)} %"
        yield Shape("text", MIDDLE, x, height - 6, text=text)


def bar_chart(title: str, says: str, bars: Sequence[Bar]) -> Chart | None:
    """Return a chart with a row for each bar, of one side or two; None if all values are zero or
    missing. Negative values go left.
    """
    values = [v for bar in bars for v in (bar.head, bar.base) if v is not None]
    if not values or not any(values):
        return None
    two = any(bar.base is not None for bar in bars)
    across = Scale(min(0.0, *values), max(0.0, *values), LABELS, WIDTH - FIGURES)
    row = ROW + (8 if two else 0)
    shapes: list[Shape] = []
    for number, bar in enumerate(bars):
        y = TOP + number * row
        label, middle = cut(bar.label, LABEL_CHARACTERS), y + row / 2 + 3
        shapes.append(Shape("text", "label e", LABELS - 6, middle, text=label))
        thick = (row - 5) / (2 if two else 1)
        for place, (css, value) in enumerate(((HEAD, bar.head), (BASE, bar.base))):
            if value is None:
                continue
            begin, end = sorted((across.at(0.0), across.at(value)))
            top = y + place * thick
            text = f"{bar.label}: {bar.text}"
            shapes.append(
                Shape("rect", css, begin, top, max(0.5, end - begin), thick - 1, "", text)
            )
        shapes.append(Shape("text", "", WIDTH - FIGURES + 6, middle, text=bar.text))
    zero = across.at(0.0)
    height = TOP + len(bars) * row + 4
    axis = f"M{short(zero)} {TOP - 3:g}V{short(height - 4)}"
    shapes.append(Shape("path", "zero", path=axis))
    legend = ((HEAD, "now"), (BASE, "before")) if two else ()
    return Chart(title, says, height, tuple(shapes), legend)
