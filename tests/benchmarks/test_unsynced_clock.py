"""unsynced_clock: what is made of measured blocks, and the whole on a CPU."""

import pytest

from benchmarks.unsynced_clock import VARIANTS, one_variant, summed_up, table


def test_a_clock_that_reads_too_little_is_named():
    """By percent of what a step takes. Times are compared with P's of the same series."""
    series = [
        {name: {"true_ms": ms * slower, "clock_ms": ms, "first_ms": ms} for name in VARIANTS}
        for ms, slower in ((100.0, 1.25), (200.0, 1.25))
    ]
    for one in series:
        one["UI"]["true_ms"] *= 1.01
    lines = {line.split()[0]: line.split()[1:] for line in table(summed_up(series), 1500)[1:]}
    assert lines["P"] == ["187.50", "8,000", "150.00", "150.00", "-20.0", "%"]
    assert lines["UI"][2:5] == ["[+1.00,", "+1.00]", "%"]


def test_a_variant_is_a_workload():
    """Its phases are those of the step, and its own wait; each copies the batch that it should."""
    step = one_variant(variant="US", device="cpu", size="nano", batch=1, seq=16)
    seen = []
    step.on_phase = seen.append
    assert step.step().isfinite()
    assert seen[-1] == "wait" and set(seen) <= set(step.phases)
    with pytest.raises(ValueError, match="variant"):
        one_variant(variant="X", device="cpu")
