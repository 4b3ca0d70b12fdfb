"""A machine's own noise: what pairs say of it, what is kept, and which rule it makes."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from builders import CASE, FINGERPRINT, PROPERTY, SOFTWARE, evidence, replace, with_counts
from comparisons import alike, comparison_of, simulated
from error_rates import errors
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from stepguard.core.evidence import Fault
from stepguard.core.margins import MARGINS, PRIOR, Margins, Prior
from stepguard.core.reasons import Reason
from stepguard.core.sentences import note
from stepguard.judge.ab.calibration import (
    NOT_CALIBRATED,
    POOLED_PAIRS,
    WIDEST_PCT,
    CalibratedCase,
    DecisionRule,
    NotCalibrated,
    calibrated,
    decision_rule,
    pair_noise,
    pool,
    prior_of,
    widened,
)
from stepguard.judge.ab.decision import judge_ab, wants_another_pair, wants_every_pair
from stepguard.judge.ab.pairs import smallest_detectable_pct
from stepguard.judge.ab.sequential_plan import ALPHA, BETA, MOST_PAIRS

QUIET = [0.05, -0.04, 0.02, -0.03, 0.01, -0.01]


TIMING = {"lead_s": 0.5, "block_s": 2.0, "warmup_min_s": 1.5}


def kept(pairs, wall_s=180.0, **changes):
    """The comparison as it is kept of a run that took so many seconds."""
    return replace(pairs, **{"wall_s": wall_s, "timing": TIMING} | changes)


def refusal(*comparisons):
    """Why these comparisons, oldest first, are no calibration; empty if they are one."""
    try:
        calibrated(pool([kept(one) for one in comparisons]))
    except NotCalibrated as error:
        return str(error)
    return ""


def noise_of(comparison):
    """The noise of one comparison's pairs."""
    return pair_noise(pool([kept(comparison)]).ratios_pct)


def test_quiet_pairs_are_kept():
    """Six pairs around zero are a calibration; so are noisy ones that decide nothing."""
    assert refusal(alike(QUIET)) == ""
    assert refusal(alike([50 * d for d in QUIET])) == ""


def test_what_is_kept():
    """The noise to four digits, and all by which a later run knows whether it applies."""
    pairs = simulated(24, 0.1, 0.05)
    noise = noise_of(pairs)
    found = calibrated(pool([kept(pairs, 24 * 31.23456)]))
    assert (found.pairs, found.prior, found.seconds_a_pair) == (24, Prior(found.sd_pct, 4.0), 31.23)
    assert found.sd_pct == pytest.approx(noise.sd_pct, rel=1e-3)
    assert len(f"{found.sd_pct:g}".lstrip("0.")) <= 4
    assert (found.case, found.software) == (pairs.head.case, SOFTWARE)
    assert (found.device_uuid, found.driver) == (FINGERPRINT.device_uuid, FINGERPRINT.driver)
    assert found.timing == TIMING


@pytest.mark.parametrize("pairs", [1, 3, 4, 5])
def test_too_few_pairs(pairs):
    """Under six it says how many there are, whatever they say, and what gives more."""
    found = refusal(alike(QUIET[:pairs]))
    assert found.startswith(
        f"{pairs} pairs were measured, 6 are needed; measure again, with more time: "
    )
    assert found.endswith(" --perf-against=HEAD --perf-budget=MIN")


def test_every_pair_is_wanted_whatever_they_say():
    """Where other comparisons would stop: pairs that decided, either way. Not after a fault, and
    not where no time is judged.
    """
    for ratios in (QUIET, [3 + d for d in QUIET]):
        assert wants_every_pair(alike(ratios)) and not wants_another_pair(alike(ratios))
    assert wants_every_pair(comparison_of([], []))
    failed = replace(alike(QUIET).head, faults=(Fault(Reason.RAISED, "planted"),))
    counted = replace(alike(QUIET).head, gates=("flops_per_step",))
    for head in (failed, counted):
        assert not wants_every_pair(replace(alike(QUIET), head=head))


# Several comparisons


