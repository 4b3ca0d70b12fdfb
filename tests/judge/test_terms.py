"""By which margins and prior pairs are judged, and that it is said."""

import math
from dataclasses import replace

import pytest
from builders import CASE, FINGERPRINT, PROPERTY, SOFTWARE, evidence
from comparisons import alike
from hypothesis import given, settings
from hypothesis import strategies as st

from stepguard.judge.ab import judge_ab
from stepguard.judge.calibration import CalibratedCase
from stepguard.judge.noise import prior_of
from stepguard.judge.power import smallest_detectable_pct
from stepguard.judge.sequential_plan import SEQUENTIAL_PLAN
from stepguard.judge.terms import NOT_CALIBRATED, WIDEST_PCT, DecisionRule, decision_rule, widened
from stepguard.margins import MARGINS, PRIOR, Margins, Prior

TURN = {"lead_s": 0.5, "block_s": 2.0, "warmup_min_s": 1.5}


def entry(**changes):
    """A calibration of the case that making.evidence() is of."""
    fields = {
        "case": CASE,
        "date": "2026-11-20T10:00:00+00:00",
        "commit": "a" * 40,
        "device_uuid": "GPU-9",
        "driver": "580.159",
        "software": SOFTWARE,
        "turn": TURN,
        "pairs": 24,
        "degrees": 23.0,
        "sd_pct": 0.1,
        "launch_sd_pct": 0.2,
        "block_sd_pct": 0.05,
        "drift_pct": -0.3,
        "together": True,
        "seconds_a_pair": 30.0,
    }
    return CalibratedCase(**fields | changes)


def test_without_a_calibration():
    """The defaults, and that nothing was calibrated; so also before any worker has told."""
    assert decision_rule(None, evidence(), TURN) == DecisionRule()
    assert DecisionRule() == DecisionRule(MARGINS, PRIOR, NOT_CALIBRATED)
    assert decision_rule(entry(), evidence(fingerprint=None), TURN) == DecisionRule()
    wider = Margins(1.0, 3.0)
    assert decision_rule(None, evidence(), TURN, wider) == DecisionRule(wider)


def test_a_quiet_machine_keeps_the_margins():
    """Its noise is the prior, at four degrees; the margins are the defaults, never narrower."""
    found = decision_rule(entry(sd_pct=0.06), evidence(), TURN)
    assert (found.margins, found.prior) == (MARGINS, Prior(0.06, 4.0))
    assert found.why == "calibrated 2026-11-20: pair sd 0.06 % over 24 pairs"


def test_a_noisy_machine_widens_what_matters():
    """0.5 % between pairs cannot decide 0.5 %: 0.68 % can be, by the rule's own figures, and the
    ignore margin stays.
    """
    found = decision_rule(entry(sd_pct=0.5), evidence(), TURN)
    assert (found.margins, found.prior) == (Margins(0.2, 0.68), Prior(0.5, 4.0))
    assert "widened from 0.2 and 0.5 %" in found.why and "pair sd 0.5 %" in found.why
    for matter, decided in ((0.68, True), (0.67, False)):
        finds = smallest_detectable_pct(24, 0.5, Margins(0.2, matter), Prior(0.5, 4.0))
        assert (finds <= matter) is decided


@pytest.mark.parametrize(("sd_pct", "matter_pct"), [(0.3, 0.5), (0.5, 0.68), (1.0, 1.29)])
def test_the_documented_margins(sd_pct, matter_pct):
    """Those that docs/judge.md gives."""
    assert widened(sd_pct, 23.0) == Margins(0.2, matter_pct)


def test_there_is_an_end_to_widening():
    """Past the screen's limit pairs say no more than a stored baseline: they stay undecided."""
    assert widened(20.0, 23.0) == Margins(0.2, WIDEST_PCT) == Margins(0.2, 4.0)
    assert widened(20.0, 23.0, Margins(5.0, 20.0)) == Margins(5.0, 20.0)


