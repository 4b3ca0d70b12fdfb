"""The peaks of a card, as they are measured."""

from stepguard_lab.measured_peaks import Peaks

PEAKS = Peaks(device_name="NVIDIA H200", device_uuid="GPU-1234", date="2026-11-22T00:00:00+00:00",
              torch="2.11.0", copy_bytes_per_s=4e12,
              flops_per_s={"bf16": 800e12, "fp32": 50e12})  # fmt: skip
