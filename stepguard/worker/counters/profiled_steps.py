"""Steps under the profiler, as they are timed: counts of their calls, and on a GPU their profile.
Other counters read the calls, too. A process has one profiler of torch's at a time.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile as autograd_profile
from torch.profiler import ProfilerActivity, profile, record_function

from stepguard.core.metrics import COLLECTIVE_BYTES, COLLECTIVES, COMPILED_OPERATORS, COPIES
from stepguard.core.profile import Profile, StepIdentity, bounded
from stepguard.trace.chrome_trace import CutOffError, Decoded, DetailedEvent, TraceError, decode_all
from stepguard.trace.host_steps import StepCalls, identity_of, read_steps, with_settings
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse
from stepguard.trace.make_profile import profile as profile_of
from stepguard.worker.block_timer import Step
from stepguard.worker.counters.changed_settings import settings
from stepguard.worker.counters.generated_kernels import hash_kernels
from stepguard.worker.counters.tally import ACTIVE_STEPS, RankStep, StepCounter, Tally
from stepguard.worker.rank_position import MICRO_STEP
from stepguard.worker.torch_device import activities, on_gpu, synchronize
from stepguard.worker.workload import BadWorkload

TRIES = 3  # profiles taken until one has the GPU's record of every copy
MARK = "stepguard.step"
# On a GPU the last profiled step only shows where the one before it ends. A counting pass profiles
# so few that it has ACTIVE_STEPS whole ones.
COUNTED_STEPS = ACTIVE_STEPS + 1
# For times: the time of a class of kernels scatters by 0.5 to 1.3 % from step to step, so the mean
# of six whole steps is right to half a percent.
PROFILED_STEPS = 7
KEPT_KERNELS = 200  # GPT-2's step has 90 to 105
# The methods that every profiler of torch calls when it begins: to warm up, and to record.
_BEGINNINGS = ("_prepare_trace", "_start_trace")
PROFILES_ITSELF = (
    "the step turns on torch's profiler, which a process has once, and which stepguard needs to "
    "count what the step does: turn it off in this run, by an argument or parameter of the case"
)
_MARK = "stepguard.own_thread"
_BACKWARD = "autograd::engine::evaluate_function"
# Operators with nearly all FLOPs of a step. A thread that prepares batches calls none of them.
_PRODUCT = re.compile(r"^aten::(\w*mm\w*|linear|matmul|\w*convolution\w*|_?scaled_dot_product\w*)$")
_COPIED_BYTES, _PAGEABLE = "copied_bytes_per_step", "pageable_copies_per_step"
_MEMSETS = "memsets_per_step"
_PARTS: dict[str, Callable[[StepCalls], Mapping[str, int]]] = {
    COMPILED_OPERATORS: lambda calls: calls.operators,
    COLLECTIVES: lambda calls: calls.collectives,
    COLLECTIVE_BYTES: lambda calls: calls.collective_bytes,
    "launches_per_step": lambda calls: calls.launches,
    COPIES: lambda calls: calls.copies,
    _COPIED_BYTES: lambda calls: calls.copy_bytes,
    _PAGEABLE: lambda calls: {name: n for name, n in calls.copies.items() if "Pageable" in name},
}


@dataclass(frozen=True)
class TakenProfile:
    """Profiled steps whose trace is not read yet: it is still in the profiler's memory."""

    profiled: Any  # torch.profiler.profile, ended
    steps: int
    on_gpu: bool

    def kernels(self) -> tuple[Profile | None, str]:
        """Return the profile, and why there is none on a GPU. On a CPU there is neither."""
        return _profile(_exported(self.profiled)) if self.on_gpu else (None, "")


def trace_steps(tally: Tally, counted: RankStep) -> None:
    """Trace ACTIVE_STEPS steps. Keep the calls, and on a GPU the profile. If one rank has to
    profile again, all do: otherwise it would wait for ever.
    """
    steps = COUNTED_STEPS if on_gpu(counted.device) else ACTIVE_STEPS
    for _ in range(TRIES):
        read_trace(tally, take_profile(counted, steps))
        if not counted.any_rank(any(calls.lost_copies for calls in tally.calls)):
            break