def test_the_pairs_of_two_runs_are_one_sample():
    """Each alone is too few; together they are as if they had been measured in one run."""
    first, second = simulated(5, 0.1, 0.02, seed=1), simulated(4, 0.1, 0.02, seed=2)
    found = pool([kept(first, 100.0), kept(second, 80.0)])
    assert found.ratios_pct == pytest.approx(
        [100 * ratio for one in (first, second) for ratio in one.log_ratios()]
    )
    assert (found.newest.pairs, found.seconds_a_pair) == (4, 20.0)
    assert calibrated(found).pairs == 9


def test_the_pooled_sd_is_unbiased_and_known_better():
    """Over 100 calibrations of two runs of twelve pairs: on average the truth, and with less
    scatter than that of one run, by the square root of two.
    """
    truth = math.sqrt(2) * 0.1
    runs = [kept(simulated(12, 0.1, 0.0001, seed=seed)) for seed in range(200)]
    alone = [pair_noise([100 * d for d in run.log_ratios()]).sd_pct for run in runs]
    pooled = [
        pair_noise(pool([one, other]).ratios_pct).sd_pct
        for one, other in zip(runs[:100], runs[100:], strict=True)
    ]
    assert np.mean(np.square(pooled)) == pytest.approx(truth**2, rel=0.09)
    assert np.std(pooled) == pytest.approx(np.std(alone) / math.sqrt(2), rel=0.2)


def test_runs_that_disagree_are_noisier_together():
    """A difference of runs is noise of the next comparison, too."""
    level = noise_of(alike(QUIET)).sd_pct
    shifted = [kept(alike([shift + d for d in QUIET])) for shift in (-0.1, 0.1)]
    assert pair_noise(pool(shifted).ratios_pct).sd_pct > 3 * level


def test_the_newest_96_pairs_count():
    """Of more, the oldest are left out; a file with all of them would not be read either."""
    runs = [kept(simulated(24, 0.1, 0.02, seed=seed)) for seed in range(5)]
    found = pool(runs)
    assert calibrated(found).pairs == len(found.ratios_pct) == POOLED_PAIRS == 96
    assert found.ratios_pct == pool(runs[1:]).ratios_pct


OTHER_CONDITIONS = {
    "timing": {"timing": TIMING | {"block_s": 4.0}},
    "one after the other": {"together": False},
    "parameters": {"head": {"case": CASE | {"params": {"batch": 32}}}},
    "software": {"head": {"fingerprint": replace(FINGERPRINT, torch="1.0")}},
}


@pytest.mark.parametrize("name", OTHER_CONDITIONS)
def test_other_conditions_are_not_pooled(name):
    """Noise of other software, parameters, timing or order says nothing of today's."""
    changes = dict(OTHER_CONDITIONS[name])
    older = kept(alike([5 * d for d in QUIET]))
    for side in changes.keys() & {"head"}:
        changes[side] = replace(getattr(older, side), **changes[side])
    found = pool([kept(alike(QUIET)), replace(older, **changes), kept(alike(QUIET))])
    assert found.ratios_pct == pytest.approx(QUIET * 2)


def test_what_was_mended_is_not_pooled():
    """Pairs from before a comparison that was no calibration are of another machine: it was mended
    since. The newest one itself must be sound.
    """
    quiet, biased = kept(alike(QUIET)), kept(alike([1 + d for d in QUIET]))
    assert pool([quiet, biased, quiet]).ratios_pct == pytest.approx(QUIET)
    assert "came out SLOWER" in refusal(quiet, biased)


# What is no calibration


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_the_same_code_that_comes_out_as_other_code(shift):
    """Something tells the sides apart: that would make a noise of a bias."""
    word = "SLOWER" if shift > 0 else "FASTER"
    found = refusal(alike([shift + d for d in QUIET]))
    assert found.startswith(f"the same code came out {word}: [") and "doctor" in found


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize("code", ["RAISED", "THROTTLED", "BAD_WORKLOAD", "KILLED"])
def test_a_fault_on_either_side(side, code):
    """Pairs that were measured before it do not count."""
    pairs = alike(QUIET)
    hurt = replace(getattr(pairs, side), faults=(Fault(Reason(code), "planted"),))
    assert "planted" in refusal(replace(pairs, **{side: hurt}))


