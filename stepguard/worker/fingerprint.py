"""Fingerprint of a rank: its device, its software, and the variables that change either."""

import os
import platform
from importlib import metadata
from typing import Any

import torch

from stepguard.fingerprint import STEERING
from stepguard.worker.device import properties

_PREFIXES = (*STEERING, "TORCH_", "PYTORCH_", "NCCL_", "CUDNN_")
_OURS = ("TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC")  # set by every launch


def fingerprint(device: torch.device) -> dict[str, Any]:
    """Return the fields of evidence.Fingerprint that only torch can tell, and the SM count."""
    return properties(device) | {
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "arch": platform.machine(),
        "cpu_threads": torch.get_num_threads(),
        "environment": _environment(),
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
