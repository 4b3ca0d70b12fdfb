"""A machine's own noise, and the rule that A/B comparisons on it are decided by. Pure.

Pairs of a commit with itself say how noisy a machine's pairs are. That becomes the prior of the
next comparisons; and where such noise cannot be decided by the default margins within the
sequential plan, the matter margin is widened, never narrowed.
"""

import math
import shlex
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from statistics import fmean, stdev
from typing import Annotated, Any

import msgspec
import scipy

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.margins import MARGINS, PRIOR, Margins, Prior
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.recording import Text
from stepguard.core.sentences import message, note
from stepguard.core.verdict import Reason, Status
from stepguard.judge.ab.decision import judge_ab
from stepguard.judge.ab.pairs import smallest_detectable_pct
from stepguard.judge.ab.sequential_plan import MIN_PAIRS, MOST_PAIRS
from stepguard.judge.conditions import first_change
from stepguard.judge.noise_limits import LEVEL_LIMIT_PCT

SCHEMA = 2
POOLED_PAIRS = 4 * MOST_PAIRS  # the newest; older ones are of a machine of long ago
NOT_CALIBRATED = "not calibrated"
# No wider than the screen's limit where nothing is known: past that pairs would say no more than a
# stored baseline does. Noisier machines end as INCONCLUSIVE.
WIDEST_PCT = LEVEL_LIMIT_PCT

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class CalibratedCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The noise of one case's pairs on one kind of machine, and all that it depends on."""

    case: dict[str, Any]  # what it was measured with, as Case.as_dict() gives it
    date: Text  # UTC, ISO 8601; like the next three, of the newest pairs
    commit: Text
    device_uuid: str
    driver: str
    software: dict[str, str]  # versions that must be equal for it to apply
    timing: dict[str, Seconds]  # of a pair; with another one pairs have other noise
    pairs: Annotated[int, msgspec.Meta(ge=MIN_PAIRS, le=POOLED_PAIRS)]
    sd_pct: Annotated[float, msgspec.Meta(ge=0.001, lt=100)]  # of a pair's 100 * log-ratio
    seconds_a_pair: Seconds  # with its share of the counting launches

    @property
    def prior(self) -> Prior:
        """Return the prior that these pairs make."""
        return prior_of(self.sd_pct, self.pairs - 1)


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file: one kind of machine, one number of GPUs."""

    schema: int
    machine: Text  # "NVIDIA H200", or "CPU"
    cases: dict[str, CalibratedCase]


class NotCalibrated(ValueError):
    """Pairs that are no calibration; one sentence says why."""


@dataclass(frozen=True)
class PairPool:
    """Pairs of one case with itself, out of one comparison or several of the same kind."""

    newest: Comparison
    ratios_pct: tuple[float, ...]  # 100 * log(head / base) of each pair, oldest first
    seconds_a_pair: float


def pool(comparisons: Sequence[Comparison]) -> PairPool:
    """Return the newest POOLED_PAIRS pairs of a case's comparisons with itself, given oldest first:
    of those made with the newest one's parameters, software and timing, and only back to the last
    one that was no calibration, since something was mended after it.

    Raises NotCalibrated if the newest one failed, or if the same code came out as other code.
    """
    newest = comparisons[-1]
    alike = [one for one in comparisons if _conditions(one) == _conditions(newest)]
    sound = list(takewhile(lambda one: not _unlike(one), reversed(alike)))
    if not sound:
        raise NotCalibrated(_unlike(newest))
    # Back into the order of time, since the newest are kept.
    ratios = [100 * ratio for one in reversed(sound) for ratio in one.log_ratios()]
    seconds_a_pair = math.fsum(one.wall_s for one in sound) / len(ratios)
    return PairPool(newest, tuple(ratios[-POOLED_PAIRS:]), seconds_a_pair)


def _conditions(comparison: Comparison) -> tuple[Any, ...]:
    """Return all that the noise of a case's pairs depends on."""
    head = comparison.head
    return head.case, head.software_key(), comparison.timing, comparison.together


