"""The judge's arithmetic, against figures worked out by hand, scipy, and a known truth."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from builders import PROPERTY, replace
from comparisons import alike
from error_rates import errors
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.judge_rates import NOISES, binomial_bounds, outcomes
from stepguard.core.margins import Margins, Prior
from stepguard.core.status import Status
from stepguard.judge.pair_statistics import (
    ALPHA,
    BETA,
    MIN_PAIRS,
    SEQUENTIAL_PLAN,
    bounds,
    by_plan,
    level_of,
    level_share,
    smallest_detectable_pct,
)

BUDGET = SEQUENTIAL_PLAN[-1].pairs
LOG_RATIOS = st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=BUDGET)
MIRRORED = {Status.SLOWER: Status.FASTER, Status.FASTER: Status.SLOWER}


def log_pct(*percents: float) -> list[float]:
    """Log-ratios of changes given in percent."""
    return [math.log1p(percent / 100) for percent in percents]


# the plan


def test_the_plan_is_the_documented_one():
    """The looks, levels, margins and the prior that the documentation gives are those in use."""
    assert [look.pairs for look in SEQUENTIAL_PLAN] == [4, 6, 8, 12, 17, 24]
    assert (ALPHA, BETA, MIN_PAIRS) == (0.001, 0.05, 6)
    assert asdict(Margins()) == {"ignore_pct": 0.2, "matter_pct": 0.5}
    assert asdict(Prior()) == {"sd_pct": 0.2, "degrees": 4.0}


@pytest.mark.parametrize("ratio", [0.2, 0.7, 1.0, 1.5, 2.0, 2.3, 2.5, 2.7, 3.0, 4.0, 8.0, 30.0])
def test_the_looks_together_err_as_stated_whatever_the_noise(ratio):
    """Integrated over the sample variance of normal pairs whose sd is ``ratio`` times the prior's:
    the chances that a look's bound passes the truth sum to ALPHA or BETA at most.
    """
    total = errors(Prior(), ratio)
    assert total["alpha"] <= ALPHA and total["beta"] <= BETA
    if ratio == 2.5:  # and no more room is left than about a tenth: near the worst
        assert total["alpha"] > 0.85 * ALPHA and total["beta"] > 0.85 * BETA


@pytest.mark.parametrize(("sample_pct", "pairs", "sd_pct", "degrees"), [
    (0.15, 5, 0.15, 8.0),
    (0.0, 5, 0.15 * math.sqrt(0.5), 8.0),
    (0.10, 9, math.sqrt((4 * 0.0225 + 8 * 0.01) / 12), 12.0),
    (0.30, 7, math.sqrt((0.25 * 0.0225 + 6 * 0.09) / 6.25), 6.25),  # 4 / 2**4: it fades
    (15.0, 7, 15.0, 6.0),
    (0.0, 1, 0.15, 4.0),
])  # fmt: skip
def test_moderated_variance_by_hand(sample_pct, pairs, sd_pct, degrees):
    """Smyth's while the sample agrees with the prior, the sample's own where it contradicts it."""
    found = Prior(0.15, 4.0).moderated((sample_pct / 100) ** 2, pairs)
    assert found == (pytest.approx(sd_pct / 100, rel=1e-6), pytest.approx(degrees, rel=1e-6))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_prior_that_is_none_is_refused(bad):
    """Both of its figures must be positive and finite."""
    for wrong in ({"sd_pct": bad}, {"degrees": bad}):
        with pytest.raises(ValueError, match="positive and finite"):
            Prior(**wrong)


@pytest.mark.parametrize(
    ("ignore", "matter"), [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (math.nan, 0.5), (0.2, math.inf)]
)
def test_margins_without_a_gap_are_refused(ignore, matter):
    """Without one a change equal to both would never be decided."""
    with pytest.raises(ValueError, match="ignore_pct < matter_pct"):
        Margins(ignore, matter)


# bounds and the rule


def test_bounds_by_hand():
    """Six pairs of +1 % and a spread under the prior's: mean -+ t * sd / sqrt(6) on 9 degrees."""
    pairs = log_pct(0.9, 1.1, 1.0, 1.0, 0.95, 1.05)
    mean, sample = float(np.mean(pairs)), float(np.var(pairs, ddof=1))
    error = math.sqrt((4 * 0.002**2 + 5 * sample) / 9 / 6)
    found = bounds(pairs)
    assert found.degrees == 9.0
    assert found.mean == pytest.approx(mean)
    assert found.low == pytest.approx(mean - stats.t.ppf(1 - 0.0055, 9) * error, rel=1e-9)
    assert found.surely
    assert found.high == pytest.approx(mean + stats.t.ppf(1 - 0.0055, 9) * error, rel=1e-9)
    one = stats.t.sf(mean / error, 9)
    assert found.p_value == pytest.approx(one * 0.001 / 0.00005, rel=1e-6)


