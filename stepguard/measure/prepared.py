"""What the ranks tell when their workload is built: the hardware and software that will measure."""

from collections.abc import Sequence
from typing import Any

from stepguard.evidence import Fault
from stepguard.fingerprint import Fingerprint, steers
from stepguard.gpu.nvml import Gpu
from stepguard.gpu.peaks import nominal_peak_flops, physical_peak_flops
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.verdict import Reason


def refuse_other_gpus(ranks: Sequence[dict[str, Any]], gpus: Sequence[Gpu]) -> None:
    """Raise LaunchFailed if a rank runs on another GPU than the one that is watched for it."""
    for rank, (gpu, told) in enumerate(zip(gpus, ranks, strict=False)):
        uuid = told["fingerprint"]["device_uuid"]
        if uuid != gpu.uuid:
            message = f"rank {rank} runs on {uuid}, NVML's GPU {rank} is {gpu.uuid}"
            raise LaunchFailed(Fault(Reason.MACHINE_UNREADABLE.name, message))


def refuse_unlike_ranks(ranks: Sequence[dict[str, Any]]) -> None:
    """Raise LaunchFailed if a rank runs on or with something else than rank 0."""
    first = _alike(ranks[0])
    for rank, told in enumerate(ranks):
        mine = _alike(told)
        moved = [f"{key} {mine[key] or 'none'}" for key in first if mine[key] != first[key]]
        if moved:
            there, here = ", ".join(moved), ranks[0]["fingerprint"]["torch"]
            message = f"rank {rank} has {there}, rank 0 does not (torch {here})"
            raise LaunchFailed(Fault(Reason.RANKS_DIFFER.name, message))


def _alike(told: dict[str, Any]) -> dict[str, str]:
    known = told["fingerprint"]
    names = ("device_name", "torch", "cuda", "cudnn", "nccl", "triton", "python", "arch")
    steering = {key: value for key, value in known.get("environment", {}).items() if steers(key)}
    found = {name: str(known.get(name, "")) for name in names}
    return found | {"steering variables": str(steering) if steering else ""}


def fingerprint_of(told: dict[str, Any], gpus: Sequence[Gpu]) -> Fingerprint:
    """Rank 0's fingerprint, with what only the driver knows if it runs on the first GPU."""
    known = dict(told["fingerprint"])
    capability, sm_count = known.pop("capability", ""), known.pop("sm_count", 0)
    if not known.get("cuda"):  # a CPU, whatever GPUs stand beside it
        return Fingerprint(**known)
    gpu = gpus[0]
    return Fingerprint(
        **known,
        driver=gpu.driver,
        peak_flops=nominal_peak_flops(gpu.name, told["precision"]),
        floor_flops=physical_peak_flops(
            capability, sm_count, gpu.max_sm_clock_mhz, told["precision"]
        ),
    )
