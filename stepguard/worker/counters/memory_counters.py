"""Memory of a steady step: its peak by phase, what lives between steps, what each step leaves
behind (bytes, nodes of autograd's graph, garbage), the device allocator's calls.

The peak counts the bytes that tensors ask for. The caching allocator may give them more: that
depends on which blocks are free. Everything that ran before decides that, even the compiler's
trials. On an H200 the same step differed by 1.7 MB between a cold and a warm compile cache.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch._C._profiler import _EventType
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile, record_function

from stepguard.core.metrics import (
    BETWEEN_STEPS,
    DEVICE_ALLOCATIONS,
    GARBAGE,
    GRAPH_NODES,
    LEAK,
    PEAK,
)
from stepguard.core.site import Site
from stepguard.worker import torch_device
from stepguard.worker.counters.collector import collect, collect_frozen, own_collections
from stepguard.worker.counters.garbage import locate_garbage
from stepguard.worker.counters.kept_memory import (
    bytes_of,
    gradients,
    live_storages,
    live_tensor_bytes,
    locate_graph_nodes,
    locate_kept,
    nodes_alive,
)
from stepguard.worker.counters.syncs import site_here
from stepguard.worker.counters.tally import (
    ACTIVE_STEPS,
    LEAK_STEPS,
    PERIOD,
    RankStep,
    StepCounter,
    Tally,
    per_step,
)

_PHASE = "stepguard.phase:"
_OUTSIDE = "before any phase"


def count_memory(tally: Tally, counted: RankStep) -> None:
    """Count what lives between steps, the peak, and what LEAK_STEPS steps leave; nodes and garbage
    only where gloo's threads free, too, so that no byte is exact.
    """
    if counted.has(PEAK):
        _count_bytes(tally, counted)
    else:
        counted.run_period()
        count_left(tally, counted)


def _count_bytes(tally: Tally, counted: RankStep) -> None:
    gpu = torch_device.on_gpu(counted.device)
    on_gpu = (_gpu_between, _gpu_peaks, _gpu_growth)
    between, peaks_of, growth = on_gpu if gpu else (_cpu_between, _cpu_peaks, _cpu_growth)
    # This comes first: on a CPU no profile sees frees of what was made before the first profile.
    kept_bytes = between(counted) - bytes_of(gradients(counted.frozen, counted.device.type))
    tally.add(BETWEEN_STEPS, [kept_bytes])
    peaks = [peaks_of(counted) for _ in range(ACTIVE_STEPS)]
    with _device_calls(tally, counted) if gpu else nullcontext():
        leaked = max(0, growth(tally, counted)) // LEAK_STEPS
    if gpu:  # of these steps: the last peak ended before them
        reserved = torch_device.peak_bytes(torch_device.RESERVED)
        tally.information["peak_reserved_bytes"] = float(reserved)
    tally.add(LEAK, [leaked])
    if leaked:  # then each step's peak is higher than the last one's; the leak shows that better
        del peaks[:-1]
    detail = peaks[0] if len(peaks[0]) > 1 else None
    tally.add(PEAK, [max(by_phase.values()) for by_phase in peaks], detail)


@contextmanager
def _device_calls(tally: Tally, counted: RankStep) -> Iterator[None]:
    """Count device_allocations_per_step. Only those of empty_cache() have a line."""
    emptied: list[Site] = []
    what, before = "torch.cuda.empty_cache()", torch_device.allocator_calls()
    with torch_device.heard_empty_cache(lambda: emptied.append(site_here(what, counted.phases))):
        yield
    calls = {call: n - before[call] for call, n in torch_device.allocator_calls().items()}
    count = _per_step(sum(calls.values()))
    tally.add(DEVICE_ALLOCATIONS, [count], calls, [per_step(emptied) if count else ()])


def _per_step(count: int, steps: int = LEAK_STEPS) -> int:
    return -(-count // steps)  # rounded up, as in per_step()


def count_left(
    tally: Tally, counted: RankStep, border: Callable[[], object] = lambda: None
) -> None:
    """Run LEAK_STEPS steps. Count the objects that only Python's collector frees, after each period
    of steps, and the growth of the graphs that living tensors lead to. Call ``border`` before the
    first and after the last step.

    What is garbage before is not counted. PERIOD steps have run before, since a step may keep the
    graph of the step before.
    """
    frozen, steps = counted.frozen, PERIOD
    with own_collections():
        # Counting nodes unfreezes what steps froze, and frees it. Bytes are counted between the
        # borders. So nodes are counted outside of them.
        before = nodes_alive(frozen)
        border()
        gc.collect()  # torch.cuda.memory_stats() leaves 128 objects
        collected = [_left(counted) for _ in range(ACTIVE_STEPS)]
        border()
        if hidden := collect_frozen(frozen):  # nothing says which steps left it
            collected, steps = [sum(collected) + hidden], LEAK_STEPS
        grown = max(0, nodes_alive(frozen) - before)
    tally.add(GARBAGE, [_per_step(count, steps) for count in collected])
    tally.add(GRAPH_NODES, [_per_step(grown)])


def _left(counted: RankStep) -> int:
    """Run PERIOD steps. Return how many objects the collector freed, or has to free."""
    before = _collected()
    counted.run_period()
    left = collect()
    return max(left, _collected() - before)


def _collected() -> int:
    return sum(generation["collected"] for generation in gc.get_stats())


def _gpu_peaks(counted: RankStep) -> dict[str, int]:
    """Return the peak of requested bytes by phase. The host knows both, so it is exact."""
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
    counted.run_period()
    return _gpu_bytes(counted)


def _gpu_growth(tally: Tally, counted: RankStep) -> int:
    live: list[int] = []
    count_left(tally, counted, lambda: live.append(_gpu_bytes(counted)))
    return live[1] - live[0]


def _gpu_bytes(counted: RankStep) -> int:
    gc.collect()
    torch_device.synchronize(counted.device)
    return torch_device.live_bytes()


def _cpu_between(counted: RankStep) -> int:
    """Return the bytes that two more steps allocate and do not free, plus those of the storages
    that Python could reach before and that still live.
    """
    before = [(StorageWeakRef(s), s.nbytes()) for s in live_storages(counted.frozen).values()]
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
    """Yield for each event the time, the address and the bytes, negative if freed."""
    rest = list(results.experimental_event_tree())
    while rest:
        event = rest.pop()
        rest += event.children
        if event.tag == _EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size


def _cpu_growth(tally: Tally, counted: RankStep) -> int:
    """Return bytes allocated less bytes freed over LEAK_STEPS steps, whoever keeps them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        # These steps do not count: the profile does not see frees of what was made before it.
        counted.run_period()
        count_left(tally, counted, _mark)
    events = list(_events(profiled))
    began, ended = sorted(event.start_ns() for event in events if event.name() == _PHASE)
    memory = (event for event in events if event.name() == "[memory]")
    return sum(int(event.nbytes()) for event in memory if began <= event.start_ns() <= ended)


def _cpu_peaks(counted: RankStep) -> dict[str, int]:
    """Return the peak by phase on a CPU: what Python reaches at first, and what comes."""
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
    """Return the peak bytes by phase, of ``live`` and the "[memory]" events."""
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


def locate_memory(tally: Tally, counted: RankStep) -> None:
    """Add the lines of what lives between steps, and of what they were counted to leave."""
    locate_kept(tally, counted)
    locate_graph_nodes(tally, counted)
    locate_garbage(tally, counted)


COUNTER = StepCounter(
    "memory",
    (BETWEEN_STEPS, PEAK, LEAK, DEVICE_ALLOCATIONS, GRAPH_NODES, GARBAGE),
    count_memory,
    locate_memory,
)