def _unlike(comparison: Comparison) -> str:
    """Return why a comparison of a commit with itself says nothing of noise; empty if it does."""
    # As if time were up: a count of pairs between two interim analyses decides nothing else.
    verdict = judge_ab(replace(comparison, out_of_time=True))
    # Noise that the margins cannot decide is what a calibration is for.
    undecided = verdict.status is Status.INCONCLUSIVE and verdict.reason is Reason.UNDECIDED
    if verdict.status is Status.SAME or undecided:
        return ""
    worst, word = verdict.worst, verdict.status.value
    if verdict.whole or worst is None:
        return f"{word}: {message(verdict) or verdict.reason.phrase}"
    if worst.metric != JUDGED_TIME:
        return f"{word}: {worst.metric} {worst.old} -> {worst.new} for the same code"
    return (
        f"the same code came out {word}: {note(worst)}; something makes the two sides unequal: "
        "see what the command doctor says, then measure again"
    )


@dataclass(frozen=True)
class PairNoise:
    """The scatter of pairs of the same code, in percent, with 95 % intervals for normal pairs."""

    pairs: int
    sd_pct: float
    sd_low_pct: float
    sd_high_pct: float
    mean_pct: float  # of what is zero in truth
    mean_half_width_pct: float


def pair_noise(ratios_pct: Sequence[float]) -> PairNoise:
    """Return the noise of pairs of the same code.

    Raises NotCalibrated with fewer than MIN_PAIRS pairs, and for pairs that do not differ at all: a
    clock without noise measured no time.
    """
    count, degrees = len(ratios_pct), len(ratios_pct) - 1
    if count < MIN_PAIRS:
        raise NotCalibrated(
            f"{count} pairs were measured, {MIN_PAIRS} are needed; measure again, with more time: "
            "--perf-against=HEAD --perf-budget=MIN"
        )
    sd = stdev(ratios_pct)
    if not sd > 0:
        raise NotCalibrated(f"all {count} pairs are {ratios_pct[0]:+.3f} %: no clock is that even")
    return PairNoise(
        pairs=count,
        sd_pct=sd,
        sd_low_pct=sd * math.sqrt(degrees / float(scipy.special.chdtri(degrees, 0.025))),
        sd_high_pct=sd * math.sqrt(degrees / float(scipy.special.chdtri(degrees, 0.975))),
        mean_pct=fmean(ratios_pct),
        mean_half_width_pct=float(scipy.special.stdtrit(degrees, 0.975)) * sd / math.sqrt(count),
    )


def calibrated(pairs: PairPool) -> CalibratedCase:
    """Return what is kept of the pairs. Raises NotCalibrated as pair_noise() does."""
    noise, head = pair_noise(pairs.ratios_pct), pairs.newest.head
    assert head.fingerprint is not None
    return CalibratedCase(
        case=head.case,
        date=head.date,
        commit=head.commit,
        device_uuid=head.fingerprint.device_uuid,
        driver=head.fingerprint.driver,
        software=head.software_key(),
        timing=pairs.newest.timing,
        pairs=noise.pairs,
        sd_pct=_digits(noise.sd_pct),
        seconds_a_pair=_digits(pairs.seconds_a_pair),
    )


def _digits(value: float) -> float:
    """Return four significant digits: a standard deviation is never known better."""
    return float(f"{value:.4g}")


@dataclass(frozen=True)
class DecisionRule:
    """The margins and the prior that pairs are judged by; ``why`` is beside them in every verdict.

    Where nothing is known of the machine these are the case's own margins and the usual prior.
    """

    margins: Margins = MARGINS
    prior: Prior = PRIOR
    why: str = NOT_CALIBRATED


# Whether a calibration applies is known once HEAD's side has sent what software it runs.
RuleFor = Callable[[Evidence], DecisionRule]


