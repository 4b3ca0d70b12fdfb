"""What pairs of the same code are kept as, and which are not kept."""

from dataclasses import replace

import pytest
from builders import FINGERPRINT, SOFTWARE, with_counts
from comparisons import alike, comparison_of, simulated

from stepguard.evidence import Fault
from stepguard.judge.calibration import calibrated, refusal
from stepguard.judge.noise import noise_of

QUIET = [0.05, -0.04, 0.02, -0.03, 0.01, -0.01]


def test_quiet_pairs_are_kept():
    """Six pairs around zero are a calibration; so are noisy ones that decide nothing."""
    assert refusal(alike(QUIET)) == ""
    assert refusal(alike([50 * d for d in QUIET])) == ""


def test_what_is_kept():
    """The noise to four digits, and all by which a later run knows whether it applies."""
    pairs = simulated(24, 0.1, 0.05)
    noise = noise_of(pairs)
    found = calibrated(pairs, noise, 31.23456, {"block_s": 2.0})
    assert (found.pairs, found.degrees, found.seconds_a_pair) == (24, 23.0, 31.23)
    assert found.sd_pct == pytest.approx(noise.sd_pct, rel=1e-3)
    assert len(f"{found.sd_pct:g}".lstrip("0.")) <= 4
    assert (found.case, found.software) == (pairs.head.case, SOFTWARE)
    assert (found.device_uuid, found.driver) == (FINGERPRINT.device_uuid, FINGERPRINT.driver)
    assert (found.turn, found.together) == ({"block_s": 2.0}, True)


@pytest.mark.parametrize("pairs", [1, 3, 4, 5])
def test_too_few_pairs(pairs):
    """Under six it says how many there are, whatever they say."""
    assert refusal(alike(QUIET[:pairs])) == f"{pairs} pairs were measured, 6 are needed"


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
    hurt = replace(getattr(pairs, side), faults=(Fault(code, "planted"),))
    assert "planted" in refusal(replace(pairs, **{side: hurt}))


def test_no_pair_at_all():
    """As when the first launch fails."""
    pairs = comparison_of([], [])
    failed = replace(pairs.head, faults=(Fault("RAISED", "planted"),))
    assert "planted" in refusal(replace(pairs, head=failed))


@pytest.mark.parametrize("name", ["flops_per_step", "tokens_per_step"])
def test_other_work_for_the_same_code(name):
    """NOT COMPARABLE, though both sides are one commit: nothing else can be relied on then."""
    pairs = alike(QUIET)
    other = with_counts(pairs.base, flops_per_step=7)
    if name == "tokens_per_step":
        other = replace(pairs.base, tokens_per_step=7)
    found = refusal(replace(pairs, base=other))
    assert found.startswith("NOT COMPARABLE: ") and name in found


def test_a_counter_that_moves_for_the_same_code():
    """CHANGED is no noise of a time."""
    pairs = alike(QUIET)
    gates = (*pairs.head.gates, "graph_breaks")
    head = replace(with_counts(pairs.head, graph_breaks=3), gates=gates)
    found = refusal(replace(pairs, head=head, base=replace(pairs.base, gates=gates)))
    assert found.startswith("CHANGED: graph_breaks")
