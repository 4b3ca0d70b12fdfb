"""A machine's own noise, as pairs of the same code showed it: what is kept of it, and what of it
may be kept. Pure; reading and writing it is storage/calibrations.py's.
"""

from dataclasses import replace
from typing import Annotated, Any

import msgspec

from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.judge.ab import judge_ab
from stepguard.judge.noise import Noise
from stepguard.judge.sequential_plan import MIN_PAIRS, SEQUENTIAL_PLAN
from stepguard.verdict import Reason, Status, Verdict

SCHEMA = 1

Pct = Annotated[float, msgspec.Meta(ge=0, lt=100)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class CalibratedCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one case's pairs said. Standard deviations are of 100 * a logarithm."""

    case: dict[str, Any]  # what it was measured with, as Case.as_dict() gives it
    date: Text  # UTC, ISO 8601
    commit: Text
    device_uuid: str
    driver: str
    software: dict[str, str]  # versions that must be equal for it to apply
    turn: dict[str, Seconds]  # how a turn ran; run otherwise, pairs have other noise
    pairs: Annotated[int, msgspec.Meta(ge=MIN_PAIRS, le=SEQUENTIAL_PLAN[-1].pairs)]
    degrees: Annotated[float, msgspec.Meta(gt=0)]  # of freedom of sd_pct: pairs - 1
    sd_pct: Annotated[float, msgspec.Meta(ge=0.001, lt=100)]  # of a pair's log-ratio
    launch_sd_pct: Pct  # between the launches of one side, the run's drift included
    block_sd_pct: Pct  # of one block
    drift_pct: float
    together: bool  # both groups alive; else one launch after the other
    seconds_a_pair: Seconds


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file: one kind of machine, one number of GPUs."""

    schema: int
    machine: Text  # "NVIDIA H200", or "CPU"
    cases: dict[str, CalibratedCase]


def calibrated(
    comparison: Comparison, noise: Noise, pair_s: float, turn: dict[str, float]
) -> CalibratedCase:
    """What is kept; ``turn`` is how a turn ran, in seconds."""
    head = comparison.head
    assert head.fingerprint is not None
    return CalibratedCase(
        case=head.case,
        date=head.date,
        commit=head.commit,
        device_uuid=head.fingerprint.device_uuid,
        driver=head.fingerprint.driver,
        software=head.software_key(),
        turn=turn,
        pairs=noise.pairs,
        degrees=float(noise.pairs - 1),
        sd_pct=_digits(noise.sd_pct),
        launch_sd_pct=_digits(noise.launch_sd_pct),
        block_sd_pct=_digits(noise.block_sd_pct),
        drift_pct=_digits(noise.drift_pct),
        together=comparison.together,
        seconds_a_pair=_digits(pair_s),
    )


def _digits(value: float) -> float:
    """Four that count: a standard deviation is never known better, and rounds to nothing."""
    return float(f"{value:.4g}")


def refusal(comparison: Comparison) -> str:
    """Why these pairs of the same code are no calibration; empty if they are one."""
    verdict = judge_ab(replace(comparison, out_of_time=True))
    undecided = verdict.status is Status.INCONCLUSIVE and verdict.reason is Reason.UNDECIDED
    if verdict.status is not Status.SAME and not undecided:
        return _not_alike(verdict)
    if comparison.pairs < MIN_PAIRS:
        return f"{comparison.pairs} pairs were measured, {MIN_PAIRS} are needed"
    return ""


def _not_alike(verdict: Verdict) -> str:
    """The same code failed, or came out as other code."""
    worst, word = verdict.worst, verdict.status.value
    if verdict.message or worst is None:
        return f"{word}: {verdict.message or verdict.reason.value}"
    if worst.metric != JUDGED_TIME:
        return f"{word}: {worst.metric} {worst.old} -> {worst.new} for the same code"
    return (
        f"the same code came out {word}: {worst.note}; something tells the two sides apart, "
        "see: python -m stepguard doctor, then calibrate again"
    )
