"""The screen's arithmetic, against figures worked out by hand and against scipy."""

import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepguard.judge.noise_limits import (
    Screen,
    other_card_limit_pct,
    own_card_limit_pct,
    screen_times,
    standard_error_pct,
)
from stepguard.measure.warm_up import steady
from stepguard.storage.baseline_files import load

BASELINES = Path(__file__).resolve().parents[2] / "baselines"
LAUNCH_SD = 0.0021  # of the mean over three launches of one H200
RUN_SD = 0.0005  # runs on one card, beside what their launches scatter
CARD_SD = 0.012  # cards of one kind


def expected_limit(levels, prior_pct, weight, alpha):
    """The prediction limit by numpy and scipy."""
    degrees = weight + len(levels) - 1
    squares = sum((level - np.mean(levels)) ** 2 for level in levels)
    spread = math.sqrt((weight * (prior_pct / 100) ** 2 + squares) / degrees)
    reach = stats.t.ppf(1 - alpha, degrees) * spread * math.sqrt(1 + 1 / len(levels))
    return min(4.0, max(0.5, 100 * math.expm1(reach)))


@PROPERTY
@given(st.lists(st.floats(-0.02, 0.02), min_size=1, max_size=25))
def test_limits_are_prediction_limits(levels):
    """t * s * sqrt(1 + 1/n) with a pooled s, between floor and cap; for both kinds of card."""
    own = expected_limit(levels, 0.15, 4.0, 0.005)
    other = expected_limit(levels, 1.1, 10.0, 0.08)
    assert own_card_limit_pct(levels) == pytest.approx(min(2.0, own), rel=1e-6)
    assert other_card_limit_pct(levels) == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize(
    ("count", "own", "other"), [(1, 0.98, 2.39), (3, 0.53, 1.75), (5, 0.5, 1.52), (12, 0.5, 1.16)]
)
def test_the_documented_limits(count, own, other):
    """Of recordings, or cards, that happen to agree exactly: the least that a limit can be."""
    levels = [math.log(250.0)] * count
    assert own_card_limit_pct(levels) == pytest.approx(own, abs=0.01)
    assert other_card_limit_pct(levels) == pytest.approx(other, abs=0.01)


def test_wild_recordings_get_the_cap():
    """Recordings that differ by 10 % never allow more than 4 %, nor 2 % on their own card."""
    wild = [0.0, 0.1, -0.1, 0.05, -0.05, 0.0]
    assert (own_card_limit_pct(wild), other_card_limit_pct(wild)) == (2.0, 4.0)


def test_a_runs_own_card_decides_where_it_was_recorded():
    """Its recordings alone: a card that is 3 % slower than all others is judged by itself."""
    others = [[[250.0] * 3]] * 8
    own = screen_times([257.5] * 3, [[257.5] * 3], others)
    assert own.own_card and own.compared == 1 and own.change_pct == pytest.approx(0)
    foreign = screen_times([257.5] * 3, [], others)
    assert not foreign.own_card and foreign.compared == 8 and foreign.change_pct > foreign.limit_pct


def test_cards_count_alike_however_often_each_was_recorded():
    """Ten recordings of one card are one card."""
    assert screen_times([200.0], [], [[[100.0]] * 10, [[400.0]]]).change_pct == pytest.approx(0)


