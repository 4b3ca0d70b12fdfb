"""Orders, intervals and tables of A/B blocks; the pictures that they are drawn as."""

import itertools
import math

import pytest

from studies.common.series import (
    balanced,
    clock_text,
    half_width,
    mirrored,
    ratio,
    slowest,
    table,
)


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


def test_a_table_is_markdown():
    """One line a row; figures stand to the right."""
    assert table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |\n"


def test_time_left_is_written_out():
    """Minutes and seconds, never negative."""
    assert [clock_text(s) for s in (0, 5, 65.4, -3)] == ["0:00", "0:05", "1:05", "0:00"]
