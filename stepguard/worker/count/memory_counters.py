"""Memory of a steady step: its peak by phase, what lives between steps, what each step leaves
behind, the device allocator's calls.

The peak counts the bytes that tensors ask for. The caching allocator may give them more: that
depends on which blocks are free. Everything that ran before decides that, even the compiler's
trials. On an H200 the same step differed by 1.7 MB between a cold and a warm compile cache.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from msgspec.structs import replace
from torch._C._profiler import _EventType
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile, record_function

from stepguard.core.device import CPU
from stepguard.core.metrics import BETWEEN_STEPS
from stepguard.core.site import Site, merge
from stepguard.worker import torch_device
from stepguard.worker.count.collector import live_objects, of_classes
from stepguard.worker.count.syncs import site_here
from stepguard.worker.count.tally import ACTIVE_STEPS, LEAK_STEPS, RankStep, Tally

_BY_ROW = ("crow_indices", "col_indices", "values")
_BY_COLUMN = ("ccol_indices", "row_indices", "values")
_PARTS = {  # the methods that return a sparse tensor's dense ones
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _BY_ROW,
    torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN,
    torch.sparse_bsc: _BY_COLUMN,
}
# Inside this block a subclass of torch.Tensor cannot refuse or record what is asked of its tensors.
_unheard = torch._C.DisableTorchFunctionSubclass
# Runs LEAK_STEPS steps, and calls its argument before the first and after the last one.
RunLeakSteps = Callable[[Callable[[], object]], None]
_PHASE = "stepguard.phase:"
_OUTSIDE = "before any phase"


def count_memory(tally: Tally, counted: RankStep, leak_steps: RunLeakSteps) -> None:
    """Count allocated_bytes_between_steps, peak_allocated_bytes, leaked_bytes_per_step and, on a
    GPU, device_allocations_per_step. ``leak_steps`` runs LEAK_STEPS steps.

    On a CPU only this thread's frees are seen. With several ranks gloo's threads free, too, so none
    of these would be exact (metrics.Scope.EXACT_MEMORY).
    """
    gpu = torch_device.on_gpu(counted.device)
    on_gpu = (_gpu_between, _gpu_peaks, _gpu_growth)
    between, peaks_of, growth = on_gpu if gpu else (_cpu_between, _cpu_peaks, _cpu_growth)
    # This comes first: on a CPU no profile sees frees of what was made before the first profile.
    kept_bytes = between(counted) - _bytes(gradients(counted.frozen, counted.device.type))
    tally.add(BETWEEN_STEPS, [kept_bytes])
    peaks = [peaks_of(counted) for _ in range(ACTIVE_STEPS)]
    with _device_calls(tally, counted) if gpu else nullcontext():
        leaked = max(0, growth(counted, leak_steps)) // LEAK_STEPS
    if gpu:  # of these steps: the last peak ended before them
        reserved = torch_device.peak_bytes(torch_device.RESERVED)
        tally.information["peak_reserved_bytes"] = float(reserved)
    tally.add("leaked_bytes_per_step", [leaked])
    if leaked:  # then each step's peak is higher than the last one's; the leak shows that better
        del peaks[:-1]
    detail = peaks[0] if len(peaks[0]) > 1 else None
    tally.add("peak_allocated_bytes", [max(by_phase.values()) for by_phase in peaks], detail)


@contextmanager
def _device_calls(tally: Tally, counted: RankStep) -> Iterator[None]:
    """Count device_allocations_per_step over the LEAK_STEPS inside the block. Only those that a
    call of empty_cache() causes have a line.
    """
    emptied: list[Site] = []
    what, before = "torch.cuda.empty_cache()", torch_device.allocator_calls()
    with torch_device.heard_empty_cache(lambda: emptied.append(site_here(what, counted.phases))):
        yield
    calls = {call: n - before[call] for call, n in torch_device.allocator_calls().items()}
    per_step = _per_step(sum(calls.values()))
    where = merge(emptied) if per_step else ()
    sites = [replace(site, count=_per_step(site.count)) for site in where]
    tally.add("device_allocations_per_step", [per_step], calls, [sites])


def _per_step(count: int) -> int:
    return -(-count // LEAK_STEPS)  # rounded up: one in four steps counts as one


def _gpu_peaks(counted: RankStep) -> dict[str, int]:
    """Return the peak of requested bytes by phase. It is exact, since allocator and phases run on
    the host.
    """
    peaks: dict[str, int] = {}
    now = _OUTSIDE

    def close(following: str) -> None:
        nonlocal now
        peaks[now] = max(torch_device.peak_bytes(torch_device.REQUESTED), peaks.get(now, 0))
        now = following

    torch_device.synchronize(counted.device)
    torch_device.peak_bytes(torch_device.REQUESTED)  # begins a new peak
    with counted.phases.heard_by(close):
        counted.step()
    close("")
    torch_device.synchronize(counted.device)
    return peaks


def _gpu_between(counted: RankStep) -> int:
    """Return the bytes that live tensors asked for, after some more steps."""
    counted.run_period()
    return _gpu_bytes(counted)


def _gpu_growth(counted: RankStep, leak_steps: RunLeakSteps) -> int:
    live: list[int] = []
    leak_steps(lambda: live.append(_gpu_bytes(counted)))
    return live[1] - live[0]


def _gpu_bytes(counted: RankStep) -> int:
    gc.collect()
    torch_device.synchronize(counted.device)
    return torch_device.live_bytes()


def _cpu_between(counted: RankStep) -> int:
    """Return the bytes that two more steps allocate and do not free, plus those of the storages
    that Python could reach before and that still live.
    """
    before = [(StorageWeakRef(s), s.nbytes()) for s in _live_storages(counted.frozen).values()]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        counted.run_period()
        gc.collect()
    made: dict[int, int] = {}  # by address
    for _, address, size in sorted(_by_address(profiled.profiler.kineto_results)):
        made.pop(address, None)
        if size > 0:
            made[address] = size
    survived: list[int] = [size for storage, size in before if not storage.expired()]
    return sum(made.values()) + sum(survived)


def _by_address(results: Any) -> Iterator[tuple[int, int, int]]:
    """Yield for each event the time, the address and the bytes, which are negative if it was
    freed.
    """
    rest = list(results.experimental_event_tree())
    while rest:
        event = rest.pop()
        rest += event.children
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size


def _cpu_growth(counted: RankStep, leak_steps: RunLeakSteps) -> int:
    """Return bytes allocated less bytes freed over LEAK_STEPS steps, whoever keeps them: Python,
    autograd or a bare storage.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        # These steps do not count: the profile does not see frees of what was made before it.
        counted.run_period()
        leak_steps(_mark)
    events = list(_events(profiled))
    began, ended = sorted(event.start_ns() for event in events if event.name() == _PHASE)
    memory = (event for event in events if event.name() == "[memory]")
    return sum(int(event.nbytes()) for event in memory if began <= event.start_ns() <= ended)


