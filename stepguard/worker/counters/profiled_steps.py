"""Steps under the profiler: the calls of each, which counters read, and on a GPU their profile."""

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.profiler import profile, record_function

from stepguard.core.profile import Profile, StepIdentity, bounded
from stepguard.trace.chrome_trace import CutOffError, Decoded, DetailedEvent, TraceError, decode_all
from stepguard.trace.host_steps import identity_of, read_steps, with_settings
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse
from stepguard.trace.make_profile import profile as profile_of
from stepguard.worker.counters.changed_settings import settings
from stepguard.worker.counters.generated_kernels import hash_kernels
from stepguard.worker.counters.tally import ACTIVE_STEPS, RankStep, Tally
from stepguard.worker.rank_position import MICRO_STEP
from stepguard.worker.torch_device import activities, on_gpu, synchronize

TRIES = 3  # profiles taken until one has the GPU's record of every copy
MARK = "stepguard.step"
# On a GPU the last profiled step only shows where the one before it ends. A counting pass profiles
# so few that it has ACTIVE_STEPS whole ones.
COUNTED_STEPS = ACTIVE_STEPS + 1
# For times: the time of a class of kernels scatters by 0.5 to 1.3 % from step to step, so the mean
# of six whole steps is right to half a percent.
PROFILED_STEPS = 7
KEPT_KERNELS = 200  # GPT-2's step has 90 to 105


@dataclass(frozen=True)
class TakenProfile:
    """Profiled steps whose trace is not read yet: it is still in the profiler's memory."""

    profiled: Any  # torch.profiler.profile, ended
    steps: int
    on_gpu: bool

    def kernels(self) -> tuple[Profile | None, str]:
        """Return the profile, and why there is none on a GPU. On a CPU return None and no reason.
        Nothing else of the trace is read: only a counting pass needs more.
        """
        return _profile(_exported(self.profiled)) if self.on_gpu else (None, "")


def trace_steps(tally: Tally, counted: RankStep) -> None:
    """Trace ACTIVE_STEPS steps. Keep the calls of each, and on a GPU the profile.

    If one rank has to profile again, all do. Otherwise the rank that ran more steps would wait for
    the others for ever.
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
    """Return the profiler's range for a phase. A micro-step has none, so that the kernels of all
    micro-steps share a row.
    """
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
    """Return the profile of an exported trace, or why there is none."""
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
        """Enter a phase."""
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
