"""Arithmetic of the screen, the comparison of a run with recordings: how far the run is from them,
and how far it may be.

All of it works on logarithms of step times, since launches differ by ratios. A launch is one
observation: its steps depend on each other and are never counted as observations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import scipy

# Standard deviations that are assumed before any recording: of runs on one card, and of cards of
# one kind. Each counts for WEIGHT degrees of freedom. When they were chosen, repeats on one card
# scattered by 0.06 to 0.15 % (4 to 10 degrees), and 12 cards by 1.0 to 1.6 %. docs/method.md has
# today's recordings.
RUN_SD_PCT, RUN_WEIGHT = 0.15, 4.0
CARD_SD_PCT, CARD_WEIGHT = 1.1, 10.0
# One-sided chance of an alarm although nothing changed: on a card that was recorded, and on one
# that was not. The second is larger: with fewer alarms, the difference between cards would hide
# slowdowns. A false alarm costs only minutes, since pairs clear it.
OWN_CARD_ALPHA, OTHER_CARD_ALPHA = 0.005, 0.08
# One-sided chance that sound launches are refused as a recording. Of the 64 recordings with several
# launches in baselines/h200x1.json the noisiest is at 0.6 of its limit.
ALPHA = 0.001
FLOOR_LIMIT_PCT = 0.5  # a narrower limit would judge the card's temperature
# One card differs by 4 % between cold and hot, two hosts by 3 %. Within this limit an alarm needs
# pairs to be believed. A level that moved by more is another level on any machine.
LEVEL_LIMIT_PCT = 4.0
# If recordings of one card differ by more, one of them is an outlier. This is twice the limit that
# a single recording has. Without this bound an outlier would widen the limit for all later runs.
OWN_CARD_LIMIT_PCT = 2.0
LAUNCH_SD_PCT = 0.25  # the least that launches of one case differ by; used while few are known
PRIOR_WEIGHT = 4.0  # degrees of freedom that LAUNCH_SD_PCT counts for
DIFFERENCE_LIMIT_PCT = 0.5  # of a step: hosts differ in how fast they wake up and launch
# A run's own noise may widen the limit by this factor at most. A run with more noise says nothing.
MOST_WIDENED = 2.0
CLOSE_SE = 2.0  # a change is close to the limit if it is within so many standard errors of it


@dataclass(frozen=True)
class Screen:
    """The comparison of one run with the recordings of an epoch, in percent."""

    change_pct: float
    limit_pct: float
    se_pct: float  # standard error of this run's level, from its launches
    own_card: bool  # compared with recordings of this very card; else with other cards
    compared: int  # how many such recordings, or such cards
    noisy: bool = False  # launches differ too much to say anything
    # The same as se_pct, if launches differ as those of the recordings do, too. A run of one launch
    # does not show how far they do.
    recorded_se_pct: float = 0.0

    @property
    def close(self) -> bool:
        """Tell whether more launches could change what the comparison says. On a card that was
        never recorded they could not: more launches do not tell how far this card is from the
        others.
        """
        within = abs(abs(self.change_pct) - self.limit_pct) < CLOSE_SE * self.se_pct
        return self.own_card and within

    @property
    def certain(self) -> bool:
        """Tell whether the change is so far inside its limit that more launches would hardly bring
        it out, on whatever card.
        """
        error_pct = max(self.se_pct, self.recorded_se_pct)
        return not self.noisy and abs(self.change_pct) + CLOSE_SE * error_pct <= self.limit_pct


def own_card_limit_pct(levels: Sequence[float]) -> float:
    """Return the limit in percent for a run on a card with recordings, from their log levels.

    It is a prediction limit for one more run, ``t(1 - OWN_CARD_ALPHA, f) * s * sqrt(1 + 1 / n)``,
    where s is pooled from the recordings and RUN_SD_PCT. It lies between FLOOR_LIMIT_PCT and
    OWN_CARD_LIMIT_PCT.
    """
    limit_pct = _limit_pct(levels, RUN_SD_PCT, RUN_WEIGHT, OWN_CARD_ALPHA)
    return min(OWN_CARD_LIMIT_PCT, limit_pct)


def other_card_limit_pct(levels: Sequence[float]) -> float:
    """Return the limit in percent for a run on a card that was never recorded, from the log levels
    of the recorded cards: the same formula at OTHER_CARD_ALPHA, with s pooled with CARD_SD_PCT.
    """
    return _limit_pct(levels, CARD_SD_PCT, CARD_WEIGHT, OTHER_CARD_ALPHA)


def _limit_pct(levels: Sequence[float], prior_pct: float, weight: float, alpha: float) -> float:
    pooled, degrees = pooled_variance(levels, prior_pct, weight)
    t = float(scipy.special.stdtrit(degrees, 1 - alpha))
    reach = t * math.sqrt(pooled) * math.sqrt(1 + 1 / len(levels))
    # Recordings that differ much would give a limit beyond LEVEL_LIMIT_PCT. But a change beyond it
    # is another level on any machine.
    return min(LEVEL_LIMIT_PCT, max(FLOOR_LIMIT_PCT, 100 * math.expm1(reach)))


def standard_error_pct(logs: Sequence[float]) -> float:
    """Return the standard error of the mean log over launches, in percent.

    The variance is pooled with LAUNCH_SD_PCT at four degrees of freedom. So two launches that agree
    by chance do not count as certain.
    """
    pooled, _ = pooled_variance(logs, LAUNCH_SD_PCT, PRIOR_WEIGHT)
    return 100 * math.sqrt(pooled / len(logs))


def pooled_variance(logs: Sequence[float], prior_pct: float, weight: float) -> tuple[float, float]:
    """Return the variance and its degrees of freedom, pooled with the square of a known standard
    deviation that counts for ``weight`` degrees.
    """
    more, sample = len(logs) - 1, _variance(logs) if len(logs) > 1 else 0.0
    return (weight * (prior_pct / 100) ** 2 + more * sample) / (weight + more), weight + more


def _variance(logs: Sequence[float]) -> float:
    # statistics.variance computes with fractions, which takes twenty times as long.
    mean = fmean(logs)
    return math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)


def launch_spread_pct(launch_ms: Sequence[float]) -> float:
    """Return the standard deviation of launches' log step times in percent; 0 for a single one."""
    logs = _logs(launch_ms)
    return 100 * math.sqrt(_variance(logs)) if len(logs) > 1 else 0.0