def _cpu_peaks(counted: RankStep) -> dict[str, int]:
    """Return the peak by phase on a CPU: the bytes of storages that Python can reach when the step
    begins, plus the highest running sum of the step's allocation events.
    """
    live = live_tensor_bytes(counted.frozen)
    profiled = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with counted.phases.heard_by(_mark), profiled:
        counted.step()
    return running_peaks(_events(profiled), live)


def _mark(phase: str = "") -> None:
    with record_function(_PHASE + phase):
        pass


def _events(profiled: Any) -> Any:
    return profiled.profiler.kineto_results.events()


def running_peaks(events: Any, live: int) -> dict[str, int]:
    """Return the peak bytes by phase: the highest sum of ``live`` and the "[memory]" events so
    far.
    """
    peaks: dict[str, int] = {}
    now, running = _OUTSIDE, live
    peaks[now] = live
    wanted = [e for e in events if e.name() == "[memory]" or e.name().startswith(_PHASE)]
    for event in sorted(wanted, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            running += event.nbytes()
        else:
            now = event.name().removeprefix(_PHASE)
        peaks[now] = max(running, peaks.get(now, 0))
    return peaks


def live_tensor_bytes(frozen: int = 0) -> int:
    """Return the bytes of all CPU storages that Python can reach through tensors."""
    return _bytes(_live_storages(frozen))


def _bytes(storages: dict[int, torch.UntypedStorage]) -> int:
    return sum(storage.nbytes() for storage in storages.values())


def _live_storages(frozen: int) -> dict[int, torch.UntypedStorage]:
    with _unheard():
        tensors = _reachable(frozen, CPU)
        return _by_data(tensors) | _by_data(_gradients(tensors))


def gradients(frozen: int, kind: str) -> dict[int, torch.UntypedStorage]:
    """Return the storages of gradients on that kind of device, by the address of their data."""
    with _unheard():
        return _by_data(_gradients(_reachable(frozen, kind)))


def _gradients(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    # A gradient may have no Python object yet. Only leaves are asked, since torch warns for others.
    grads = (tensor.grad for tensor in tensors if tensor.is_leaf)
    return [grad for grad in grads if grad is not None and grad.layout == torch.strided]


def _by_data(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    storages = (part.untyped_storage() for tensor in tensors for part in _dense(tensor))
    return {storage.data_ptr(): storage for storage in storages}


def _dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that have a tensor's bytes; none for an opaque one (MKL-DNN)."""
    if tensor.layout == torch.strided:
        return [tensor]
    return [getattr(tensor.detach(), part)() for part in _PARTS.get(tensor.layout, ())]


def _reachable(frozen: int, kind: str) -> list[torch.Tensor]:
    """Return the tensors on a kind of device that Python can reach."""
    tensors = of_classes(live_objects(frozen), lambda its: issubclass(its, torch.Tensor))
    own = [_unwrapped(one) for one in tensors if _has_bytes(type(one))]
    return [one for one in own if _has_bytes(type(one)) and one.device.type == kind]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of those that torch.func, torch.vmap and torch's tracing put around
    it. Only the inner one has a storage.
    """
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    functional = torch._is_functional_tensor(tensor)
    return torch._from_functional_tensor(tensor) if functional else tensor


def _has_bytes(kind: Any) -> bool:
    """Tell whether tensors of a class have the bytes that they report. A class with its own
    __torch_dispatch__ wraps other tensors, or has no bytes (FakeTensor).
    """
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