@pytest.mark.parametrize(("pairs", "status", "final"), [
    (log_pct(0.0, 0.1, -0.1, 0.05), Status.SAME, True),
    (log_pct(0.0, 0.1, -0.1), Status.INCONCLUSIVE, False),  # before the first look
    (log_pct(*[10.0] * 4), Status.INCONCLUSIVE, False),  # too few for SLOWER, however clear
    (log_pct(*[10.0] * 5), Status.INCONCLUSIVE, False),
    (log_pct(*[10.0] * 6), Status.SLOWER, True),
    (log_pct(*[-10.0] * 6), Status.FASTER, True),
    (log_pct(*[10.0] * 7), Status.INCONCLUSIVE, False),  # between two looks
    (log_pct(*[0.15, 0.6] * 3), Status.INCONCLUSIVE, False),  # between the margins
    (log_pct(*[3.0, -3.0] * 12), Status.INCONCLUSIVE, True),  # out of pairs
])  # fmt: skip
def test_the_rule(pairs, status, final):
    """SLOWER, FASTER, `same`, more pairs wanted, and out of pairs."""
    found = by_plan(alike([100 * d for d in pairs]))
    assert (found.status, found.final) == (status, final)
    assert found.pairs == len(pairs)


@pytest.mark.parametrize("bad", [[], [math.nan], [0.0, math.inf], [0.0] * (BUDGET + 1)])
def test_what_is_no_series_of_pairs_is_refused(bad):
    """None, too many, and what is not finite."""
    with pytest.raises(ValueError):
        bounds(bad)


# properties


@PROPERTY
@given(LOG_RATIOS)
def test_swapping_the_sides_mirrors_the_verdict(pairs):
    """Head and base exchanged: bounds change sign and place, SLOWER becomes FASTER."""
    one, other = bounds(pairs), bounds([-d for d in pairs])
    assert (other.mean, other.sd) == (-one.mean, one.sd)
    assert (other.low, other.high) == (-one.high, -one.low)
    found = one.status(Margins())
    assert other.status(Margins()) is MIRRORED.get(found, found)


@PROPERTY
@given(LOG_RATIOS, st.floats(0, 0.02))
def test_a_constant_shifts_the_estimate_and_nothing_else(pairs, shift):
    """The spread stays, the p-value falls, and what was SLOWER stays so."""
    one, other = bounds(pairs), bounds([d + shift for d in pairs])
    assert other.mean == pytest.approx(one.mean + shift, abs=1e-12)
    assert other.sd == pytest.approx(one.sd, rel=1e-6)
    assert other.p_value <= one.p_value * (1 + 1e-6)
    assert other.low >= one.low - 1e-9 and other.high >= one.high - 1e-9
    if one.status(Margins()) is Status.SLOWER and one.low > Margins().ignore + 1e-9:
        assert other.status(Margins()) is Status.SLOWER


