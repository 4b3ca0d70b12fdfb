"""judge_rates: rates whose truth is known, and launches paired anew."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from benchmarks.judge_rates import (
    MOST_PAIRS,
    STEPS,
    beside_itself,
    in_turns,
    launch_of,
    longer,
    odd_share,
    outcomes,
    repair,
    repaired,
    seen,
    sides_of,
)
from benchmarks.shared import ROOT, binomial_bounds
from stepguard.core.margins import PRIOR
from stepguard.core.status import Status

STUDIES = ROOT / "studies"
CASES = [f"{step}[124m-bf16]" for step in ("forward", "forward_backward", "train_step")]


def test_a_slowdown_is_found_and_none_is_not():
    """By normal noise of 0.15 %: 2,000 runs at 0 and at 1 %."""
    none, few = outcomes("normal", 0.15, 0.0, 2000)
    one, _ = outcomes("normal", 0.15, 1.0, 2000)
    assert none[Status.SLOWER] + none[Status.FASTER] <= 2 and few < 5
    assert one[Status.SLOWER] > 1980


def test_a_pattern_of_unchanged_steps_is_none_and_a_planted_one_is_seen():
    """On a GPU and on a CPU; every sixth step of HEAD takes three times as long."""
    for name in ("GPU, long steps", "CPU, even"):
        found = beside_itself(np.random.default_rng(43), STEPS[name])
        assert seen(found) == ""
        launches = []
        for launch in found.head.launches:
            blocks = []
            for block in launch.blocks:
                each = zip(block.timed_steps, block.step_ms, strict=True)
                ms = tuple(3 * ms if step % 6 == 0 else ms for step, ms in each)
                blocks.append(replace(block, step_ms=ms, wall_ms=(sum(ms),), events_ms=(sum(ms),)))
            launches.append(replace(launch, blocks=tuple(blocks)))
        head = replace(found.head, launches=tuple(launches))
        assert seen(replace(found, head=head)) == Status.SLOWER.value


def test_binomial_bounds_are_scipys():
    """Clopper-Pearson, none and all included."""
    for hits, trials in ((0, 10), (3, 10), (10, 10), (1, 4000)):
        theirs = stats.binomtest(hits, trials).proportion_ci(0.95, "exact")
        assert binomial_bounds(hits, trials) == pytest.approx((theirs.low, theirs.high))


def test_a_launch_is_paired_with_another_one_each_time():
    """No launch with itself, and as many pairs as the plan takes, also of seven launches."""
    draw = np.random.default_rng(1)
    for count in (6, 7, 24):
        found = repaired([2.0**number for number in range(count)], draw)
        assert len(found) == MOST_PAIRS and 0.0 not in found


def test_recorded_launches_of_unchanged_code_are_same():
    """Of all kept runs: 300 verdicts, none SLOWER or FASTER, as the study's page says."""
    files = [*STUDIES.glob("judge_power/h?00_pairs_same_steps_*.json")]
    files += [STUDIES / "judge_power" / "calibrate_2026-11-24.json"]
    files += [*STUDIES.glob("power/h?00_*.json")]
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


@pytest.mark.parametrize("case", CASES)
def test_unchanged_launches_are_hardly_ever_odd(case):
    """Or a step that did not change would need pairs as if it had; and what slows every sixteenth
    step down by a tenth is seen.
    """
    assert odd_share(case) < 0.05
    assert odd_share(case, 16, 0.1) > 0.8


def test_pairs_that_ran_in_turns_scatter_more_than_the_prior():
    """Many of one workload's look changed by themselves."""
    found = in_turns()
    assert found["pairs"] == 29 and found["sd_pct"] > 2 * PRIOR.sd_pct
    assert found["beyond"] > 10


def test_every_nth_step_is_longer():
    """Counted through all blocks."""
    made = longer([[10.0] * 3, [10.0] * 3], 2, 0.5, 1)
    assert made == launch_of([[10.0, 15.0, 10.0], [15.0, 10.0, 15.0]])