def to_calibrate(called: Callable[[str], str], case_id: str, folder: str = "") -> str:
    """Return the commands that measure a case's noise and learn from it, each as ``called`` has it
    typed; ``folder`` is that of the baselines, where it is not the usual one.

    They name the case: its share of a budget for all cases is too short for MIN_PAIRS.
    """
    case, typed = shlex.quote(case_id), shlex.quote(folder)
    judged_by, of = (f" --perf-baselines={typed}", f" --baselines {typed}") if folder else ("", "")
    measure = called(f"pytest perf_tests{judged_by} --perf-against=HEAD --perf-select={case}")
    return f"{measure}, then {called(f'stepguard calibrate {case}{of}')}"


def decision_rule(
    entry: CalibratedCase | None,
    evidence: Evidence,
    timing: Mapping[str, float],
    defaults: Margins = MARGINS,
    again: str = "calibrate anew",
) -> DecisionRule:
    """Return the rule for ``evidence`` of HEAD; ``timing`` is that of a pair now, in seconds.

    A calibration of other software, parameters or timing is not used, and ``why`` says so, and how
    to make it ``again``.
    """
    if entry is None or evidence.fingerprint is None:
        return DecisionRule(defaults)
    day = entry.date[:10]
    if stale := _stale(entry, evidence, timing):
        return DecisionRule(defaults, why=f"calibration of {day} ignored, {stale}: {again}")
    margins = widened(entry.prior, defaults)
    why = f"calibrated {day}: pair sd {entry.sd_pct:.2g} % over {entry.pairs} pairs"
    if margins != defaults:
        why = (
            f"widened from {defaults.ignore_pct:g} and {defaults.matter_pct:g} %, which "
            f"{MOST_PAIRS} pairs of this noise do not decide; {why}"
        )
    return DecisionRule(margins, entry.prior, why)


def _stale(entry: CalibratedCase, evidence: Evidence, timing: Mapping[str, float]) -> str:
    """Return the first thing that is not as it was then; empty if all is."""
    software = entry.software, evidence.software_key()
    return first_change([(entry.case, evidence.case), software, (entry.timing, timing)])


def prior_of(sd_pct: float, degrees: float) -> Prior:
    """Return the prior of a machine's own pairs; never worth more than the default's degrees.

    With more, the sequential plan would err more often than it says wherever the noise is not what
    it was: at noise 2.5 times as large, 0.094 % of false alarms at 4 degrees, 0.11 % at 5, 0.41 %
    at 23.
    """
    return Prior(sd_pct, min(degrees, PRIOR.degrees))


@lru_cache(maxsize=256)
def widened(prior: Prior, defaults: Margins = MARGINS) -> Margins:
    """Return the margins that the plan can decide at the prior's noise: the defaults, or a larger
    ``matter_pct``.

    Decided means that a slowdown of the matter margin is SLOWER within the whole plan in 95 of 100
    runs. The ignore margin stays: how much is nothing is no question of noise. To 0.01 %, upwards,
    and WIDEST_PCT at most.
    """

    def decides(matter_pct: float) -> bool:
        margins = Margins(defaults.ignore_pct, matter_pct)
        return smallest_detectable_pct(MOST_PAIRS, prior.sd_pct, margins, prior) <= matter_pct

    # A case on a CPU asks for wider margins than WIDEST_PCT itself; those are not narrowed.
    if defaults.matter_pct >= WIDEST_PCT or decides(defaults.matter_pct):
        return defaults
    hundredths = range(math.floor(100 * defaults.matter_pct) + 1, round(100 * WIDEST_PCT))
    # Where none decides, `first` is behind the last, which makes it WIDEST_PCT.
    first = bisect_left(hundredths, True, key=lambda matter: decides(matter / 100))
    return Margins(defaults.ignore_pct, (hundredths.start + first) / 100)
