"""Charts: nothing is drawn outside, and what is drawn is what was measured."""

import re

import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from stepguard_lab.charts import (
    WIDTH,
    Bar,
    Dot,
    Interval,
    Level,
    Slot,
    bar_chart,
    change_chart,
    points_chart,
    slots_chart,
    ticks,
)

VALUES = st.floats(1e-3, 1e6)
SERIES = st.lists(VALUES, max_size=400).map(tuple)
PERCENT = st.floats(-90, 1e3)


def points_of(chart):
    """Every coordinate of a chart, ends of rectangles included."""
    for shape in chart.shapes:
        if shape.kind == "path":
            yield from ends_of(shape.path)
        else:
            yield shape.x, shape.y
            yield shape.x + shape.width, shape.y + shape.height


def ends_of(path):
    """The points of a path of SVG."""
    x = y = 0.0
    for letter, text in re.findall(r"([A-Za-z])([^A-Za-z]*)", path):
        numbers = [float(one) for one in text.split()]
        if letter in "ML":
            x, y = numbers
        x = {"H": numbers[0], "h": x + numbers[0]}.get(letter, x)
        y = numbers[0] if letter == "V" else y
        yield x, y


def check_inside(chart):
    """All of it is in the picture, and the numbers are numbers."""
    for x, y in points_of(chart):
        assert -0.1 <= x <= WIDTH + 0.1 and -0.1 <= y <= chart.height + 0.1, (x, y)
    assert not re.search("nan|inf", chart.says)


@PROPERTY
@given(st.lists(st.tuples(SERIES, SERIES), min_size=1, max_size=25))
def test_single_steps_stay_in_the_picture(slots):
    """Of any number of launches, of one side or two, of any length."""
    slots = [Slot(str(number), *both) for number, both in enumerate(slots)]
    chart = slots_chart("Steps", "ms", "pair", slots)
    if any(slot.head or slot.base for slot in slots):
        check_inside(chart)
    else:
        assert chart is None


@PROPERTY
@given(st.lists(PERCENT, max_size=60), PERCENT, st.floats(0, 500), st.floats(0.01, 50))
def test_changes_stay_in_the_picture(changes, estimate, half, margin):
    """And so do the interval and both margins."""
    interval = Interval("interval", estimate, estimate - half, estimate + half)
    bands = ((margin, "ignored"), (2 * margin, "matters from"))
    check_inside(change_chart("Change", changes, interval, bands))


@PROPERTY
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6) | st.none()), max_size=40))
def test_bars_stay_in_the_picture(values):
    """Of either sign."""
    chart = bar_chart("Bars", "many", [Bar("a", one, other, "x") for one, other in values])
    if any(one or other for one, other in values):
        check_inside(chart)
    else:
        assert chart is None


@PROPERTY
@given(st.lists(VALUES, min_size=1, max_size=200), st.data())
def test_points_stay_in_the_picture(values, data):
    """And so do their levels and marks; each point is a dot, with what a pointer on it shows."""
    last = len(values) - 1
    places = st.integers(0, last)
    first, end = sorted(data.draw(st.tuples(places, places)))
    levels = [Level(first, end, values[first])]
    marks = list(range(1, last + 1, 7))
    points = [Dot(1e5 * at, value, f"point {at}") for at, value in enumerate(values)]
    chart = points_chart("step_ms", "ms", points, levels, marks, ("2026-01-01", "2026-02-01"))
    check_inside(chart)
    dots = [shape.text for shape in chart.shapes if shape.kind == "dot"]
    assert dots == [dot.text for dot in points]


def test_a_spike_in_a_long_series_is_seen():
    """A column keeps its greatest value, so that one slow step among thousands is drawn."""
    steps = [10.0] * 5000
    steps[3210] = 30.0
    chart = slots_chart("Steps", "ms", "launch", [Slot("1", tuple(steps))])
    (line,) = [one for one in chart.shapes if one.css == "head"]
    heights = [y for _, y in ends_of(line.path)]
    assert len(heights) < 250 and sorted(heights)[0] < sorted(heights)[1] - 50


@pytest.mark.parametrize(("low", "high", "expected"), [
    (0, 10, [0, 5, 10]),
    (9.9, 10.1, [9.9, 9.95, 10.0, 10.05, 10.1]),
    (-1, 1, [-1, -0.5, 0, 0.5, 1]),
])  # fmt: skip
def test_ticks_are_round(low, high, expected):
    """One, two or five of a power of ten."""
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("value", "expected"), [
    (1.12e14, ["1.11e14", "1.12e14", "1.13e14"]),
    (7.5e9, ["7.45e9", "7.50e9", "7.55e9"]),
    (1.23e-5, ["1.22e-5", "1.23e-5", "1.24e-5"]),
    (4.5e10, ["4.50e10"]),  # a single one
    (4.5e-3, ["0.00450"]),
    (250.0, ["248", "250", "252"]),
    (0.0, ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
])  # fmt: skip
def test_the_text_of_a_tick_has_room(value, expected):
    """FLOPs of a step, bytes and nanoseconds in ms, too: as round as the others."""
    chart = points_chart("x", "", [Dot(0.0, value, "")], [], [], ("", ""))
    texts = [shape.text for shape in chart.shapes if shape.kind == "text" and shape.css == "e"]
    assert [text for text in texts if text] == expected