def test_no_pair_at_all():
    """As when the first launch fails."""
    pairs = comparison_of([], [])
    failed = replace(pairs.head, faults=(Fault(Reason.RAISED, "planted"),))
    assert "planted" in refusal(replace(pairs, head=failed))


@pytest.mark.parametrize("name", ["flops_per_step", "tokens_per_step"])
def test_other_work_for_the_same_code(name):
    """CHANGED, though both sides are one commit: nothing else can be relied on then."""
    pairs = alike(QUIET)
    other = with_counts(pairs.base, flops_per_step=7)
    if name == "tokens_per_step":
        other = replace(pairs.base, tokens_per_step=7)
    found = refusal(replace(pairs, base=other))
    assert found.startswith("CHANGED: ") and name in found


def test_a_counter_that_moves_for_the_same_code():
    """CHANGED is no noise of a time."""
    pairs = alike(QUIET)
    gates = (*pairs.head.gates, "graph_breaks")
    head = replace(with_counts(pairs.head, graph_breaks=3), gates=gates)
    found = refusal(replace(pairs, head=head, base=replace(pairs.base, gates=gates)))
    assert found.startswith("CHANGED: graph_breaks")


def test_a_launch_that_was_not_steady():
    """INCONCLUSIVE for another reason than the pairs' own scatter."""
    pairs = alike(QUIET)
    first, *rest = pairs.head.launches
    unsteady = replace(first, steady="still 3 % faster after 20 s")
    head = replace(pairs.head, launches=(unsteady, *rest))
    assert refusal(replace(pairs, head=head)).startswith("INCONCLUSIVE: ")


# Their noise


def test_the_interval_of_the_sd_covers():
    """In 95 of 100 calibrations of six pairs the truth lies within."""
    truth, hits = math.sqrt(2) * 0.1, 0
    for seed in range(400):
        ratios = simulated(6, 0.1, 0.0001, seed=seed).log_ratios()
        found = pair_noise([100 * ratio for ratio in ratios])
        hits += found.sd_low_pct <= truth <= found.sd_high_pct
    assert 0.92 * 400 <= hits <= 0.98 * 400


def test_by_hand():
    """Six pairs of 0, +1 and +2 %, each twice: mean 1, variance 4/5."""
    found = pair_noise([0.0, 1.0, 2.0] * 2)
    sd = math.sqrt(0.8)
    assert (found.pairs, found.mean_pct, found.sd_pct) == (6, *map(pytest.approx, (1.0, sd)))
    assert found.mean_half_width_pct == pytest.approx(stats.t.ppf(0.975, 5) * sd / math.sqrt(6))


def test_pairs_that_do_not_differ_are_refused():
    """A clock without any noise has told no time."""
    with pytest.raises(ValueError, match="no clock is that even"):
        pair_noise([0.0] * 6)


def test_pairs_of_an_h200():
    """Twenty pairs measured on one: around zero, and decided by the usual margins."""
    path = Path(__file__).parents[3] / "studies" / "judge_power" / "h200_pairs_aa_2026-11-21.json"
    pairs = json.loads(path.read_text())["pairs"]
    head, base = ([pair[side]["blocks_ms"] for pair in pairs] for side in ("head", "base"))
    found = noise_of(comparison_of(head, base))
    assert found.pairs == 20 and 0.27 < found.sd_pct < 0.29
    assert abs(found.mean_pct) < found.mean_half_width_pct
    assert widened(prior_of(found.sd_pct, 19.0)) == Margins()


@pytest.mark.parametrize("sd_pct", [0.02, 0.3])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0, 2.5, 3.0, 10.0])
def test_a_calibrated_prior_keeps_what_is_promised(sd_pct, ratio):
    """However wrong a calibration of 24 pairs is elsewhere, the plan errs as stated: it counts for
    no more degrees than the default prior.
    """
    total = errors(prior_of(sd_pct, 23.0), ratio, points=500)
    assert total["alpha"] <= ALPHA and total["beta"] <= BETA


