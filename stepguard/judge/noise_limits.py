"""Arithmetic of the screen: how far a run is from the recordings, and how far it may be.

All of it is on logarithms of per-launch step times, since launches differ by ratios. A launch is
one observation; the steps inside it are not independent and never counted as such.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

import scipy

# Runs on one card, and cards of one kind: their standard deviation, and for how many degrees of
# freedom that knowledge counts. When they were chosen, repeats on one card scattered by 0.06 to
# 0.15 % (4 to 10 degrees), 12 cards by 1.0 to 1.6 %; docs/method.md has the recordings of today.
RUN_SD_PCT, RUN_WEIGHT = 0.15, 4.0
CARD_SD_PCT, CARD_WEIGHT = 1.1, 10.0
# One-sided, where nothing changed: of an alarm on a card that was recorded, and on one that never
# was. Pairs confirm either: an alarm costs minutes, and silence hides what cards differ by.
OWN_CARD_ALPHA, OTHER_CARD_ALPHA = 0.005, 0.08
ALPHA = 0.001  # one-sided, of launches that are refused as a level
FLOOR_LIMIT_PCT = 0.5  # a limit below this would judge the card's temperature
# One card differs by 4 % between cold and hot, two hosts by 3 %. An alarm within it needs pairs to
# be believed; a level that moved by more is another one, whatever the machine.
LEVEL_LIMIT_PCT = 4.0
# Recordings of one card that are further apart are of two levels, and one of them is odd: twice the
# limit that a single one has. Without that bound it would open the limit for all that follows.
OWN_CARD_LIMIT_PCT = 2.0
LAUNCH_SD_PCT = 0.25  # what launches of one case differ by at the least, when few are at hand
PRIOR_WEIGHT = 4.0  # degrees of freedom that LAUNCH_SD_PCT counts for
DIFFERENCE_LIMIT_PCT = 0.5  # of a step: hosts differ in how long they take to wake up and launch
MOST_WIDENED = 2.0  # times the limit, by a run's own noise; beyond that it says nothing
CLOSE_SE = 2.0  # "close": the limit lies within this many standard errors of the change


@dataclass(frozen=True)
class Screen:
    """The comparison of one run with the recordings of an epoch, in percent."""

    change_pct: float
    limit_pct: float
    se_pct: float  # standard error of this run's level, from its launches
    own_card: bool  # with recordings of this very card; else with other cards
    compared: int  # such recordings, or such cards
    noisy: bool = False  # launches differ so much that nothing can be told from noise

    @property
    def close(self) -> bool:
        """Tell whether more launches could change what the comparison says. On a card that was
        never recorded they could not: they know it better, but not how far it is from the others.
        """
        within = abs(abs(self.change_pct) - self.limit_pct) < CLOSE_SE * self.se_pct
        return self.own_card and within


def own_card_limit_pct(levels: Sequence[float]) -> float:
    """Return the limit in percent for a run on the card of these recordings, from their log levels.

    A prediction limit for one more run, ``t(1 - OWN_CARD_ALPHA, f) * s * sqrt(1 + 1 / n)``, with s
    pooled from the recordings and RUN_SD_PCT; between FLOOR_LIMIT_PCT and OWN_CARD_LIMIT_PCT.
    """
    limit_pct = _limit_pct(levels, RUN_SD_PCT, RUN_WEIGHT, OWN_CARD_ALPHA)
    return min(OWN_CARD_LIMIT_PCT, limit_pct)


def other_card_limit_pct(levels: Sequence[float]) -> float:
    """Return the limit in percent for a run on a card that was never recorded, from the log levels
    of those that were: the same at OTHER_CARD_ALPHA, with s pooled with CARD_SD_PCT.
    """
    return _limit_pct(levels, CARD_SD_PCT, CARD_WEIGHT, OTHER_CARD_ALPHA)


def _limit_pct(levels: Sequence[float], prior_pct: float, weight: float, alpha: float) -> float:
    pooled, degrees = pooled_variance(levels, prior_pct, weight)
    t = float(scipy.special.stdtrit(degrees, 1 - alpha))
    reach = t * math.sqrt(pooled) * math.sqrt(1 + 1 / len(levels))
    # Capped: recordings that differ much would else allow more than no knowledge at all.
    return min(LEVEL_LIMIT_PCT, max(FLOOR_LIMIT_PCT, 100 * math.expm1(reach)))


def standard_error_pct(logs: Sequence[float]) -> float:
    """Return the standard error of the mean log over launches, in percent.

    The variance is pooled with LAUNCH_SD_PCT at four degrees of freedom, so that two launches that
    happen to agree are not taken for certainty.
    """
    pooled, _ = pooled_variance(logs, LAUNCH_SD_PCT, PRIOR_WEIGHT)
    return 100 * math.sqrt(pooled / len(logs))


def pooled_variance(logs: Sequence[float], prior_pct: float, weight: float) -> tuple[float, float]:
    """Return the variance and its degrees of freedom, pooled with the square of a known standard
    deviation that counts for ``weight`` degrees.
    """
    more, sample = len(logs) - 1, variance(logs) if len(logs) > 1 else 0.0
    return (weight * (prior_pct / 100) ** 2 + more * sample) / (weight + more), weight + more


def launch_spread_pct(launch_ms: Sequence[float]) -> float:
    """Return the standard deviation of launches' log step times in percent; 0 for a single one."""
    logs = _logs(launch_ms)
    return 100 * stdev(logs) if len(logs) > 1 else 0.0