@PROPERTY
@given(LOG_RATIOS)
def test_slower_is_surely_a_slowdown_and_beyond_the_margin(pairs):
    """Both bounds must hold, the p-value says the one at zero, and the estimate lies between."""
    found = bounds(pairs)
    assert found.low <= found.mean <= found.high
    if min(abs(found.low - Margins().ignore), abs(found.p_value - ALPHA)) > 1e-9:
        slower = found.status(Margins()) is Status.SLOWER
        beyond = found.low > Margins().ignore
        assert slower == (found.p_value <= ALPHA and found.mean > 0 and beyond)


@PROPERTY
@given(LOG_RATIOS, st.floats(0, 0.05), st.floats(0.001, 0.2))
def test_what_lies_beyond_what_is_ignored_is_never_same(pairs, ignore, more):
    """However wide the margins are: the interval of a `same` reaches what is ignored."""
    margins = Margins(100 * ignore, 100 * (ignore + more))
    found = bounds(pairs)
    if found.status(margins) is Status.SAME:
        assert found.low <= margins.ignore and found.high >= -margins.ignore


def test_what_might_be_noise_is_not_slower_without_a_margin_either():
    """Beyond zero at the margin's level, not at alpha's: nothing is certain, so nothing is said."""
    found = bounds(log_pct(0.40, 1.40, 0.60, 1.20, 0.80, 1.00))
    assert found.low > 0 and not found.surely
    assert found.status(Margins(0.0, 0.5)) is Status.INCONCLUSIVE


# the smallest detectable slowdown


def test_smallest_detectable_at_one_look_is_noncentral_t():
    """With six pairs and `same` out of reach, scipy's noncentral t finds 95 % power there."""
    margins, sd_pct = Margins(0.0, 1e-6), 0.6
    prior = Prior(sd_pct=0.15, degrees=1e-9)
    found = smallest_detectable_pct(6, sd_pct, margins, prior)
    shift = math.log1p(found / 100) / (sd_pct / 100) * math.sqrt(6)
    power = stats.nct.sf(stats.t.ppf(1 - 0.00005, 5), 5, shift)
    assert power == pytest.approx(0.95, abs=0.002)


def test_smallest_detectable_grows_with_noise_and_needs_six_pairs():
    """inf under six pairs; more noise, more of it; a bad standard deviation is refused."""
    assert smallest_detectable_pct(5, 0.1) == math.inf
    sizes = [smallest_detectable_pct(24, sd) for sd in (0.05, 0.15, 0.3, 0.6)]
    assert sizes == sorted(sizes)
    assert sizes[1] == pytest.approx(0.43, abs=0.01)
    with pytest.raises(ValueError, match="sd_pct"):
        smallest_detectable_pct(24, 0.0)


@pytest.mark.parametrize("sd_pct", [0.05, 0.15, 0.3])
def test_the_smallest_detectable_slowdown_is_detected(sd_pct):
    """In 95 of 100 runs at least, by the whole plan with its early looks."""
    truth = smallest_detectable_pct(BUDGET, sd_pct)
    count, _ = outcomes("normal", sd_pct, truth, 2000)
    assert binomial_bounds(count[Status.SLOWER], 2000)[1] >= 0.95


# runs whose truth is known


