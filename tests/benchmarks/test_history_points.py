"""history_points: the noise is that of kept launches, and a step is found in it at its point."""

import random

import pytest

from benchmarks.history_points import drawn, in_order, judged, kept_launches, planted, rates
from stepguard_lab.change_points import has_ruptures

pytestmark = pytest.mark.skipif(not has_ruptures(), reason="ruptures is not installed")


def test_launches_are_kept_of_several_cards():
    """Each with the times of both sides, which ran the same code."""
    found = kept_launches()
    assert len(found) >= 5 and max(map(len, found.values())) >= 60


def test_a_planted_step_is_where_it_was_planted():
    """Points before it stay; a large one is found there, none is found without it."""
    calm = drawn(next(iter(kept_launches().values())), random.Random(1), 60)
    assert planted(calm, 5.0, 40)[:40] == calm[:40]
    assert judged(calm, 5.0, 40) == (True, False) and judged(calm, 0.0, 40) == (False, False)
    assert judged(planted(calm, 5.0, 41), 0.001, 40) == (False, True)  # the next commit's


def test_one_percent_is_found_and_nothing_else():
    """At its own point, in each of fifty drawn series but for one at most; no other point is."""
    found = {rate["step_pct"]: rate for rate in rates(50)}
    assert found[1.0]["found"] >= 0.98 and found[0.0]["found"] is None
    assert max(rate["false"] for rate in found.values()) <= 0.02


def test_in_the_order_in_which_they_were_measured():
    """Nothing is found without a step, and one of 1 % at its point, though cards drift."""
    for row in in_order():
        points = [at for at, _ in row["found"]]
        if row["step_pct"] == 0.0:
            assert points == [], row
        elif row["step_pct"] >= 1.0:
            assert points == [row["at"]], row
