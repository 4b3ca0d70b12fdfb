"""Arithmetic of the screen: how far a run is from the recordings, and how far it may be.

All of it is on logarithms of per-launch step times, since launches differ by ratios. A launch is
one observation; the steps inside it are not independent and never counted as such.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from scipy.special import fdtri, stdtrit

# Two H200s differ by 1.3 %, two hosts by 3 %, one card by 4 % between cold and hot. Until an epoch
# has MIN_RECORDINGS its own spread cannot be known, and this replaces it.
DEFAULT_LIMIT_PCT = 4.0
MIN_RECORDINGS = 5
FLOOR_LIMIT_PCT = 0.5  # a limit below this would judge the card's temperature
ALPHA = 0.001  # one-sided, per metric
LAUNCH_SD_PCT = 0.25  # what launches of one case differ by at the least, when few are at hand
PRIOR_WEIGHT = 4.0  # degrees of freedom that LAUNCH_SD_PCT counts for
DIFFERENCE_LIMIT_PCT = 0.5  # of a step: hosts differ in how long they take to wake up and launch
CLOSE_SE = 2.0  # "close": the limit lies within this many standard errors of the change


@dataclass(frozen=True)
class Screen:
    """The comparison of one run with the recordings of an epoch, in percent."""

    change_pct: float
    limit_pct: float
    se_pct: float  # standard error of this run's level, from its launches
    recordings: int

    @property
    def close(self) -> bool:
        """Tell whether more launches could change what the comparison says."""
        return abs(abs(self.change_pct) - self.limit_pct) < CLOSE_SE * self.se_pct

    @property
    def noisy(self) -> bool:
        """Tell whether the launches differ so much that the limit cannot be told from noise."""
        return CLOSE_SE * self.se_pct > self.limit_pct


def limit_pct(recording_levels: Sequence[float]) -> float:
    """Return the screen's limit in percent, from the log levels of the epoch's recordings.

    A prediction limit for one more recording, ``t(1 - ALPHA, S - 1) * s * sqrt(1 + 1 / S)`` with s
    the standard deviation between recordings, kept between FLOOR_LIMIT_PCT and DEFAULT_LIMIT_PCT.
    Fewer than MIN_RECORDINGS recordings give DEFAULT_LIMIT_PCT.
    """
    count = len(recording_levels)
    if count < MIN_RECORDINGS:
        return DEFAULT_LIMIT_PCT
    spread = stdev(recording_levels)
    reach = float(stdtrit(count - 1, 1 - ALPHA)) * spread * math.sqrt(1 + 1 / count)
    # Capped: recordings of cards that differ much would else allow more than no knowledge at all.
    return min(DEFAULT_LIMIT_PCT, max(FLOOR_LIMIT_PCT, 100 * math.expm1(reach)))


def standard_error_pct(logs: Sequence[float]) -> float:
    """Return the standard error of the mean log over launches, in percent.

    The variance is pooled with LAUNCH_SD_PCT at four degrees of freedom, so that two launches that
    happen to agree are not taken for certainty.
    """
    count = len(logs)
    prior = (LAUNCH_SD_PCT / 100) ** 2
    sample = variance(logs) if count > 1 else 0.0
    pooled = (PRIOR_WEIGHT * prior + (count - 1) * sample) / (PRIOR_WEIGHT + count - 1)
    return 100 * math.sqrt(pooled / count)


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
    return math.sqrt(total / weight * float(fdtri(launches - 1, weight, 1 - ALPHA)))


def screen(launch_ms: Sequence[float], recordings_ms: Sequence[Sequence[float]]) -> Screen:
    """Compare this run's launches with the recordings' launches, each in ms per step.

    Raises ValueError when a side is empty or a time is not a positive finite number.
    """
    logs = _logs(launch_ms)
    levels = [fmean(_logs(recording)) for recording in recordings_ms]
    if not levels:
        raise ValueError("screen() needs at least one recording")
    return Screen(
        change_pct=100 * math.expm1(fmean(logs) - fmean(levels)),
        limit_pct=limit_pct(levels),
        se_pct=standard_error_pct(logs),
        recordings=len(levels),
    )


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
    for one in pairs_ms:
        _logs(one)
    plain_ms = fmean(plain for plain, _ in pairs_ms)
    differences = [other - plain for plain, other in pairs_ms]
    count = len(differences)
    half = math.inf
    if count > 1:
        half = float(stdtrit(count - 1, 0.975)) * stdev(differences) / math.sqrt(count)
    mean = fmean(differences)
    return Paired(mean, 100 * mean / plain_ms, 100 * half / plain_ms, count)
