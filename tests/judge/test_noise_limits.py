"""The screen's arithmetic, against figures worked out by hand and against scipy."""

import math

import numpy as np
import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepguard.judge import noise_limits
from stepguard.judge.noise_limits import ALPHA, Screen, limit_pct, screen, standard_error_pct
from stepguard.measure.warmup import steady

LAUNCH_SD = 0.0024  # of the median over six launches of one H200
SPREAD_WITHIN_CARD = 0.003
SPREAD_BETWEEN_CARDS = 0.0092  # two H200s differ by 1.3 %


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_few_recordings_get_the_default_limit(count):
    """Under five recordings the limit is 4 %, however well they agree."""
    assert limit_pct([math.log(250.0)] * count) == 4.0


def test_agreeing_recordings_get_the_floor():
    """Five equal recordings give 0.5 %, not zero."""
    assert limit_pct([5.0] * 5) == 0.5


def test_wild_recordings_get_the_cap():
    """Recordings that differ by 10 % never allow more than 4 %."""
    assert limit_pct([0.0, 0.1, -0.1, 0.05, -0.05, 0.0]) == 4.0


@PROPERTY
@given(st.lists(st.floats(-0.02, 0.02), min_size=5, max_size=25))
def test_limit_is_a_prediction_limit(levels):
    """From five recordings on: t * s * sqrt(1 + 1/S), between floor and cap."""
    count = len(levels)
    spread = float(np.std(levels, ddof=1))
    reach = stats.t.ppf(0.999, count - 1) * spread * math.sqrt(1 + 1 / count)
    expected = min(4.0, max(0.5, 100 * math.expm1(reach)))
    assert limit_pct(levels) == pytest.approx(expected, rel=1e-6)


def test_constants_are_the_documented_ones():
    """The figures that the documentation gives are those in use."""
    assert (noise_limits.DEFAULT_LIMIT_PCT, noise_limits.MIN_RECORDINGS) == (4.0, 5)
    assert (noise_limits.FLOOR_LIMIT_PCT, ALPHA, noise_limits.LAUNCH_SD_PCT) == (0.5, 0.001, 0.25)


@pytest.mark.parametrize(
    ("logs", "expected_pct"),
    [
        ([1.0], 0.25),
        ([1.0, 1.0], 0.25 * math.sqrt(0.8 / 2)),
        ([1.0, 1.01, 0.99], 100 * math.sqrt((2.5e-5 + 2e-4) / 6 / 3)),
    ],
)
def test_standard_error_pools_with_the_prior(logs, expected_pct):
    """The variance is that of the launches and 0.25 % at four degrees of freedom."""
    assert standard_error_pct(logs) == pytest.approx(expected_pct, rel=1e-9)


@pytest.mark.parametrize(
    ("launches", "recordings", "change_pct"),
    [
        ([110.0], [[100.0]], 10.0),
        ([90.0], [[100.0]], -10.0),
        ([100.0, 121.0], [[100.0]], 10.0),
        ([200.0], [[100.0, 400.0]], 0.0),
        ([200.0], [[100.0, 100.0, 100.0], [400.0]], 0.0),
        ([250.0, 250.0], [[200.0]], 25.0),
    ],
)
def test_change_is_a_ratio_of_geometric_means(launches, recordings, change_pct):
    """Launches average on logs, and recordings count alike however many launches each has."""
    assert screen(launches, recordings).change_pct == pytest.approx(change_pct, abs=1e-9)


def test_screen_counts_its_recordings():
    """The comparison says on how many recordings it rests, and uses their limit."""
    found = screen([100.0], [[100.0]] * 6)
    assert (found.recordings, found.limit_pct) == (6, 0.5)
    assert found.se_pct == pytest.approx(0.25)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_screen_refuses_what_is_no_time(bad):
    """A time that is not positive and finite raises on either side."""
    with pytest.raises(ValueError, match="not a positive finite number"):
        screen([100.0, bad], [[100.0]])
    with pytest.raises(ValueError, match="not a positive finite number"):
        screen([100.0], [[100.0], [100.0, bad]])


def test_screen_refuses_nothing():
    """No launch, no recording and a recording without launches raise; none reads as no change."""
    for launches, recordings in (([], [[1.0]]), ([1.0], []), ([1.0], [[1.0], []])):
        with pytest.raises(ValueError):
            screen(launches, recordings)


@pytest.mark.parametrize(
    ("change", "close"),
    [(0.0, False), (2.9, False), (3.1, True), (-3.1, True), (4.9, True), (5.1, False)],
)
def test_close_is_within_two_standard_errors_of_the_limit(change, close):
    """Close means that the limit lies within two standard errors of the change, either side."""
    assert Screen(change, limit_pct=4.0, se_pct=0.5, recordings=1).close is close


