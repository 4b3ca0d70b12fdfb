"""Peaks of GPUs: the nominal peak, which MFU refers to, and the physical peak, which no result can
beat.

The nominal peak is that of the vendor's data sheet, dense, without sparsity. The physical peak is
what the chip could do at its highest clock: SMs x FLOP per clock and SM x clock.
"""

import re

_PRECISION_RATE = {"bf16": "half", "fp16": "half", "tf32": "tf32", "fp32": "fp32"}

# NVIDIA data sheets, dense TFLOP/s. Longer names come first: the first that fits is used.
_NOMINAL_TFLOPS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H200 NVL", {"half": 836, "tf32": 418, "fp32": 60}),
    ("H200", {"half": 989, "tf32": 494, "fp32": 67}),
    ("H100 NVL", {"half": 835, "tf32": 417, "fp32": 60}),
    ("H100 PCIe", {"half": 756, "tf32": 378, "fp32": 51}),
    ("H100", {"half": 989, "tf32": 494, "fp32": 67}),
    ("A100", {"half": 312, "tf32": 156, "fp32": 19.5}),
)

# FLOP per clock and SM of dense matrix products (vendor's architecture white papers). fp32 is the
# plain FMA pipe.
_FLOP_PER_CLOCK_AND_SM: dict[str, dict[str, int]] = {
    "9.0": {"half": 4096, "tf32": 2048, "fp32": 256},
    "8.0": {"half": 2048, "tf32": 1024, "fp32": 128},
}


def nominal_peak_flops(device_name: str, precision: str) -> float | None:
    """Return the data sheet's dense peak in FLOP/s; None if it is not in the table."""
    rate = _PRECISION_RATE.get(precision)
    for name, tflops in _NOMINAL_TFLOPS:
        if re.search(rf"{name}(?!\d)", device_name) and rate is not None:  # an A1000 is no A100
            return tflops[rate] * 1e12
    return None


def physical_peak_flops(
    capability: str, sm_count: int, max_clock_mhz: float, precision: str
) -> float | None:
    """Return FLOP/s at the highest clock the card can run; None if the rate is unknown."""
    rate = _PRECISION_RATE.get(precision)
    if rate is None or capability not in _FLOP_PER_CLOCK_AND_SM:
        return None
    return sm_count * _FLOP_PER_CLOCK_AND_SM[capability][rate] * max_clock_mhz * 1e6
