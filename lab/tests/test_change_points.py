"""Change points of series whose truth is known."""

import math
import random

import pytest

from stepguard_lab.change_points import (
    LEAST_SERIES,
    creep,
    exact_changes,
    level_changes,
    noise,
)

SEED = 20261125


def series(points=60, step_pct=0.0, at=40, sd_pct=0.4, drift_pct=0.0, seed=SEED):
    """Times around 250 ms, which rise by ``step_pct`` at a point, and by ``drift_pct`` in all."""
    draw = random.Random(seed)
    return [
        250.0
        * math.exp(draw.gauss(0.0, sd_pct / 100))
        * (1 + step_pct / 100 * (i >= at))
        * (1 + drift_pct / 100 * i / points)
        for i in range(points)
    ]


def test_a_counter_changes_exactly_where_it_changes():
    """Every change is one, up or down, and none where nothing changes."""
    found = exact_changes([6, 6, 7, 7, 6])
    assert [(one.at, one.before, one.after) for one in found] == [(2, 6, 7), (4, 7, 6)]
    assert exact_changes([6, 6]) == [] == exact_changes([6])
    assert math.isinf(exact_changes([0, 1])[0].change_pct)


def test_noise_is_not_moved_by_a_step():
    """It comes from neighbours: a step of 50 % leaves it where it was."""
    calm, moved = ([math.log(v) for v in series(600, pct)] for pct in (0.0, 50.0))
    assert noise(moved) == pytest.approx(noise(calm), rel=0.02)
    assert noise(calm) == pytest.approx(0.004, rel=0.15)


def test_a_step_of_one_percent_is_found_at_its_point():
    """Sixty points that scatter by 0.4 %: within a point of it, with its size, up and down."""
    pytest.importorskip("ruptures")
    for pct in (1.0, -1.0):
        (found,) = level_changes(series(step_pct=pct))
        assert abs(found.at - 40) <= 1
        assert found.change_pct == pytest.approx(pct, abs=0.3)


def test_without_a_step_there_is_no_change():
    """In forty series of noise, of one scale or another, one false point at the most."""
    pytest.importorskip("ruptures")
    found = [level_changes(series(seed=seed, sd_pct=0.1 + seed % 3)) for seed in range(40)]
    assert sum(map(bool, found)) <= 1


def test_a_short_series_has_no_changes_of_level():
    """Too few points say nothing, however far they differ."""
    assert level_changes([250.0] * 5 + [500.0] * (LEAST_SERIES - 6)) == []


def test_creep_is_measured_between_two_groups_of_points():
    """A drift of 2 % is seen between the ends; noise alone is inside the margin."""
    drifted, calm = series(drift_pct=2.0), series()
    found = creep(drifted[:12], drifted[-12:])
    assert found is not None and found.beyond(0.5)
    assert found.low_pct < found.change_pct < found.high_pct
    quiet = creep(calm[:12], calm[-12:])
    assert quiet is not None and not quiet.beyond(0.5)
    assert creep(calm[:2], calm) is None
    assert creep([1.0] * 3, [1.02] * 3).low_pct == pytest.approx(2.0)
