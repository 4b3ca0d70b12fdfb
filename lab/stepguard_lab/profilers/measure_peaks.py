"""Measure the most that this process's GPU, or else its CPU, can do: a copy and matrix products.

    python -m stepguard_lab.profilers.measure_peaks

prints one JSON document, measured_peaks.Peaks. The best of several runs counts, since nothing
makes a device faster than it is.
"""

import sys
from datetime import UTC, datetime
from functools import partial
from time import perf_counter

import msgspec
import torch

from stepguard.core.device import CPU, GPU
from stepguard.worker import torch_device
from stepguard.worker.block_timer import Step
from stepguard_lab.measured_peaks import Peaks

RUNS = 8
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def measure(where: torch.device, size: int, copied_bytes: int) -> Peaks:
    """Return the peaks by products of ``size`` x ``size`` matrices and a copy of so many bytes."""
    source = torch.ones(copied_bytes, dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    copy_s = fastest_s(lambda: target.copy_(source), where)
    flops = {}
    types = _TYPES | ({"tf32": torch.float32} if torch_device.on_gpu(where) else {})
    for name, dtype in types.items():
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        # Random numbers, as weights are: zeros take less power, and run at higher clocks.
        left, right = (torch.randn(size, size, device=where, dtype=dtype) for _ in range(2))
        result = torch.empty_like(left)
        taken_s = fastest_s(partial(torch.mm, left, right, out=result), where)
        flops[name] = 2.0 * size**3 / taken_s
    said = torch_device.properties(where)
    return Peaks(
        device_name=said["device_name"],
        device_uuid=said["device_uuid"],
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        torch=str(torch.__version__),
        copy_bytes_per_s=2 * copied_bytes / copy_s,
        flops_per_s=flops,
    )


def fastest_s(run: Step, where: torch.device) -> float:
    """Return the seconds of the fastest of some runs, after one that does not count."""
    run()
    taken = []
    for _ in range(RUNS):
        torch_device.synchronize(where)
        began = perf_counter()
        run()
        torch_device.synchronize(where)
        taken.append(perf_counter() - began)
    return min(taken)


def main() -> None:
    """Measure and print."""
    try:
        where = torch_device.rank_device(GPU, 0)
    except ValueError:
        where = torch.device(CPU)
    torch_device.select(where)
    size, copied = (8192, 2 << 30) if torch_device.on_gpu(where) else (1024, 64 << 20)
    sys.stdout.buffer.write(msgspec.json.encode(measure(where, size, copied)) + b"\n")


if __name__ == "__main__":
    main()