@pytest.mark.parametrize("sd_pct", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("noise", NOISES)
def test_no_change_is_not_slower(noise, sd_pct):
    """At true 0 the rate of SLOWER is compatible with 0.1 %, whatever the noise."""
    count, _ = outcomes(noise, sd_pct, 0.0, 4000)
    assert binomial_bounds(count[Status.SLOWER], 4000)[0] <= ALPHA
    assert binomial_bounds(count[Status.FASTER], 4000)[0] <= ALPHA
    if noise in ("normal", "drift", "heavy tails"):
        assert count[Status.SAME] / 4000 > 0.98


@pytest.mark.parametrize("sd_pct", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("noise", ["normal", "drift", "heavy tails"])
def test_a_change_of_the_ignore_margin_is_not_slower(noise, sd_pct):
    """The worst truth that must pass: 5 % at most."""
    count, _ = outcomes(noise, sd_pct, 0.2, 1000)
    assert binomial_bounds(count[Status.SLOWER], 1000)[0] <= BETA


@pytest.mark.parametrize("sd_pct", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("noise", NOISES)
def test_a_change_that_matters_is_not_same(noise, sd_pct):
    """At the matter margin `same` is said 5 % of the time at most, FASTER never."""
    count, _ = outcomes(noise, sd_pct, 0.5, 1000)
    assert binomial_bounds(count[Status.SAME], 1000)[0] <= BETA
    assert count[Status.FASTER] == 0


@pytest.mark.parametrize(("noise", "sd_pct", "truth_pct", "power", "pairs"), [
    ("normal", 0.05, 0.5, 0.99, 8),
    ("normal", 0.15, 0.5, 0.95, 12),
    ("normal", 0.3, 0.5, 0.95, 14),
    ("normal", 0.3, 1.0, 0.99, 10),
    ("normal", 0.15, 1.0, 0.99, 7),
    ("normal", 0.3, 2.0, 0.99, 7),
    ("drift", 0.15, 0.5, 0.95, 13),
    ("heavy tails", 0.15, 0.5, 0.95, 12),
    ("modes 0.5 % apart", 0.15, 1.0, 0.95, 13),
    ("outliers", 0.15, 2.0, 0.90, 12),
])  # fmt: skip
def test_power(noise, sd_pct, truth_pct, power, pairs):
    """A true slowdown is called SLOWER this often at least, in this many pairs on average."""
    count, mean_pairs = outcomes(noise, sd_pct, truth_pct, 1000)
    assert binomial_bounds(count[Status.SLOWER], 1000)[1] >= power
    assert mean_pairs <= pairs


@pytest.mark.parametrize("truth_pct", [-1.0, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("sd_pct", [0.1, 0.4])
def test_the_bounds_hold_the_truth_at_every_look(truth_pct, sd_pct):
    """In 90 of 100 runs no look's bounds miss it, so that stopping early costs nothing."""
    rng, truth, runs = np.random.default_rng(20261122), math.log1p(truth_pct / 100), 1000
    drawn = truth + rng.normal(0, sd_pct / 100, (runs, BUDGET))
    held = 0
    for pairs in drawn.tolist():
        seen = [bounds(pairs[: look.pairs]) for look in SEQUENTIAL_PLAN]
        held += all(one.low <= truth <= one.high for one in seen)
    assert binomial_bounds(held, runs)[1] >= 0.90


# over the cases of a run


def test_the_level_of_a_case_is_known_beforehand():
    """0.1 % up to ten cases, beyond them an equal share of 1 %: a run errs by 1 % at most."""
    levels = {cases: level_of(cases) for cases in (0, 1, 10, 11, 20, 100)}
    assert levels == {0: 0.001, 1: 0.001, 10: 0.001, 11: 0.01 / 11, 20: 0.0005, 100: 0.0001}


@pytest.mark.parametrize("cases", [20, 50, 100, 500])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 2.5, 3.0, 4.0, 8.0])
def test_the_looks_err_by_the_level_of_many_cases(cases, ratio):
    """As by that of one: whatever the noise is, beside what the prior says."""
    alpha = level_of(cases)
    assert errors(Prior(), ratio, level_share(alpha))["alpha"] <= alpha


def test_a_stricter_level_decides_less_and_never_otherwise():
    """What is SLOWER among a hundred cases is SLOWER alone."""
    pairs = log_pct(0.7, 1.1, 0.6, 1.2, 0.8, 1.0)
    found = alike([100 * d for d in pairs])
    one, many = (by_plan(replace(found, alpha=level_of(cases))) for cases in (1, 500))
    assert (one.status, many.status) == (Status.SLOWER, Status.INCONCLUSIVE)
    assert one.p_value == many.p_value and one.low_pct == many.low_pct
    assert many.smallest_detectable_pct >= one.smallest_detectable_pct