def test_more_degrees_would_break_the_promise():
    """At 5 degrees, let alone the 23 of 24 pairs, false alarms exceed ALPHA: hence the limit."""
    found = {
        degrees: errors(Prior(0.15, degrees), 2.5, points=500)["alpha"]
        for degrees in (4, 5, 8, 12, 23)
    }
    assert found[4] <= ALPHA < found[5]
    known = {4: 0.094, 5: 0.112, 8: 0.165, 12: 0.235, 23: 0.412}
    assert {d: 100 * a for d, a in found.items()} == pytest.approx(known, rel=0.02)
    assert prior_of(0.1, 3.0) == Prior(0.1, 3.0)


# The rule


def entry(**changes):
    """A calibration of the case that making.evidence() is of."""
    fields = {
        "case": CASE,
        "date": "2026-11-20T10:00:00+00:00",
        "commit": "a" * 40,
        "device_uuid": "GPU-9",
        "driver": "580.159",
        "software": SOFTWARE,
        "timing": TIMING,
        "pairs": 24,
        "sd_pct": 0.1,
        "seconds_a_pair": 30.0,
    }
    return CalibratedCase(**fields | changes)


def test_without_a_calibration():
    """The defaults, and that nothing was calibrated; so also before any worker has told."""
    assert decision_rule(None, evidence(), TIMING) == DecisionRule()
    assert DecisionRule() == DecisionRule(MARGINS, PRIOR, NOT_CALIBRATED)
    assert decision_rule(entry(), evidence(fingerprint=None), TIMING) == DecisionRule()
    wider = Margins(1.0, 3.0)
    assert decision_rule(None, evidence(), TIMING, wider) == DecisionRule(wider)


def test_a_quiet_machine_keeps_the_margins():
    """Its noise is the prior, at four degrees; the margins are the defaults, never narrower."""
    found = decision_rule(entry(sd_pct=0.06), evidence(), TIMING)
    assert (found.margins, found.prior) == (MARGINS, Prior(0.06, 4.0))
    assert found.why == "calibrated 2026-11-20: pair sd 0.06 % over 24 pairs"


def test_a_noisy_machine_widens_what_matters():
    """0.5 % between pairs cannot decide 0.5 %: 0.68 % can be, by the rule's own figures, and the
    ignore margin stays.
    """
    found = decision_rule(entry(sd_pct=0.5), evidence(), TIMING)
    assert (found.margins, found.prior) == (Margins(0.2, 0.68), Prior(0.5, 4.0))
    assert "widened from 0.2 and 0.5 %" in found.why and "pair sd 0.5 %" in found.why
    for matter, decided in ((0.68, True), (0.67, False)):
        finds = smallest_detectable_pct(24, 0.5, Margins(0.2, matter), Prior(0.5, 4.0))
        assert (finds <= matter) is decided


@pytest.mark.parametrize(("sd_pct", "matter_pct"), [(0.3, 0.5), (0.5, 0.68), (1.0, 1.29)])
def test_the_documented_margins(sd_pct, matter_pct):
    """Those that docs/judge.md gives."""
    assert widened(prior_of(sd_pct, 23.0)) == Margins(0.2, matter_pct)


def test_there_is_an_end_to_widening():
    """Past the screen's limit pairs say no more than a stored baseline: they stay undecided."""
    assert widened(prior_of(20.0, 23.0)) == Margins(0.2, WIDEST_PCT) == Margins(0.2, 4.0)
    assert widened(prior_of(20.0, 23.0), Margins(5.0, 20.0)) == Margins(5.0, 20.0)


