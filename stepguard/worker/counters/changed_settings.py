"""What steers a step beside its code: settings of libraries, threads, processes, the interpreter.

Any code may set them, and the launched kernels need not show it. All are part of the identity of a
GPU's step. Those that mean the same on every machine are counted if the workload changed them.
"""

import gc
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from stepguard.core.fingerprint import ALL_STEERING
from stepguard.core.metrics import SETTINGS, setting
from stepguard.worker.counters.collector import live_objects
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally
from stepguard.worker.rank_fingerprint import variables

# torch's own helpers come and go with its compile cache.
_HELPERS = ("torch.", "tqdm.")
_HELPER_PROCESS = "torch/_inductor/compile_worker"
_LIBRARIES = ("CUDA", "CUBLAS", "CUDNN", "NVIDIA", "PYTORCH", "OMP_", "MKL_", "PYTHON")
_ENVIRONMENT = (*ALL_STEERING, *_LIBRARIES)

_FLAGS = (
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.preferred_blas_library",
    "backends.cuda.preferred_linalg_library",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
    "_C._get_sdp_priority_order",
    "backends.cudnn.enabled",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.benchmark",
    "backends.cudnn.benchmark_limit",
    "backends.cudnn.deterministic",
    "get_float32_matmul_precision",
    "backends.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.mha.get_fastpath_enabled",
    "_C._get_nnpack_enabled",
    "_C._is_multithreading_enabled",
    "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "utils.deterministic.fill_uninitialized_memory",
    "get_default_device",
    "get_default_dtype",
    "get_num_threads",
    "get_num_interop_threads",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_autocast_enabled",
    "cuda.get_per_process_memory_fraction",
    "cuda.memory.get_allocator_backend",
)


def flags() -> dict[str, str | None]:
    """Return torch's own settings by name. A setting that this torch lacks is None."""
    return {name: _value(name) for name in _FLAGS}


def count_settings(tally: Tally, counted: RankStep) -> None:
    """Count the settings that the workload changed, each with its present value."""
    before = counted.settings
    changed = {
        name: now for name, now in everywhere().items() if name in before and now != before[name]
    }
    if reordered := sum(map(_is_reordered, live_objects(counted.frozen))):
        changed["weights that are not contiguous"] = reordered
    tally.add_parts(SETTINGS, [{setting(name, now): 1 for name, now in changed.items()}])


def everywhere() -> dict[str, object]:
    """Return by name the settings that every machine has, whatever its GPUs."""
    # An unset precision is "none", and means "ieee": from one to the other is no change.
    unset = {"none": "ieee"}
    # Asking a GPU would open its context, which a rank on standby must not do.
    asked = (name for name in _FLAGS if not name.startswith("cuda."))
    return {
        **{name: unset.get(str(value := _value(name)), value) for name in asked},
        "flush denormals": _flushes_denormals(),
        "garbage collection": gc.isenabled(),
        "garbage collection's thresholds": gc.get_threshold(),
        "interpreter's switch interval": sys.getswitchinterval(),
        "modes": _modes(),
        "interpreter traces": bool(sys.gettrace()),
        "interpreter profiles": bool(sys.getprofile()),
    }


def _modes() -> str:
    """Return the classes of torch's modes that are on, outermost first: each takes time."""
    on = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    return ", ".join(type(mode).__name__ for mode in on) or "none"


def _flushes_denormals() -> bool:
    """Tell whether the CPU treats the smallest numbers as zero. torch can set this, not tell it."""
    return sys.float_info.min / 2 == 0.0


def _is_reordered(thing: Any) -> bool:
    # isinstance() with Parameter asks other objects for attributes, and some of them warn.
    tensor = issubclass(type(thing), torch.Tensor)
    return tensor and isinstance(thing, torch.nn.Parameter) and not thing.is_contiguous()


def settings() -> dict[str, Any]:
    """Return all settings that steer a step, by name."""
    return {
        **flags(),
        **everywhere(),
        "threads": sorted(_own_threads()),
        "processes": sorted(_own_processes()),
        "environment": variables(_ENVIRONMENT),
    }


def _value(path: str) -> str | None:
    value: Any = torch
    try:
        for name in path.split("."):
            value = getattr(value, name)
        return str(value() if callable(value) else value)
    except (AssertionError, AttributeError, RuntimeError, TypeError):
        return None


def _own_threads() -> list[str]:
    """Return the names of Python's threads that are not torch's, without their numbers."""
    names = []
    for thread in threading.enumerate():
        target = getattr(thread, "_target", None)
        module = str(getattr(target, "__module__", "") or type(thread).__module__)
        if not module.startswith(_HELPERS):
            names.append(re.sub(r"\d+", "", f"{module} {thread.name}"))
    return names


def _own_processes() -> list[str]:
    """Return the commands of this process' children, without those of compilers."""
    mine, commands = str(os.getpid()), []
    for folder in Path("/proc").glob("[0-9]*"):
        # pid (name, which may have spaces and brackets) state parent ...
        if _read(folder / "stat").rpartition(")")[2].split()[1:2] == [mine]:
            command = _read(folder / "cmdline").replace("\0", " ")
            if command and _HELPER_PROCESS not in command:
                commands.append(re.sub(r"\d+", "", command))
    return commands


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended
        return ""


COUNTER = StepCounter("settings", (SETTINGS,), count_settings)