def test_scattered_launches_widen_the_limit():
    """Two standard errors of a run are no change; beyond twice the limit nothing can be said."""
    vague = screen_times([100.0, 101.5, 98.5], [[100.0] * 3])
    assert vague.limit_pct == pytest.approx(2 * vague.se_pct) and not vague.noisy
    loud = screen_times([100.0, 103.0, 97.0], [[100.0] * 3])
    assert loud.noisy and loud.limit_pct == pytest.approx(2 * own_card_limit_pct([5.0]))


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
    assert screen_times(launches, recordings).change_pct == pytest.approx(change_pct, abs=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_screen_refuses_what_is_no_time(bad):
    """A time that is not positive and finite raises on either side."""
    with pytest.raises(ValueError, match="not a positive finite number"):
        screen_times([100.0, bad], [[100.0]])
    with pytest.raises(ValueError, match="not a positive finite number"):
        screen_times([100.0], [[100.0], [100.0, bad]])


def test_screen_refuses_nothing():
    """No launch, no recording and a recording without launches raise; none reads as no change."""
    for launches, recordings in (([], [[1.0]]), ([1.0], []), ([1.0], [[1.0], []])):
        with pytest.raises(ValueError):
            screen_times(launches, recordings)


@pytest.mark.parametrize(
    ("change", "close"),
    [(0.0, False), (2.9, False), (3.1, True), (-3.1, True), (4.9, True), (5.1, False)],
)
def test_close_is_within_two_standard_errors_of_the_limit(change, close):
    """Within two standard errors of the limit, either side, more launches may decide; not on a card
    that was never recorded, whose distance from the others they tell nothing of.
    """
    assert Screen(change, 4.0, se_pct=0.5, own_card=True, compared=1).close is close
    assert not Screen(change, 4.0, se_pct=0.5, own_card=False, compared=1).close


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


def alarms(true_pct, recordings, *, own, trials=2000, first=False):
    """How often of ``trials`` runs that are ``true_pct`` slower are called SLOWER: of two launches,
    and up to three more while it is close. With ``first`` the first one may be enough.
    """
    rng = np.random.default_rng(20261122)
    cards = rng.normal(0, CARD_SD, (trials, recordings, 1)) * (not own)
    past = cards + rng.normal(0, RUN_SD, (trials, recordings, 1))
    past = past + rng.normal(0, LAUNCH_SD, (trials, recordings, 2))
    now = rng.normal(0, RUN_SD if own else CARD_SD, (trials, 1))
    now = now + rng.normal(0, LAUNCH_SD, (trials, 5)) + math.log1p(true_pct / 100)
    found = 0
    for run, recorded in zip(250 * np.exp(now), 250 * np.exp(past), strict=True):
        known = [times.tolist() for times in recorded]
        by_card = [[times] for times in known]
        if first and screen_times(run[:1].tolist(), known if own else [], by_card).certain:
            continue
        for launches in (2, 3, 4, 5):
            one = screen_times(run[:launches].tolist(), known if own else [], by_card)
            if not (one.close or one.noisy):
                break
        found += one.change_pct > one.limit_pct and not one.noisy
    return found / trials


@pytest.mark.parametrize(
    ("true_pct", "recordings", "least"), [(1.0, 3, 0.90), (2.0, 1, 0.95), (1.0, 5, 0.95)]
)
def test_the_runners_own_card_finds_small_slowdowns(true_pct, recordings, least):
    """1 % from three recordings on, 2 % from the first, though runs differ by 0.13 % here."""
    assert alarms(true_pct, recordings, own=True) >= least


def test_false_alarms():
    """On a recorded card one run in a hundred; on another one at most every tenth, which pairs then
    tell from slower code.
    """
    assert alarms(0.0, 3, own=True, trials=4000) <= 0.01
    assert alarms(0.0, 8, own=False, trials=4000) <= 0.10


@pytest.mark.parametrize(
    ("true_pct", "recordings", "own"),
    [(1.0, 1, True), (1.0, 3, True), (2.0, 1, False), (2.0, 8, False)],
)
def test_a_first_launch_that_is_enough_hides_nothing(true_pct, recordings, own):
    """One alarm in 100 at most, of those that two launches raise."""
    usual, first = (
        alarms(true_pct, recordings, own=own, trials=1000, first=first) for first in (False, True)
    )
    assert 0.99 * usual <= first <= usual and usual > 0.3


def pairs_of_recorded_launches():
    """Two launches of a recording in baselines/, with the other recordings of its level: those of
    its card, and those of all cards. All levels that have three recordings or more.
    """
    for path in sorted(BASELINES.glob("h?00*.json")):
        cases = load(path).cases.values()
        for level in (level.recordings for case in cases for level in case.epochs):
            timed = [(one.device_uuid, one.times_ms.get("step_ms", ())) for one in level]
            for card, times in timed if len(timed) >= 3 else ():
                others, own = {}, []
                for other, known in timed:
                    if known is not times:
                        others.setdefault(other, []).append(known)
                        own += [known] if other == card else []
                for both in permutations(times, 2):
                    yield both, own, list(others.values())


def test_a_first_recorded_launch_that_is_enough_hides_nothing():
    """Of the alarms that pairs of recorded launches raise, at most one in 100 is missed, whatever
    slowdown is planted. Of those that are no slower half end with the first launch.
    """
    raised = missed = ended = 0
    drawn = [*pairs_of_recorded_launches()]
    for planted_pct in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0):
        for both, own, cards in drawn:
            slower = [ms * (1 + planted_pct / 100) for ms in both]
            usual = screen_times(slower, own, cards)
            alarm = usual.noisy or abs(usual.change_pct) > usual.limit_pct
            enough = screen_times(slower[:1], own, cards).certain
            raised, missed = raised + alarm, missed + (alarm and enough)
            ended += enough and not planted_pct
    assert len(drawn) > 100 and raised > 100
    assert missed <= raised / 100 and ended >= len(drawn) / 2


def test_another_card_finds_larger_ones():
    """3 % in most runs, though cards differ by 1.2 %."""
    assert alarms(3.0, 8, own=False) >= 0.75