@settings(PROPERTY, max_examples=10)
@given(
    st.floats(1e-6, 99.0),
    st.integers(5, 23),
    st.sampled_from([MARGINS, Margins(0.0, 0.3), Margins(1.0, 3.0), Margins(5.0, 20.0)]),
)
def test_margins_are_never_narrower_and_decide(sd_pct, degrees, defaults):
    """Whatever the noise: the defaults, or as wide as the plan needs, or as wide as may be."""
    found = widened(sd_pct, float(degrees), defaults)
    assert found.ignore_pct == defaults.ignore_pct
    assert defaults.matter_pct <= found.matter_pct <= max(WIDEST_PCT, defaults.matter_pct)
    finds = smallest_detectable_pct(
        SEQUENTIAL_PLAN[-1].pairs, sd_pct, found, prior_of(sd_pct, float(degrees))
    )
    assert finds <= found.matter_pct or found.matter_pct >= WIDEST_PCT


STALE = {
    "software": (
        {"software": SOFTWARE | {"torch": "2.10.0"}}, {}, "torch was '2.10.0' and is '2.11.0'"
    ),
    "software that is set": (
        {}, {"fingerprint": replace(FINGERPRINT, environment={"TORCHINDUCTOR_X": "1"})},
        "environment was None and is 'TORCHINDUCTOR_X=1'",
    ),
    "parameters": (
        {"case": CASE | {"params": {"batch": 32}}}, {}, "case.params was {'batch': 32} and is"
    ),
    "workload": ({}, {"case": CASE | {"workload": "a:b"}}, "case.workload was"),
    "world size": ({}, {"case": CASE | {"world_size": 2}}, "case.world_size was 1 and is 2"),
    "block": ({"turn": TURN | {"block_s": 4.0}}, {}, "turn.block_s was 4.0 and is 2.0"),
    "warm-up": ({"turn": {"lead_s": 0.5, "block_s": 2.0}}, {}, "turn.warmup_min_s was None"),
}  # fmt: skip


@pytest.mark.parametrize("name", STALE)
def test_a_stale_calibration_is_ignored_loudly(name):
    """Other software, another case or another protocol: the defaults, why, and what mends it."""
    recorded, now, words = STALE[name]
    found = decision_rule(entry(sd_pct=0.6, **recorded), evidence(**now), TURN)
    assert (found.margins, found.prior) == (MARGINS, PRIOR)
    assert words in found.why and "calibration of 2026-11-20 ignored" in found.why
    assert "python -m stepguard calibrate 'train_step[124m-bf16]'" in found.why


def test_another_card_of_the_kind_is_not_stale():
    """A file is for a kind of machine; which card it was is told in the file."""
    other = replace(FINGERPRINT, device_uuid="GPU-other")
    assert decision_rule(entry(), evidence(fingerprint=other), TURN).prior == Prior(0.1, 4.0)


@pytest.mark.parametrize("ratio_pct", [0.0, 0.9, -0.9])
def test_every_verdict_says_which_margins_and_why(ratio_pct):
    """SLOWER, FASTER and same alike."""
    pairs = alike([ratio_pct + wobble for wobble in (0.01, -0.01, 0.0, 0.01, -0.01, 0.0)])
    terms = decision_rule(entry(sd_pct=0.5), pairs.head, TURN)
    found = replace(pairs, margins=terms.margins, prior=terms.prior, why=terms.why)
    verdict = judge_ab(replace(found, out_of_time=True))
    (note,) = (metric.note for metric in verdict.metrics if metric.metric == "step_ms")
    assert f"margins 0.2 and 0.68 % ({terms.why})" in note


def test_widening_changes_what_is_said():
    """Pairs of 0.7 % noise around 0.25 %: never `same` by the usual margins, `same` by wider ones;
    a slowdown of 2 % is SLOWER by either.
    """
    wobble = [math.sin(3 * k) for k in range(24)]
    wide = decision_rule(entry(sd_pct=0.6), evidence(), TURN)
    for shift, usual, wider in ((0.25, "INCONCLUSIVE", "same"), (2.0, "SLOWER", "SLOWER")):
        pairs = alike([shift + one for one in wobble])
        assert judge_ab(pairs).status.value == usual
        calibrated = replace(pairs, margins=wide.margins, prior=wide.prior)
        assert judge_ab(calibrated).status.value == wider