def launch_spread_limit_pct(launches: int, recordings_ms: Sequence[Sequence[float]]) -> float:
    """Return the largest standard deviation that so many launches may have, in percent.

    An F test at ALPHA against the recordings' own variance between launches, pooled with
    LAUNCH_SD_PCT at PRIOR_WEIGHT degrees of freedom, which alone decides where nothing is recorded.
    Infinite for a single launch.
    """
    if launches < 2:
        return math.inf
    weight, total = PRIOR_WEIGHT, PRIOR_WEIGHT * LAUNCH_SD_PCT**2
    for recording in (_logs(times) for times in recordings_ms if len(times) > 1):
        # Within each recording: levels of cards differ, too, and that is no spread of launches.
        weight += len(recording) - 1
        total += (len(recording) - 1) * 1e4 * variance(recording)
    return math.sqrt(total / weight * float(scipy.special.fdtri(launches - 1, weight, 1 - ALPHA)))


def screen(
    launch_ms: Sequence[float],
    own_ms: Sequence[Sequence[float]],
    other_cards_ms: Sequence[Sequence[Sequence[float]]] = (),
) -> Screen:
    """Compare this run's launches with recordings' launches, each in ms per step: with those of its
    own card if there are any, else with those of other cards, which count alike.

    Raises ValueError when a side is empty or a time is not a positive finite number.
    """
    logs = _logs(launch_ms)
    own = [_level(recording) for recording in own_ms]
    cards = [fmean(_level(recording) for recording in card) for card in other_cards_ms]
    levels = own or cards
    if not levels:
        raise ValueError("screen() needs at least one recording")
    error = standard_error_pct(logs)
    limit = own_card_limit_pct(own) if own else other_card_limit_pct(cards)
    widest = min(LEVEL_LIMIT_PCT, MOST_WIDENED * limit)
    return Screen(
        change_pct=100 * math.expm1(fmean(logs) - fmean(levels)),
        # A run whose launches scatter is no proof of a small change, either way.
        limit_pct=min(widest, max(limit, CLOSE_SE * error)),
        se_pct=error,
        noisy=CLOSE_SE * error > widest,
        own_card=bool(own),
        compared=len(levels),
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
    """A difference of two variants of a step, from segments measured alternately."""

    mean_ms: float
    mean_pct: float  # of the plain step
    half_width_pct: float  # of the 95 % interval, Student's t over the pairs; inf for one pair
    pairs: int


def paired(pairs_ms: Sequence[tuple[float, float]]) -> Paired:
    """Average other minus plain over (plain, other) pairs, each in ms a step.

    The differences themselves are averaged, not ratios or logarithms: a difference may well be
    zero. Raises ValueError without a pair or for a time that is not positive and finite.
    """
    if not pairs_ms:
        raise ValueError("paired() needs at least one pair")
    # Only for its check of the times.
    for pair_ms in pairs_ms:
        _logs(pair_ms)
    plain_ms = fmean(plain for plain, _ in pairs_ms)
    differences = [other - plain for plain, other in pairs_ms]
    count, half = len(differences), math.inf
    if count > 1:
        t = float(scipy.special.stdtrit(count - 1, 0.975))
        half = t * stdev(differences) / math.sqrt(count)
    mean = fmean(differences)
    return Paired(mean, 100 * mean / plain_ms, 100 * half / plain_ms, count)
