"""What the ranks tell when their workload is built: the hardware and software that will measure."""

from collections.abc import Sequence
from typing import Any

from stepguard.evidence import Fault, Fingerprint
from stepguard.hardware import nominal_peak_flops, physical_peak_flops
from stepguard.host.launch import LaunchFailed
from stepguard.host.machine import Gpu, Monitor
from stepguard.verdict import Reason


def refuse_other_gpus(ranks: Sequence[dict[str, Any]], gpus: Sequence[Gpu]) -> None:
    """Raise LaunchFailed if a rank runs on another GPU than the one that is watched for it."""
    for rank, (gpu, told) in enumerate(zip(gpus, ranks, strict=False)):
        uuid = told["fingerprint"]["device_uuid"]
        if uuid != gpu.uuid:
            message = f"rank {rank} runs on {uuid}, NVML's GPU {rank} is {gpu.uuid}"
            raise LaunchFailed(Fault(Reason.MACHINE_UNREADABLE.name, message))


def fingerprint_of(told: dict[str, Any], monitor: Monitor | None) -> Fingerprint:
    """Rank 0's fingerprint, with what only the driver knows."""
    known = dict(told["fingerprint"])
    capability, sm_count = known.pop("capability", ""), known.pop("sm_count", 0)
    if monitor is None:
        return Fingerprint(**known)
    gpu = monitor.gpus[0]
    return Fingerprint(
        **known,
        driver=gpu.driver,
        peak_flops=nominal_peak_flops(gpu.name, told["precision"]),
        floor_flops=physical_peak_flops(
            capability, sm_count, gpu.max_sm_clock_mhz, told["precision"]
        ),
    )