def take_profile(counted: RankStep, steps: int) -> TakenProfile:
    """Run one step, then so many that count, under the profiler."""
    gpu = on_gpu(counted.device)
    if gpu:
        hash_kernels()
    # With shapes the trace also has the bytes of collectives, and what identifies a GPU's step.
    shapes = gpu or counted.world_size > 1
    ranges = Ranges(_phase)
    with (
        counted.phases.heard_by(ranges),
        profile(activities=activities(counted.device), record_shapes=shapes) as profiled,
    ):
        counted.step()
        for _ in range(steps):
            counted.phases.begin_step()
            with record_function(MARK):
                counted.step()
                ranges.end_step()
        synchronize(counted.device)
    return TakenProfile(profiled, steps, gpu)


def read_trace(tally: Tally, taken: TakenProfile) -> None:
    """Keep in the tally what a counting pass needs of a trace."""
    trace, steps = _exported(taken.profiled), taken.steps
    tally.calls = read_steps(trace.events, MARK, steps)[:ACTIVE_STEPS]
    if taken.on_gpu:
        tally.profile, tally.profile_problem = _profile(trace)
        tally.identity = _identity(trace.events, steps, settings())


def _phase(name: str) -> AbstractContextManager[object]:
    """Return the profiler's range for a phase. All micro-steps' kernels share a row."""
    return nullcontext() if name.startswith(MICRO_STEP) else record_function(name)


def _identity(events: list[DetailedEvent], steps: int, flags: dict[str, Any]) -> StepIdentity:
    try:
        return with_settings(identity_of(events, MARK, steps), flags)
    except RuntimeError as error:
        return StepIdentity(problem=str(error))


def _exported(profiled: Any) -> Decoded:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        return _decoded(Path(file.name))  # by name: torch may replace the file


def _decoded(path: Path) -> Decoded:
    try:
        return decode_all(path.read_bytes())
    except CutOffError:  # the profiler does not report that it could not write
        raise OSError(
            f"the profiler wrote no whole trace to {tempfile.gettempdir()} "
            f"({path.stat().st_size} bytes of it): make room there (df), or set TMPDIR to a folder "
            "that has some"
        ) from None
    except TraceError as error:
        raise RuntimeError(f"the profiler's trace cannot be read: {error}") from None


def _profile(trace: Decoded) -> tuple[Profile | None, str]:
    try:
        return bounded(profile_of(analyse(trace.trace(), usual_classes())), KEPT_KERNELS), ""
    except TraceError as error:
        return None, str(error)


Open = Callable[[str], AbstractContextManager[object]]


class Ranges:
    """Opens a range at each phase, and closes it at the next phase or at the step's end.

    A micro-step's range contains those of its phases. A phase that comes once after several
    micro-steps (clipping, the optimizer) is in none of them; that is known from the second step on.
    A single micro-step gets no range, since it would contain all phases.
    """

    def __init__(self, open_range: Open) -> None:
        self._open = open_range
        self._ranges: list[AbstractContextManager[object]] = []
        self._micro_step = ""
        self._seen_in: dict[str, set[str]] = {}  # by phase: this step's micro-steps
        self._after: set[str] = set()  # phases outside of micro-steps

    def __call__(self, name: str) -> None:
        if name.startswith(MICRO_STEP):
            self._close(0)
            self._micro_step = name
        else:
            self._close(1 if self._micro_step and name not in self._after else 0)
            self._seen_in.setdefault(name, set()).add(self._micro_step)
        opened = self._open(name)
        opened.__enter__()
        self._ranges.append(opened)

    def _close(self, kept: int) -> None:
        while len(self._ranges) > kept:
            self._ranges.pop().__exit__(None, None, None)

    def end_step(self) -> None:
        """Close what is open."""
        self._close(0)
        self._after = {name for name, micro_steps in self._seen_in.items() if len(micro_steps) == 1}
        self._seen_in, self._micro_step = {}, ""


