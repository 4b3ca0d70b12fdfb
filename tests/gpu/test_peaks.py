"""Peaks of GPUs, against the vendor's data sheets."""

import pytest

from stepguard.measure.combine_ranks import nominal_peak_flops, physical_peak_flops


@pytest.mark.parametrize(("name", "precision", "tflops"), [
    ("NVIDIA H200", "bf16", 989),
    ("NVIDIA H200", "fp16", 989),
    ("NVIDIA H200", "tf32", 494),
    ("NVIDIA H200", "fp32", 67),
    ("NVIDIA H200 NVL", "bf16", 836),
    ("NVIDIA H100 80GB HBM3", "bf16", 989),
    ("NVIDIA H100 PCIe", "bf16", 756),
    ("NVIDIA H100 NVL", "bf16", 835),
    ("NVIDIA A100-SXM4-80GB", "bf16", 312),
    ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
])  # fmt: skip
def test_nominal_peaks_are_the_data_sheets(name, precision, tflops):
    """The dense figure of the card's own row, not of a shorter name's."""
    assert nominal_peak_flops(name, precision) == tflops * 1e12


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090", "NVIDIA RTX A1000 Laptop GPU", "CPU"])
def test_an_unknown_card_has_no_peak(name):
    """A card that is not in the table has no peak, not that of a card whose name it contains."""
    assert nominal_peak_flops(name, "bf16") is None


@pytest.mark.parametrize("precision", ["", "int8", "fp64"])
def test_an_unknown_precision_has_no_peak(precision):
    """A precision without a row gives None."""
    assert nominal_peak_flops("NVIDIA H200", precision) is None
    assert physical_peak_flops("9.0", 132, 1980, precision) is None


def test_physical_peak_is_sms_times_rate_times_clock():
    """132 SMs x 4096 FLOP x 1980 MHz = 1070.5 TFLOP/s; tf32 is half of it."""
    half = 132 * 4096 * 1980e6
    assert physical_peak_flops("9.0", 132, 1980, "bf16") == pytest.approx(half)
    assert physical_peak_flops("9.0", 132, 1980, "tf32") == pytest.approx(half / 2)
    assert physical_peak_flops("8.9", 142, 2500, "bf16") is None


@pytest.mark.parametrize(
    ("name", "capability", "sms", "mhz"),
    [("NVIDIA H200", "9.0", 132, 1980), ("NVIDIA A100-SXM4-80GB", "8.0", 108, 1410)],
)
@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp32"])
def test_no_data_sheet_beats_physics(name, capability, sms, mhz, precision):
    """The nominal peak lies within the physical one, so sound results are never BROKEN."""
    nominal = nominal_peak_flops(name, precision)
    assert nominal <= physical_peak_flops(capability, sms, mhz, precision) * 1.005