def launch_spread_limit_pct(launches: int, recordings_ms: Sequence[Sequence[float]]) -> float:
    """Return the largest standard deviation that so many launches may have, in percent; infinite
    for a single launch.

    It is an F test at ALPHA against the recordings' own variance between launches, pooled with
    LAUNCH_SD_PCT at PRIOR_WEIGHT degrees of freedom. Without recordings LAUNCH_SD_PCT alone
    decides.
    """
    if launches < 2:
        return math.inf
    variance, weight = _between_launches(recordings_ms)
    return math.sqrt(variance * float(scipy.special.fdtri(launches - 1, weight, 1 - ALPHA)))


def _between_launches(recordings_ms: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the variance between the launches of recordings, in percent squared, and its degrees
    of freedom, pooled with LAUNCH_SD_PCT at PRIOR_WEIGHT degrees.
    """
    weight, total = PRIOR_WEIGHT, PRIOR_WEIGHT * LAUNCH_SD_PCT**2
    for recording in (_logs(times) for times in recordings_ms if len(times) > 1):
        # The variance is taken within each recording: levels of cards differ, and that is no
        # scatter of launches.
        weight += len(recording) - 1
        total += (len(recording) - 1) * 1e4 * _variance(recording)
    return total / weight, weight


def screen_times(
    launch_ms: Sequence[float],
    own_ms: Sequence[Sequence[float]],
    other_cards_ms: Sequence[Sequence[Sequence[float]]] = (),
) -> Screen:
    """Compare this run's launches with those of recordings, each in ms per step. Recordings of the
    same card are used if there are any; else those of other cards, where each card counts once.

    Raises ValueError when a side is empty or a time is not a positive finite number.
    """
    logs = _logs(launch_ms)
    own = [_level(recording) for recording in own_ms]
    cards = [fmean(_level(recording) for recording in card) for card in other_cards_ms]
    levels = own or cards
    if not levels:
        raise ValueError("screen_times() needs at least one recording")
    error = standard_error_pct(logs)
    limit = own_card_limit_pct(own) if own else other_card_limit_pct(cards)
    widest = min(LEVEL_LIMIT_PCT, MOST_WIDENED * limit)
    recorded = own_ms or [recording for card in other_cards_ms for recording in card]
    between_launches, _ = _between_launches(recorded)
    return Screen(
        change_pct=100 * math.expm1(fmean(logs) - fmean(levels)),
        # A run whose launches scatter cannot prove a small change, slower or faster.
        limit_pct=min(widest, max(limit, CLOSE_SE * error)),
        se_pct=error,
        noisy=CLOSE_SE * error > widest,
        own_card=bool(own),
        compared=len(levels),
        recorded_se_pct=math.sqrt(between_launches / len(logs)),
    )


def _level(launch_ms: Sequence[float]) -> float:
    return fmean(_logs(launch_ms))


def _logs(times_ms: Sequence[float]) -> list[float]:
    if not times_ms:
        raise ValueError("no launch to take a level from")
    for ms in times_ms:
        if not (math.isfinite(ms) and ms > 0):
            raise ValueError(f"step time {ms!r} ms: not a positive finite number")
    return [math.log(ms) for ms in times_ms]


@dataclass(frozen=True)
class Paired:
    """A difference of two variants of a step, from segments that were measured in turns."""

    mean_ms: float
    mean_pct: float  # of the plain step
    half_width_pct: float  # of the 95 % interval, Student's t over the pairs; inf for one pair
    se_pct: float  # standard error of the mean, pooled as that of launches (LAUNCH_SD_PCT)
    pairs: int

    def certain(self, then_pct: float) -> bool:
        """Tell whether the difference is so close to a recorded one that more pairs would hardly
        bring it out of its limit.
        """
        moved = abs(self.mean_pct - then_pct) + CLOSE_SE * self.se_pct
        return max(moved, self.half_width_pct) <= DIFFERENCE_LIMIT_PCT


def paired(pairs_ms: Sequence[tuple[float, float]]) -> Paired:
    """Return the mean of other minus plain over (plain, other) pairs, each in ms a step.

    The differences themselves are averaged, not ratios or logarithms, since a difference may be
    zero. Raises ValueError without a pair, or for a time that is not positive and finite.
    """
    if not pairs_ms:
        raise ValueError("paired() needs at least one pair")
    # Called only to check the times.
    for pair_ms in pairs_ms:
        _logs(pair_ms)
    plain_ms = fmean(plain for plain, _ in pairs_ms)
    differences = [other - plain for plain, other in pairs_ms]
    count, half = len(differences), math.inf
    if count > 1:
        t = float(scipy.special.stdtrit(count - 1, 0.975))
        half = t * math.sqrt(_variance(differences) / count)
    mean = fmean(differences)
    error = standard_error_pct([math.log(other / plain) for plain, other in pairs_ms])
    return Paired(mean, 100 * mean / plain_ms, 100 * half / plain_ms, error, count)
