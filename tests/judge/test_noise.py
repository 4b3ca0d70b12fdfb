"""Where the noise of pairs comes from, from simulated pairs whose truth is known."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
from comparisons import alike, comparison_of, simulated
from error_rates import errors
from scipy import stats

from stepguard.judge.noise import noise_of, plan_for, plans_by_block, plans_by_pairs, prior_of
from stepguard.judge.power import smallest_detectable_pct
from stepguard.judge.sequential_plan import ALPHA, BETA, MIN_PAIRS
from stepguard.judge.terms import widened
from stepguard.margins import Margins, Prior

TRIALS = 100


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("drift", [0.0, 4.0])
@pytest.mark.parametrize(("own", "block"), [(0.1, 0.02), (0.02, 0.2), (0.1, 0.1)])
def test_simulated_pairs_give_back_their_truth(own, block, drift, together):
    """Pair sd, block sd and the launch's own part are those that were put in; a drift of 4 % over
    the run is in none of them where the two took turns.
    """
    truth = {"own_pct": own, "block_pct": block, "drift_pct": drift, "together": together}
    slope = drift / (4 * 24 - 1)  # a block; one launch after the other, a pair is two blocks apart
    pair = math.sqrt(2 * (own**2 + block**2 / 2) + (0 if together else (2 * slope) ** 2))
    found = [noise_of(simulated(24, seed=seed, **truth)) for seed in range(TRIALS)]

    def root(name):
        return math.sqrt(fmean(getattr(one, name) ** 2 for one in found))

    assert root("sd_pct") == pytest.approx(pair, rel=0.08)
    assert root("block_sd_pct") == pytest.approx(block, rel=0.05)
    if own >= block and together:
        assert root("own_sd_pct") == pytest.approx(own, rel=0.08)


def test_drift_and_the_sd_between_launches_see_the_same_drift():
    """2 % from the first block to the last: told as drift, and in the sd between launches only."""
    found = noise_of(simulated(24, 0.01, 0.01, drift_pct=2.0))
    assert found.drift_pct == pytest.approx(2.0 * 92 / 95, abs=0.05)
    uniform = 2.0 * 92 / 95 * math.sqrt(24 * 25 / 12) / 23  # sd of 24 even steps
    assert found.launch_sd_pct == pytest.approx(uniform, rel=0.05)
    assert found.sd_pct < 0.05


def test_the_interval_of_the_sd_covers():
    """In 95 of 100 calibrations of six pairs the truth lies within."""
    truth, hits = math.sqrt(2) * 0.1, 0
    for seed in range(400):
        found = noise_of(simulated(6, 0.1, 0.0001, seed=seed))
        hits += found.sd_low_pct <= truth <= found.sd_high_pct
    assert 0.92 * 400 <= hits <= 0.98 * 400


def test_by_hand():
    """Three pairs of 0, +1 and +2 %: mean 1, sd 1, and the wildest is one of the outer two."""
    found = noise_of(alike([0.0, 1.0, 2.0]))
    assert (found.pairs, found.mean_pct, found.sd_pct) == (3, *map(pytest.approx, (1.0, 1.0)))
    assert found.mean_half_pct == pytest.approx(stats.t.ppf(0.975, 2) / math.sqrt(3))
    assert found.block_sd_pct == pytest.approx(0.0, abs=1e-9)
    assert found.drift_pct == pytest.approx(1.0)  # head rises by 2 %, base stays
    assert found.wildest in (1, 3)
    assert found.without_wildest_pct == pytest.approx(math.sqrt(0.5))
    assert found.block_s == pytest.approx(2.5, rel=0.02)  # ten steps of 250 ms


def test_one_wild_pair_is_found():
    """The pair that makes the spread is named, counted from one."""
    ratios = [0.1, -0.1, 0.1, 5.0, -0.1, 0.1]
    found = noise_of(alike(ratios))
    assert found.wildest == 4
    assert found.without_wildest_pct == pytest.approx(stdev(ratios[:3] + ratios[4:]), rel=1e-6)


@pytest.mark.parametrize("pairs", [0, 1, 2])
def test_too_few_pairs_have_no_noise(pairs):
    """Under three pairs nothing can be left out and still be spread."""
    with pytest.raises(ValueError, match=f"{pairs} pairs"):
        noise_of(alike([0.1, -0.1][:pairs]))


def test_pairs_that_do_not_differ_are_refused():
    """A clock without any noise has told no time."""
    with pytest.raises(ValueError, match="no clock is that even"):
        noise_of(alike([0.0] * 6))


def test_a_launch_of_other_blocks_is_refused():
    """The contrast of a pair needs two blocks a side."""
    times = [(250.0, 250.0), (251.0, 250.0), (250.0,)]
    with pytest.raises(ValueError, match="launch 3 has 1 blocks"):
        noise_of(comparison_of(times, [(250.0, 250.0)] * 3))


def test_longer_blocks_lower_their_own_part_only():
    """Twice as long halves the blocks' variance, however long leaves the launches'."""
    found = noise_of(simulated(24, 0.1, 0.2))
    one, two = found.sd_with_pct(found.block_s) ** 2, found.sd_with_pct(2 * found.block_s) ** 2
    assert one == pytest.approx(found.sd_pct**2)
    assert one - two == pytest.approx(found.block_sd_pct**2 / 2)
    assert found.sd_with_pct(1e9) == pytest.approx(math.sqrt(2) * found.own_sd_pct)


def test_blocks_noisier_than_their_pairs():
    """By chance they can look so; then all of the pair's noise is theirs, and no more."""
    noise = noise_of(simulated(20, 0.0, 0.3))
    found = replace(noise, sd_pct=0.28, block_sd_pct=0.30)
    assert found.own_sd_pct == 0.0
    assert found.sd_with_pct(found.block_s) == pytest.approx(0.28)
    assert found.sd_with_pct(4 * found.block_s) == pytest.approx(0.14)


