"""judge_power: launches paired anew, and what the pairs of a run share."""

import numpy as np
import pytest

from stepguard.judge.ab.sequential_plan import MOST_PAIRS
from studies.judge_power.repair import repaired, shared_offset


def test_a_launch_is_paired_with_another_one_each_time():
    """No launch with itself, and as many pairs as the plan takes, also of seven launches."""
    draw = np.random.default_rng(1)
    for count in (6, 7, 24):
        found = repaired([2.0**number for number in range(count)], draw)
        assert len(found) == MOST_PAIRS and 0.0 not in found


@pytest.mark.parametrize(("tau", "low", "high"), [(0.0, 0.0, 0.15), (0.5, 0.35, 0.7)])
def test_what_runs_share_is_found(tau, low, high):
    """Of 40 simulated runs of 4 to 12 pairs that scatter by 0.24 %, with an offset each."""
    draw = np.random.default_rng(2)
    runs = [
        [(tau * offset + 0.24 * x) / 100 for x in draw.standard_normal(4 + number % 9)]
        for number, offset in enumerate(draw.standard_normal(40))
    ]
    found = shared_offset(runs)
    assert low <= found["tau_pct"] <= high
    assert found["tau_low_pct"] <= found["tau_pct"] <= found["tau_high_pct"]
    assert found["median_sd_pct"] == pytest.approx(0.24, rel=0.15)


def test_noisy_runs_do_not_hide_an_offset_of_quiet_ones():
    """Six runs that scatter by 0.05 % about offsets of 0.3 %, among six that scatter by 1 %."""
    draw = np.random.default_rng(3)
    sizes = [(offset, sd) for sd in (0.05, 1.0) for offset in (0.3, -0.3, 0.3, -0.3, 0.3, -0.3)]
    runs = [[(offset + sd * x) / 100 for x in draw.standard_normal(8)] for offset, sd in sizes]
    found = shared_offset(runs)
    assert found["tau_low_pct"] > 0.1 and found["tau_high_pct"] < 0.8