def test_noisy_is_more_than_half_the_limit():
    """Noisy means that two standard errors exceed the limit."""
    assert Screen(0.0, limit_pct=0.5, se_pct=0.26, recordings=5).noisy
    assert not Screen(0.0, limit_pct=0.5, se_pct=0.24, recordings=5).noisy


def test_flat_series_is_steady():
    """Equal windows are steady, from two on."""
    assert steady([250.0, 250.0], [1.0, 1.0], 0.003)
    assert steady([250.0] * 17, [1.0] * 17, 0.003)


@pytest.mark.parametrize("count", [0, 1])
def test_one_window_is_not_steady(count):
    """There is nothing to compare a single window with."""
    assert not steady([250.0] * count, [1.0] * count, 0.003)


def test_linear_drift_is_not_steady():
    """A drift of 0.1 % a window is seen, though neighbouring windows agree within 0.3 %."""
    drifting = [250.0 * 1.001**index for index in range(20)]
    assert not steady(drifting, [1.0] * 20, 0.003)
    assert not steady(drifting[::-1], [1.0] * 20, 0.003)


def test_drift_that_ended_is_steady():
    """A card that became 4 % slower in 10 windows and then stayed is steady after 30 more."""
    drifting = [250.0 * (1 + 0.004 * index) for index in range(10)]
    flat = [260.0] * 30
    assert not steady(drifting, [1.0] * 10, 0.003)
    assert steady(drifting + flat, [1.0] * 40, 0.003)


def test_a_card_that_heats_up_is_not_steady():
    """The first windows of a cold H200 (64.07, 65.19, 66.53 ms) are not a steady state."""
    assert not steady([64.07, 65.19], [1.3] * 2, 0.003)
    assert not steady([64.07, 65.19, 66.53], [1.3] * 3, 0.003)


def test_windows_weigh_by_their_length():
    """Of windows of 4, 4, 1 and 3 s the last quarter is 99.0 ms, the one before it 100.8 ms."""
    window_ms, window_s = [100.0, 100.0, 104.0, 99.0], [4.0, 4.0, 1.0, 3.0]
    apart = math.log(100.8 / 99.0)
    assert steady(window_ms, window_s, apart + 1e-6)
    assert not steady(window_ms, window_s, apart - 1e-6)


def test_a_short_window_does_not_stand_alone():
    """A window of 1 s after one of 9 s is less than a quarter: there is no second one yet."""
    assert not steady([100.0, 100.0], [9.0, 1.0], 0.5)
    assert not steady([100.0, 100.0], [1.0, 9.0], 0.5)


def simulate(trials, recordings, occasion_sd, slowdown):
    """How many runs are called SLOWER; ``slowdown`` maps a limit to a factor on this run."""
    rng = np.random.default_rng(20261120)
    alarms = 0
    levels = rng.normal(0, occasion_sd, (trials, recordings + 1, 1))
    logs = levels + rng.normal(0, LAUNCH_SD, (trials, recordings + 1, 3))
    for *past, now in 250.0 * np.exp(logs):
        past = [times.tolist() for times in past]
        factor = slowdown(screen(now.tolist(), past).limit_pct) if slowdown else 1.0
        found = screen((now * factor).tolist(), past)
        alarms += found.change_pct > found.limit_pct
    return alarms


def test_false_alarms_are_as_rare_as_stated():
    """With 8 recordings whose spread is the run's own, one run in 1000 is called SLOWER."""
    trials = 30_000
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], trials, ALPHA)
    assert low <= simulate(trials, 8, SPREAD_WITHIN_CARD, None) <= high


@pytest.mark.parametrize("recordings", [5, 20])
def test_false_alarms_between_cards_are_rare(recordings):
    """Cards that differ by 1.3 % give no more than the stated rate, the cap of 4 % included."""
    trials = 2000
    high = stats.binom.ppf(1 - 1e-4, trials, ALPHA)
    assert simulate(trials, recordings, SPREAD_BETWEEN_CARDS, None) <= high


@pytest.mark.parametrize("recordings", [2, 5, 8])
def test_a_slowdown_of_twice_the_limit_is_found(recordings):
    """A step that became slower by the limit, twice over, is called SLOWER but one time in 1000."""
    trials = 1000
    missed_at_most = stats.binom.ppf(1 - 1e-4, trials, ALPHA)
    found = simulate(trials, recordings, SPREAD_WITHIN_CARD, lambda limit: (1 + limit / 100) ** 2)
    assert trials - found <= missed_at_most
