"""What this rank runs on and with: versions, device, the variables that change either."""

import os
import platform
from importlib import metadata
from typing import Any

import torch

from stepguard.fingerprint import STEERING

_PREFIXES = (*STEERING, "TORCH_", "PYTORCH_", "NCCL_", "CUDNN_")
_OURS = ("TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC")  # set by every launch


def fingerprint(device: torch.device) -> dict[str, Any]:
    """The fields of evidence.Fingerprint that only torch can tell, and the SM count."""
    common = {
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "arch": platform.machine(),
        "cpu_threads": torch.get_num_threads(),
        "environment": _environment(),
    }
    if device.type == "cpu":
        return common | {"device_name": platform.processor() or "CPU", "device_uuid": ""}
    properties = torch.cuda.get_device_properties(device)
    return common | {
        "device_name": properties.name,
        "device_uuid": f"GPU-{properties.uuid}",
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
        "capability": f"{properties.major}.{properties.minor}",
        "sm_count": properties.multi_processor_count,
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _environment() -> dict[str, str]:
    return {
        key: value
        for key, value in sorted(os.environ.items())
        if key.startswith(_PREFIXES) and not key.startswith(_OURS)
    }
