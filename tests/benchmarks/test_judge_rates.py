"""judge_rates: rates whose truth is known, and launches paired anew."""

import json
import math
from argparse import Namespace

import numpy as np
import pytest
from scipy import stats

from benchmarks.judge_rates import (
    MOST_PAIRS,
    alike,
    capped,
    outcomes,
    repair,
    repaired,
    run,
    sides_of,
)
from benchmarks.shared import ROOT
from stepguard.core.status import Status

DATA = ROOT / "benchmarks" / "data"


def test_a_slowdown_is_found_and_none_is_not():
    """By normal noise of 0.15 %: 2,000 runs at 0 and at 1 %."""
    none, few = outcomes("normal", 0.15, 0.0, 2000)
    one, _ = outcomes("normal", 0.15, 1.0, 2000)
    assert none[Status.SLOWER] + none[Status.FASTER] <= 2 and few < 5
    assert one[Status.SLOWER] > 1980


def test_a_launch_is_paired_with_another_one_each_time():
    """No launch with itself, and as many pairs as the plan takes, also of seven launches."""
    draw = np.random.default_rng(1)
    for count in (6, 7, 24):
        found = repaired([2.0**number for number in range(count)], draw)
        assert len(found) == MOST_PAIRS and 0.0 not in found


def test_recorded_launches_of_unchanged_code_are_same():
    """Of all kept runs: 300 verdicts, none SLOWER or FASTER."""
    files = [*DATA.glob("judge_power/h?00_pairs_same_steps_*.json")]
    files += [DATA / "judge_power" / "calibrate_2026-11-24.json"]
    files += [*DATA.glob("power/h?00_*.json")]
    assert len(sides_of(files)) == 56
    found = repair(Namespace(files=sorted(files), verdicts=300))
    assert found["wrong"] == 0 and found["verdicts"]["same"] > 290


def test_launches_that_are_slower_one_after_the_other_are_no_noise(tmp_path):
    """A side whose launches are of two speeds, 5 % apart, is not `same`: the rates can be bad."""
    pairs = [{side: {"step_ms": ms} for side in ("head", "base")} for ms in [100.0, 105.0] * 6]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"pairs": pairs}))
    found = repair(Namespace(files=[path], verdicts=50))
    assert found["verdicts"].get("same", 0) < 25


def test_few_stalls_of_a_host_leave_a_case_undecided_and_sleeps_are_found():
    """A plain mean would leave one in eight undecided. Of short blocks a stall counts for more. No
    stall is called SLOWER.
    """
    cells = capped(Namespace(trials=100))["capped"]
    found = {(one["timed"], one["what"], one["mean"]): one for one in cells}
    for timed, same, pairs in (("16 of 250 ms", 90, 4.5), ("94 of 43 ms", 100, 1.5)):
        nothing, stalls = (found[timed, what, "capped"] for what in ("nothing", "stalls"))
        assert nothing["same"] == 100 and nothing["pairs"] < 1.5
        assert stalls["same"] >= same and stalls["pairs"] < pairs and "SLOWER" not in stalls
        assert found[timed, "stalls", "plain"]["same"] < 90
        for every in (4, 8):
            assert found[timed, f"1 in {every} sleeps", "capped"]["SLOWER"] > 97
    assert found["94 of 43 ms", "1 in 16 sleeps", "capped"]["SLOWER"] > 97
    assert found["94 of 43 ms", "1 in 32 sleeps", "capped"]["SLOWER"] > 80


def test_half_a_percent_that_no_identity_shows_passes_as_normal_pairs_do():
    """One pair by the normal distribution; and the recorded pairs of one workload."""
    found = alike(Namespace(trials=300))
    for row in found["alike"]:
        ends = ((end - row["truth_pct"]) / row["sd_pct"] for end in (0.4, -0.4))
        high, low = map(stats.norm.cdf, ends)
        assert row["one"] == pytest.approx(high - low, abs=0.03)
        assert row["one"] <= row["four"] <= row["plan"]
    turns = found["in_turns"]
    assert turns["pairs"] == 29 and turns["within"] == 15 and 0.4 < turns["sd_pct"] < 0.5


def test_pairs_of_the_same_step_are_asked_first():
    """In the mean of up to four; then the plan has them."""
    assert run([0.003] * MOST_PAIRS, alike=True) == (Status.SAME, 1)
    assert run([0.006, -0.001] + [0.0] * 22, alike=True) == (Status.SAME, 2)
    assert run([0.006, 0.001] + [0.0] * 22, alike=True) == (Status.SAME, 4)
    assert run([math.log1p(0.01)] * MOST_PAIRS, alike=True) == (Status.SLOWER, 6)