def unprofiled(step: Step) -> Step:
    """Return the step so that it raises BadWorkload if it starts a profiler: one would take the
    other's place. Raises it at once if a profiler runs.
    """
    if _profiler_enabled():
        raise BadWorkload(PROFILES_ITSELF)

    def refuse(profiler: autograd_profile) -> None:
        raise BadWorkload(PROFILES_ITSELF)

    def run() -> object:
        kept = {name: getattr(autograd_profile, name) for name in _BEGINNINGS}
        for name in _BEGINNINGS:
            setattr(autograd_profile, name, refuse)
        try:
            return step()
        finally:
            for name, method in kept.items():
                setattr(autograd_profile, name, method)

    return run


def count_traced(tally: Tally, counted: RankStep) -> None:
    """Count the calls of traced steps. Refuse work in other threads, which none shows."""
    refuse_work_elsewhere(counted)
    trace_steps(tally, counted)
    count_calls(tally, counted)


def count_calls(tally: Tally, counted: RankStep) -> None:
    """Count the calls of the traced steps, and how long the host waits in CUDA calls."""
    steps, unknown = tally.calls, dict[str, str]()
    if lost := sum(calls.lost_copies for calls in steps):
        reason = f"copies without the GPU's record, also after {TRIES} profiles: {lost}"
        unknown = dict.fromkeys((COPIES, _COPIED_BYTES, _PAGEABLE), reason)
    if unsized := {name for calls in steps for name in calls.unsized_collectives}:
        unknown[COLLECTIVE_BYTES] = (
            f"the trace has no size of {', '.join(sorted(unsized))} (gloo: if messages of several "
            "types have one length); take the metric out of the case's gates, or use another "
            "length"
        )
    for metric, parts in _PARTS.items():
        if metric in unknown:
            tally.missing(unknown[metric], metric)
        elif counted.has(metric):
            tally.add_parts(metric, [parts(calls) for calls in steps])
    if on_gpu(counted.device):
        tally.add(_MEMSETS, [calls.memsets for calls in steps])
        if api_us := sum(calls.api_us for calls in steps):
            share = 100 * sum(calls.sync_us for calls in steps) / api_us
            tally.information["sync_api_share_pct"] = share


def refuse_work_elsewhere(counted: RankStep) -> None:
    """Run a step. Raises BadWorkload if other threads call products, or if the step's own thread
    calls no operator on a CPU.

    The counters of operators, FLOPs, waits and bytes see only the step's thread, as torch's modes
    and profiler do. All counters of other threads' work would be zero, and only the time would show
    it.
    """
    config = _ExperimentalConfig(profile_all_threads=True)
    host = [ProfilerActivity.CPU]
    with (
        profile(activities=host, experimental_config=config) as profiled,
        record_function(_MARK),
    ):
        counted.step()
    events = list(profiled.profiler.kineto_results.events())
    if problem := _elsewhere(events, on_gpu(counted.device)):
        raise BadWorkload(
            f"{problem}, and no counter sees other threads: let step() do the work in the thread "
            "that calls it"
        )


def _elsewhere(events: Iterable[Any], gpu: bool) -> str:
    """Return what a step does in other threads, to begin a sentence with; else ""."""
    seen = list(events)
    own = next(event.start_thread_id() for event in seen if event.name() == _MARK)
    calls = [(e.start_thread_id(), e.name()) for e in seen if not e.is_user_annotation()]
    # On a GPU a step that replays a graph calls no operator. Launches of all threads are counted.
    if not gpu and all(thread != own for thread, _ in calls):
        return "step() takes time, but calls no operator of torch's in its own thread"
    # On a GPU backward passes run in a thread of autograd's, and are counted.
    counted = {own} | {t for t, name in calls if gpu and name.startswith(_BACKWARD)}
    products = Counter(thread in counted for thread, name in calls if _PRODUCT.match(name))
    if not products[False]:
        return ""
    return f"step() calls {products[False]} of {products.total()} products in another thread"


COUNTER = StepCounter("profiled steps", (*_PARTS, _MEMSETS), count_traced)