def test_pairs_of_an_h200():
    """Twenty pairs measured on one: all of their noise is that of blocks, and none drift."""
    path = Path(__file__).parents[2] / "studies" / "judge_power" / "h200_pairs_aa_2026-11-21.json"
    pairs = json.loads(path.read_text())["pairs"]
    head, base = ([pair[side]["blocks_ms"] for pair in pairs] for side in ("head", "base"))
    found = noise_of(comparison_of(head, base))
    assert found.pairs == 20 and found.own_sd_pct == 0.0
    assert 0.27 < found.sd_pct < 0.29 and 0.28 < found.block_sd_pct < 0.31
    assert abs(found.mean_pct) < found.mean_half_pct and abs(found.drift_pct) < 0.1
    assert widened(found.sd_pct, 19.0) == Margins()


def test_plans_by_pairs():
    """Every look that may say SLOWER, with its time and what the rule itself says that it finds."""
    found = noise_of(simulated(24, 0.1, 0.1))
    plans = plans_by_pairs(found, 30.0, Margins())
    assert [plan.pairs for plan in plans] == [6, 8, 12, 17, 24]
    assert [plan.seconds for plan in plans] == [30.0 * plan.pairs for plan in plans]
    sd = found.sd_pct
    finds = smallest_detectable_pct(12, sd, Margins(), Prior(sd, 4.0))
    assert plans[2].smallest_detectable_pct == pytest.approx(finds)


def test_plans_by_block_fit_the_budget():
    """Longer blocks take longer: four a pair. What leaves too few pairs is no plan."""
    found = noise_of(simulated(24, 0.05, 0.3))
    plans = plans_by_block(found, 20.0, 400.0, Margins())
    assert [round(plan.block_s / found.block_s, 2) for plan in plans] == [0.5, 1.0, 2.0, 4.0]
    for plan in plans:
        one_s = 20.0 + 4 * (plan.block_s - found.block_s)
        assert plan.pairs == min(24, int(400.0 / one_s))
        assert plan.seconds == pytest.approx(plan.pairs * one_s) and plan.seconds <= 400.0
        again = plan_for(plan.pairs, found, 20.0, plan.block_s, Margins())
        assert plan == again
    assert plans_by_block(found, 20.0, 80.0, Margins()) == []
    assert all(plan.pairs >= MIN_PAIRS for plan in plans_by_block(found, 20.0, 150.0, Margins()))


@pytest.mark.parametrize("sd_pct", [0.02, 0.3])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0, 2.5, 3.0, 10.0])
def test_a_calibrated_prior_keeps_what_is_promised(sd_pct, ratio):
    """However wrong a calibration of 24 pairs is elsewhere, the looks err as stated: it counts for
    no more degrees than the default prior.
    """
    total = errors(prior_of(sd_pct, 23.0), ratio, points=500)
    assert total["alpha"] <= ALPHA and total["beta"] <= BETA


def test_more_degrees_would_break_the_promise():
    """At 5 degrees, let alone the 23 of 24 pairs, false alarms exceed ALPHA: hence the limit."""
    found = {
        degrees: errors(Prior(0.15, degrees), 2.5, points=500)["alpha"]
        for degrees in (4, 5, 8, 12, 23)
    }
    assert found[4] <= ALPHA < found[5]
    known = {4: 0.094, 5: 0.112, 8: 0.165, 12: 0.235, 23: 0.412}
    assert {d: 100 * a for d, a in found.items()} == pytest.approx(known, rel=0.02)
    assert prior_of(0.1, 3.0) == Prior(0.1, 3.0)
