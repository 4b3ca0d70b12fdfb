"""Limits of times and differences against recordings: how far a run is from them, and how far it
may be. docs/method.md has the recordings that they were checked with.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import scipy

# A time raises an alarm if it is so far from the mean of the level's recordings: of this card, or
# of other cards. Pairs answer an alarm. Of 13 accepted recordings on a card that was known none is
# beyond 1 % of the others, of 46 on other cards none beyond 2.5 % (baselines/, 2026-11-28).
OWN_CARD_PCT, OTHER_CARD_PCT = 0.7, 2.0
DIFFERENCE_LIMIT_PCT = 0.5  # of a step: hosts differ in how fast they wake up and launch


@dataclass(frozen=True)
class Screen:
    """The comparison of one run's time with the recordings of a level, in percent."""

    change_pct: float
    own_card: bool  # compared with recordings of this very card; else with other cards
    compared: int  # how many such recordings, or such cards

    @property
    def limit_pct(self) -> float:
        """Return the change beyond which the time is an alarm, either way."""
        return OWN_CARD_PCT if self.own_card else OTHER_CARD_PCT


def screen_times(
    launch_ms: Sequence[float],
    own_ms: Sequence[Sequence[float]],
    other_cards_ms: Sequence[Sequence[Sequence[float]]] = (),
) -> Screen:
    """Compare this run's launches with those of recordings, each in ms per step. Recordings of the
    same card are used if there are any; else those of other cards, where each card counts once.

    Raises ValueError when a side is empty or a time is not a positive finite number.
    """
    own = [_level(recording) for recording in own_ms]
    cards = [fmean(_level(recording) for recording in card) for card in other_cards_ms]
    levels = own or cards
    if not levels:
        raise ValueError("screen_times() needs at least one recording")
    change_pct = 100 * math.expm1(_level(launch_ms) - fmean(levels))
    return Screen(change_pct, own_card=bool(own), compared=len(levels))


def _level(launch_ms: Sequence[float]) -> float:
    """Return the mean of the logs of step times: launches differ by ratios."""
    if not launch_ms:
        raise ValueError("no launch to take a level from")
    for ms in launch_ms:
        if not (math.isfinite(ms) and ms > 0):
            raise ValueError(f"step time {ms!r} ms: not a positive finite number")
    return fmean(map(math.log, launch_ms))


@dataclass(frozen=True)
class Paired:
    """A difference of two variants of a step, from segments that were measured in turns."""

    mean_ms: float
    mean_pct: float  # of the plain step
    half_width_pct: float  # of the 95 % interval, Student's t over the pairs; inf for one pair

    def certain(self, then_pct: float) -> bool:
        """Tell whether the whole interval is within the limit of a recorded difference."""
        return abs(self.mean_pct - then_pct) + self.half_width_pct <= DIFFERENCE_LIMIT_PCT


def paired(pairs_ms: Sequence[tuple[float, float]]) -> Paired:
    """Return the mean of other minus plain over (plain, other) pairs, each in ms a step.

    The differences themselves are averaged, not ratios or logarithms, since a difference may be
    zero. Raises ValueError without a pair, or for a time that is not positive and finite.
    """
    if not pairs_ms:
        raise ValueError("paired() needs at least one pair")
    # Called only to check the times.
    for pair_ms in pairs_ms:
        _level(pair_ms)
    plain_ms = fmean(plain for plain, _ in pairs_ms)
    differences = [other - plain for plain, other in pairs_ms]
    count, half = len(differences), math.inf
    if count > 1:
        t = float(scipy.special.stdtrit(count - 1, 0.975))
        half = t * stdev(differences) / math.sqrt(count)
    mean = fmean(differences)
    return Paired(mean, 100 * mean / plain_ms, 100 * half / plain_ms)
