"""Orders, intervals and tables of A/B blocks; the pictures that they are drawn as."""

import itertools
import math
from xml.etree import ElementTree

import pytest

from studies.common.series import (
    balanced,
    clock_text,
    half_width,
    mirrored,
    ratio,
    shares,
    slowest,
    table,
)
from studies.unsynced_clock.bars import grouped_bars


def test_every_other_series_runs_backwards():
    """Over two series a linear drift adds the same to every name."""
    names = ["P", "PS", "U"]
    ran = mirrored(names, 0) + mirrored(names, 1)
    at = {name: sum(i for i, one in enumerate(ran) if one == name) for name in names}
    assert ran == ["P", "PS", "U", "U", "PS", "P"] and len(set(at.values())) == 1


@pytest.mark.parametrize("count", [2, 4, 6, 8])
def test_each_place_and_each_neighbour_once(count):
    """As many series as names: everyone stands in every place once, and follows everyone once."""
    names = [f"v{i}" for i in range(count)]
    square = [balanced(names, series) for series in range(count)]
    assert all(sorted(order) == names for order in square)
    assert all(sorted(column) == names for column in zip(*square, strict=True))
    followed = [pair for order in square for pair in itertools.pairwise(order)]
    assert len(set(followed)) == len(followed) == count * (count - 1)


def test_an_odd_number_has_no_balanced_order():
    """Refused, with the number."""
    with pytest.raises(ValueError, match="3 names"):
        balanced(["P", "PS", "U"], 0)


def test_the_slowest_rank_is_the_step():
    """And no rank at all is no time."""
    assert slowest([3.0, 5.0, 4.0]) == 5.0
    with pytest.raises(ValueError, match="no rank"):
        slowest([])


def test_a_ratio_of_known_pairs():
    """Two pairs of 2 and 8: their geometric mean is 4; t at one degree of freedom is 12.706."""
    found = ratio([(2.0, 1.0), (8.0, 1.0)])
    assert found["ratio"] == pytest.approx(4.0)
    half = 12.7062 * (math.log(8) - math.log(2)) / math.sqrt(2) / math.sqrt(2)
    low, high = found["interval_95_pct"]
    assert low == pytest.approx(100 * math.expm1(math.log(4) - half), rel=1e-4)
    assert high == pytest.approx(100 * math.expm1(math.log(4) + half), rel=1e-4)
    assert found["pairs"] == 2


def test_one_pair_has_no_interval():
    """None, rather than a width of zero."""
    assert ratio([(2.0, 1.0)])["interval_95_pct"] is None
    assert half_width([1.0]) is None


@pytest.mark.parametrize("pairs", [[], [(0.0, 1.0)], [(1.0, math.inf)], [(-1.0, 1.0)]])
def test_no_ratio_of_nonsense(pairs):
    """Nothing, zero, infinity and negative times are refused."""
    with pytest.raises(ValueError, match="positive finite"):
        ratio(pairs)


def test_shares_sum_to_a_hundred():
    """Largest first; of nothing there are none."""
    assert shares({"a": 1, "b": 3}) == {"b": 75.0, "a": 25.0}
    assert list(shares({"a": 1, "b": 3})) == ["b", "a"]
    assert shares({}) == {}


def test_a_table_is_markdown():
    """One line a row; figures stand to the right."""
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"


def test_time_left_is_written_out():
    """Minutes and seconds, never negative."""
    assert [clock_text(s) for s in (0, 5, 65.4, -3)] == ["0:00", "0:05", "1:05", "0:00"]


def bars():
    """Two names, the second value of the first one half as long."""
    return [("A", "x < y", (10.0, 5.0), ("10 ms", "5 ms")), ("B", "", (8.0, 8.0), ("8", "8"))]


def test_bars_are_as_long_as_their_values():
    """The picture is well-formed XML, whatever the text, and to scale."""
    root = ElementTree.fromstring(grouped_bars("T & t", ("true", "read"), bars()))
    drawn = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "17"]
    widths = [float(r.get("width")) for r in drawn]
    assert [w / widths[0] for w in widths] == pytest.approx([1, 0.5, 0.8, 0.8], abs=1e-3)
    said = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"T & t", "x < y", "10 ms", "5 ms"} <= set(said)


def test_nothing_is_not_drawn():
    """No rows, or zeros only, are refused."""
    for rows in ([], [("A", "", (0.0, 0.0), ("", ""))]):
        with pytest.raises(ValueError, match="nothing to draw"):
            grouped_bars("t", ("a", "b"), rows)