@settings(PROPERTY, max_examples=10)
@given(
    st.floats(1e-6, 99.0),
    st.integers(5, 23),
    st.sampled_from([MARGINS, Margins(0.0, 0.3), Margins(1.0, 3.0), Margins(5.0, 20.0)]),
)
def test_margins_are_never_narrower_and_decide(sd_pct, degrees, defaults):
    """Whatever the noise: the defaults, or as wide as the plan needs, or as wide as may be."""
    prior = prior_of(sd_pct, float(degrees))
    found = widened(prior, defaults)
    assert found.ignore_pct == defaults.ignore_pct
    assert defaults.matter_pct <= found.matter_pct <= max(WIDEST_PCT, defaults.matter_pct)
    finds = smallest_detectable_pct(MOST_PAIRS, sd_pct, found, prior)
    assert finds <= found.matter_pct or found.matter_pct >= WIDEST_PCT


STALE = {
    "software": (
        {"software": SOFTWARE | {"torch": "2.10.0"}}, {}, "torch 2.10.0 -> 2.11.0"
    ),
    "software that torch brings along": (
        {"software": SOFTWARE | {"torch": "2.10.0", "cudnn": "1", "cuda": "1"}}, {},
        "ignored, torch 2.10.0 -> 2.11.0:",
    ),
    "software that is set": (
        {}, {"fingerprint": replace(FINGERPRINT, environment={"TORCHINDUCTOR_X": "1"})},
        "environment unset -> TORCHINDUCTOR_X=1",
    ),
    "parameters": (
        {"case": CASE | {"params": {"batch": 32}}}, {}, "batch 32 -> "
    ),
    "workload": ({}, {"case": CASE | {"workload": "a:b"}}, "-> a:b"),
    "world size": ({}, {"case": CASE | {"world_size": 2}}, "world_size 1 -> 2"),
    "block": ({"timing": TIMING | {"block_s": 4.0}}, {}, "block_s 4.0 -> 2.0"),
    "warm-up": ({"timing": {"lead_s": 0.5, "block_s": 2.0}}, {}, "warmup_min_s unset -> "),
}  # fmt: skip


@pytest.mark.parametrize("name", STALE)
def test_a_stale_calibration_is_ignored_loudly(name):
    """Other software, another case or another protocol: the defaults, why, and what mends it."""
    recorded, now, words = STALE[name]
    past, again = entry(sd_pct=0.6, **recorded), "type this"
    found = decision_rule(past, evidence(**now), TIMING, again=again)
    assert (found.margins, found.prior) == (MARGINS, PRIOR)
    assert words in found.why and "calibration of 2026-11-20 ignored" in found.why
    assert found.why.endswith(": type this")


def test_another_card_of_the_kind_is_not_stale():
    """A file is for a kind of machine; which card it was is told in the file."""
    other = replace(FINGERPRINT, device_uuid="GPU-other")
    assert decision_rule(entry(), evidence(fingerprint=other), TIMING).prior == Prior(0.1, 4.0)


@pytest.mark.parametrize("ratio_pct", [0.0, 0.9, -0.9])
def test_every_verdict_says_which_margins_and_why(ratio_pct):
    """SLOWER, FASTER and same alike."""
    pairs = alike([ratio_pct + wobble for wobble in (0.01, -0.01, 0.0, 0.01, -0.01, 0.0)])
    rule = decision_rule(entry(sd_pct=0.5), pairs.head, TIMING)
    found = replace(pairs, margins=rule.margins, prior=rule.prior, why=rule.why)
    verdict = judge_ab(replace(found, out_of_time=True))
    (text,) = (note(metric) for metric in verdict.metrics if metric.metric == "step_ms")
    assert f"margins 0.2 and 0.68 % ({rule.why})" in text


def test_widening_changes_what_is_said():
    """Pairs of 0.7 % noise around 0.25 %: never `same` by the usual margins, `same` by wider ones;
    a slowdown of 2 % is SLOWER by either.
    """
    wobble = [math.sin(3 * k) for k in range(24)]
    wide = decision_rule(entry(sd_pct=0.6), evidence(), TIMING)
    for shift, usual, wider in ((0.25, "INCONCLUSIVE", "same"), (2.0, "SLOWER", "SLOWER")):
        pairs = alike([shift + one for one in wobble])
        assert judge_ab(pairs).status.value == usual
        calibrated = replace(pairs, margins=wide.margins, prior=wide.prior)
        assert judge_ab(calibrated).status.value == wider
