"""torch's interface to the rank's device. In worker/ only this module calls torch.cuda.

Functions without a device argument are only for GPUs.
"""

import contextlib
import importlib
import platform
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from stepguard.core.device import is_gpu
from stepguard.machine.interpreter import interpreter

# Bound before a workload is imported, which may replace them.
_synchronize, _Event = torch.cuda.synchronize, torch.cuda.Event
_record, _elapsed_time = _Event.record, _Event.elapsed_time

SYNC_KINDS = ("stream", "device", "event")
# What tensors asked for; what the caching allocator has taken.
REQUESTED, RESERVED = "requested_bytes", "reserved_bytes"


def rank_device(kind: str, local_rank: int) -> torch.device:
    """Return the device of a rank. Raises ValueError if torch cannot use this machine's GPU."""
    if not is_gpu(kind):
        return torch.device(kind)
    if not torch.cuda.is_available():
        raise ValueError(
            f"torch {torch.__version__} cannot use this machine's GPU "
            f"(built for CUDA {torch.version.cuda}); see: {interpreter()} -m stepguard doctor"
        )
    return torch.device(kind, local_rank)


def on_gpu(device: torch.device) -> bool:
    """Return whether the device is a GPU."""
    return is_gpu(device.type)


def select(device: torch.device) -> None:
    """Make a GPU this process's current one; on a CPU do nothing."""
    if on_gpu(device):
        torch.cuda.set_device(device)


def synchronize(device: torch.device) -> None:
    """Wait for a GPU; on a CPU do nothing."""
    if on_gpu(device):
        _synchronize()


class TimingEvent:
    """A CUDA event that is timed."""

    def __init__(self) -> None:
        self._event = _Event(enable_timing=True)

    def record(self) -> None:
        """Record it on the current stream."""
        _record(self._event)

    def elapsed_time(self, later: "TimingEvent") -> float:
        """Return the milliseconds until ``later``. The device must have passed both."""
        return float(_elapsed_time(self._event, later._event))


def backend(device: torch.device) -> str:
    """Return the backends by which ranks exchange, as init_process_group takes them."""
    return "cpu:gloo,cuda:nccl" if on_gpu(device) else "gloo"


def activities(device: torch.device) -> list[ProfilerActivity]:
    """Return what the profiler has to record of a step on the device."""
    host = [ProfilerActivity.CPU]
    return [*host, ProfilerActivity.CUDA] if on_gpu(device) else host


def properties(device: torch.device) -> dict[str, Any]:
    """Return the device's fields of evidence.Fingerprint, and a GPU's number of SMs."""
    if not on_gpu(device):
        return {"device_name": platform.processor() or "CPU", "device_uuid": ""}
    card = torch.cuda.get_device_properties(device)
    return {
        "device_name": card.name,
        "device_uuid": f"GPU-{card.uuid}",
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
        "capability": f"{card.major}.{card.minor}",
        "sm_count": card.multi_processor_count,
    }


def usable_bytes(device: torch.device) -> int:
    """Return the bytes that this process may take of its GPU; 0 on a CPU."""
    if not on_gpu(device):
        return 0
    total = torch.cuda.get_device_properties(device).total_memory
    return int(total * torch.cuda.get_per_process_memory_fraction(device))


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, the GPU's or the host's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # torch has no class for this error of a CPU; only the allocator's name shows it.
    return type(error) is RuntimeError and "DefaultCPUAllocator: can't allocate" in str(error)


def live_bytes() -> int:
    """Return the bytes that live tensors on the GPU asked for."""
    return int(torch.cuda.memory_stats()[f"{REQUESTED}.all.current"])


def peak_bytes(what: str) -> int:
    """Return the peak of REQUESTED or RESERVED bytes since the last call, and begin a new one."""
    peak = int(torch.cuda.memory_stats()[f"{what}.all.peak"])
    torch.cuda.reset_peak_memory_stats()
    return peak


def empty_cache() -> None:
    """Give memory that the allocator caches back to the driver."""
    torch.cuda.empty_cache()


@contextlib.contextmanager
def growing_segments() -> Iterator[None]:
    """Let the allocator's segments grow inside the block, so that it leaves no fragments. A step
    that just fits into the memory could not run between them. Only torch's own allocator has
    segments; others (cudaMallocAsync) refuse a snapshot.
    """
    own = torch.cuda.memory.get_allocator_backend() == "native"
    if not own or torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]:
        yield
        return
    empty_cache()
    _set_allocator("expandable_segments:True")
    try:
        yield
    finally:
        _set_allocator("expandable_segments:False")


def _set_allocator(setting: str) -> None:
    # torch 2.8 has only the older name, which warns in later versions.
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (newer or torch.cuda.memory._set_allocator_settings)(setting)


@contextlib.contextmanager
def heard_empty_cache(callback: Callable[[], object]) -> Iterator[None]:
    """Call ``callback`` whenever the cache is emptied inside the block, by any name."""
    names = ("_cuda_emptyCache", "_accelerator_emptyCache")
    before = {name: getattr(torch._C, name) for name in names if hasattr(torch._C, name)}

    def heard(empty: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            callback()
            return empty(*arguments)

        return call

    for name, empty in before.items():
        setattr(torch._C, name, heard(empty))
    try:
        yield
    finally:
        for name, empty in before.items():
            setattr(torch._C, name, empty)


def allocator_calls() -> dict[str, int]:
    """Return how often the allocator has called the driver so far, by call."""
    stats = torch.cuda.memory_stats()
    names = {
        "cudaMalloc": "num_device_alloc",
        "cudaFree": "num_device_free",
        "retries": "num_alloc_retries",
    }
    return {name: int(stats.get(key, 0)) for name, key in names.items()}


def call_on_sync(callback: Callable[[str], None]) -> None:
    """Call ``callback`` with the kind of each synchronization that torch makes from now on.

    A registration cannot be undone. The module is private to torch (it serves the CUDA sanitizer):
    if torch does not have it, ``callback`` is never called.
    """
    with contextlib.suppress(ImportError, AttributeError):
        trace: Any = importlib.import_module("torch.cuda._gpu_trace")
        torch._C._activate_gpu_trace()
        for kind in SYNC_KINDS:
            register = getattr(trace, f"register_callback_for_{kind}_synchronization")
            # torch passes the stream or the event. For a device it passes nothing.
            register(lambda *stream, kind=kind: callback(kind))
