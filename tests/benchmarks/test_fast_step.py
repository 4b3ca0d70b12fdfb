"""fast_step: what is made of measured times and losses. Its steps run on a GPU only."""

import pytest

from benchmarks.fast_step import PEAK_TFLOPS, apart, table_of
from model.config import SIZES, flops_per_token


def test_a_ratio_is_taken_within_a_round():
    """A card that slows down from round to round moves the times and not the ratio."""
    found = {"theirs 64": [1000.0, 1100.0, 1210.0], "fast 64": [800.0, 880.0, 968.0]}
    table = table_of(found, "theirs 64", 524_288)
    assert table["theirs 64"]["ratio"] == 1
    assert table["fast 64"]["ratio"] == 1.25
    assert table["fast 64"]["interval_95"] == [1.25, 1.25]
    assert table["theirs 64"]["ms_per_step"] == pytest.approx(1103.333)


def test_mfu_is_of_the_published_peak():
    """A step that takes as long as its FLOPs at the peak has 100 %."""
    flops = 524_288 * flops_per_token(SIZES["124m"], 1024)
    ms = flops / PEAK_TFLOPS / 1e9
    row = table_of({"fast 64": [ms, ms]}, "fast 64", 524_288)["fast 64"]
    assert row["mfu_pct"] == 100
    assert row["tokens_per_s"] == pytest.approx(524_288 / ms * 1e3, abs=1)


def test_curves_are_compared_with_the_first_step_by_step():
    """A shorter one with as many steps as it has."""
    losses = {"reference 1": [3.0, 2.0, 1.0], "fast 1": [3.0, 2.001, 1.003], "reference 2": [3.5]}
    found = apart(losses)
    assert list(found) == ["fast 1", "reference 2"]
    assert found["fast 1"]["largest_difference"] == 0.003
    assert found["fast 1"]["mean_difference"] == pytest.approx(0.001333)
    assert (found["reference 2"]["steps"], found["reference 2"]["largest_difference"]) == (1, 0.5)
