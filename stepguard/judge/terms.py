"""By which margins and which prior a comparison is judged, and why those. Pure.

A machine's calibration says how noisy its pairs are. That becomes the prior; and where such noise
cannot be decided by the default margins within the plan, they are widened, never narrowed.
"""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from stepguard.evidence import Evidence
from stepguard.judge.calibration import CalibratedCase
from stepguard.judge.limits import DEFAULT_LIMIT_PCT
from stepguard.judge.noise import prior_of
from stepguard.judge.power import smallest_detectable_pct
from stepguard.judge.sequential_plan import SEQUENTIAL_PLAN
from stepguard.margins import MARGINS, PRIOR, Margins, Prior

NOT_CALIBRATED = "not calibrated"
# No wider than the screen's limit where nothing is known: past that pairs would tell no more than a
# stored baseline does. Noisier machines end as INCONCLUSIVE.
WIDEST_PCT = DEFAULT_LIMIT_PCT


@dataclass(frozen=True)
class DecisionRule:
    """What pairs are judged by; ``why`` stands beside the margins in every verdict.

    The case's own margins stand where nothing is known of the machine.
    """

    margins: Margins = MARGINS
    prior: Prior = PRIOR
    why: str = NOT_CALIBRATED


# Whether a calibration applies is known once HEAD's side has told on what it runs.
RuleFor = Callable[[Evidence], DecisionRule]


def decision_rule(
    entry: CalibratedCase | None,
    evidence: Evidence,
    turn: Mapping[str, float],
    defaults: Margins = MARGINS,
) -> DecisionRule:
    """The terms for ``evidence`` of HEAD; ``turn`` is how a turn runs, in seconds.

    A calibration of other software or parameters, or of other turns, is not used, and that is said.
    """
    if entry is None or evidence.fingerprint is None:
        return DecisionRule(defaults)
    day = entry.date[:10]
    if stale := _stale(entry, evidence, turn):
        again = f"python -m stepguard calibrate {shlex.quote(evidence.case_id)}"
        return DecisionRule(defaults, why=f"calibration of {day} ignored, {stale}: {again}")
    margins, prior = widened(entry.sd_pct, entry.degrees, defaults), _prior(entry)
    known = f"calibrated {day}: pair sd {entry.sd_pct:.2g} % over {entry.pairs} pairs"
    if margins == defaults:
        return DecisionRule(margins, prior, known)
    why = (
        f"widened from {defaults.ignore_pct:g} and {defaults.matter_pct:g} %, which "
        f"{SEQUENTIAL_PLAN[-1].pairs} pairs of this noise do not decide; {known}"
    )
    return DecisionRule(margins, prior, why)


def _prior(entry: CalibratedCase) -> Prior:
    return prior_of(entry.sd_pct, entry.degrees)


def _stale(entry: CalibratedCase, evidence: Evidence, turn: Mapping[str, float]) -> str:
    """What is not as it was then; empty if all is."""
    for what, then, now in (
        ("case.", entry.case, evidence.case),
        ("", entry.software, evidence.software_key()),
        ("turn.", entry.turn, turn),
    ):
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                return f"{what}{key} was {then.get(key)!r} and is {now.get(key)!r}"
    return ""


@lru_cache(maxsize=256)
def widened(sd_pct: float, degrees: float, defaults: Margins = MARGINS) -> Margins:
    """The margins that the plan can decide at this noise: the defaults, or a larger ``matter_pct``.

    Decided means that a slowdown of the matter margin is SLOWER within the whole plan in 95 of 100
    runs. The ignore margin stays: how much is nothing is no question of noise. To 0.01 %, upwards,
    and WIDEST_PCT at most.
    """
    prior = prior_of(sd_pct, degrees)

    def decides(matter_pct: float) -> bool:
        margins = Margins(defaults.ignore_pct, matter_pct)
        return (
            smallest_detectable_pct(SEQUENTIAL_PLAN[-1].pairs, sd_pct, margins, prior) <= matter_pct
        )

    low, high = defaults.matter_pct, max(WIDEST_PCT, defaults.matter_pct)
    if low == high or decides(low):
        return defaults
    if not decides(high):
        return Margins(defaults.ignore_pct, high)
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return Margins(defaults.ignore_pct, math.ceil(round(100 * high, 6)) / 100)
