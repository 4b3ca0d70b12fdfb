"""Counts from the profiler: calls of the device's API and of the dispatcher; on a GPU also the
profile of the same steps.
"""

import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.profiler import profile, record_function

from stepguard.core.profile import Profile, StepIdentity, bounded
from stepguard.core.site import Site
from stepguard.trace.chrome_events import CutOffError, DetailedEvent, TraceError
from stepguard.trace.chrome_trace import Decoded, decode_all
from stepguard.trace.host_steps import StepCalls, read_steps
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse
from stepguard.trace.make_profile import profile as profile_of
from stepguard.trace.operator_identity import identity_of, with_settings
from stepguard.worker.count.changed_settings import settings
from stepguard.worker.count.generated_kernels import hash_kernels
from stepguard.worker.count.syncs import SyncListener, located
from stepguard.worker.count.tally import ACTIVE_STEPS, RankStep, Tally
from stepguard.worker.phase_ranges import Ranges
from stepguard.worker.rank_position import MICRO_STEP
from stepguard.worker.torch_device import SYNC_KINDS, activities, on_gpu, synchronize

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


@dataclass(frozen=True)
class ProfiledSteps:
    """What a trace says of the steps in it."""

    calls: list[StepCalls]  # of the first ACTIVE_STEPS
    profile: Profile | None = None  # of all steps
    problem: str = ""  # why there is no profile on a GPU
    identity: StepIdentity | None = None  # of a GPU's steps


def count_profiled(tally: Tally, counted: RankStep) -> list[StepCalls]:
    """Count all that a trace of ACTIVE_STEPS steps shows. Everywhere: operators. With several
    ranks: collectives. On a GPU: launches, copies, memsets and host syncs. Return the calls of each
    step: locate_syncs() finds the lines of the syncs among them.

    If one rank has to profile again, all do. Otherwise the rank that ran more steps would wait for
    the others for ever.
    """
    for _ in range(TRIES):
        profiled = profile_steps(counted)
        steps = profiled.calls
        if not counted.any_rank(any(calls.lost_copies for calls in steps)):
            break
    tally.add_parts("compiled_operator_calls_per_step", [calls.operators for calls in steps])
    if counted.world_size > 1:
        count_collectives(tally, steps)
    if on_gpu(counted.device):
        count_device_calls(tally, steps)
        count_syncs(tally, steps, [[] for _ in steps])
        tally.profile, tally.profile_problem = profiled.profile, profiled.problem
        tally.identity = profiled.identity
    return steps


def locate_syncs(tally: Tally, counted: RankStep, steps: list[StepCalls]) -> None:
    """Count host_syncs_per_step of these steps once more, with the lines that torch reports as it
    runs as many steps. Then those that a line allows do not count.

    torch's reports slow down each later allocation, so no step of this process is timed after.
    """
    listener = SyncListener(counted.phases)
    reported: list[list[Site]] = []
    for _ in steps:
        counted.phases.begin_step()
        with listener.listen() as sites:
            counted.step()
        synchronize(counted.device)
        reported.append(sites)
    kinds = [Counter(site.what for site in sites) for sites in reported]
    seen = []
    for number, calls in enumerate(steps):
        # Steps may take turns, and these begin at another one.
        wanted = Counter(sync.kind for sync in calls.syncs if sync.kind in SYNC_KINDS)
        same = kinds.index(wanted) if wanted in kinds else number
        seen.append(reported[number if kinds[number] == wanted else same])
    count_syncs(tally, steps, seen, len(counted.phases.micro_steps))


def count_device_calls(tally: Tally, steps: list[StepCalls]) -> None:
    """Count launches_per_step, memsets_per_step and the copies with their bytes. Keep the share of
    the time in CUDA calls that the host waits.
    """
    if api_us := sum(calls.api_us for calls in steps):
        share = 100 * sum(calls.sync_us for calls in steps) / api_us
        tally.information["sync_api_share_pct"] = share
    tally.add_parts("launches_per_step", [calls.launches for calls in steps])
    tally.add("memsets_per_step", [calls.memsets for calls in steps])
    copies: dict[str, list[Counter[str]]] = {
        "copies_per_step": [calls.copies for calls in steps],
        "copied_bytes_per_step": [calls.copy_bytes for calls in steps],
        "pageable_copies_per_step": [
            Counter({name: n for name, n in calls.copies.items() if "Pageable" in name})
            for calls in steps
        ],
    }
    if lost := sum(calls.lost_copies for calls in steps):
        reason = f"copies without the GPU's record, also after {TRIES} profiles: {lost}"
        tally.missing(reason, *copies)
        return
    for metric, by_step in copies.items():
        tally.add_parts(metric, by_step)


def count_collectives(tally: Tally, steps: list[StepCalls]) -> None:
    """Count collectives_per_step and collective_bytes_per_step of this rank."""
    tally.add_parts("collectives_per_step", [calls.collectives for calls in steps])
    if unsized := {name for calls in steps for name in calls.unsized_collectives}:
        tally.missing(
            f"the trace has no size of {', '.join(sorted(unsized))} (gloo: if messages of several "
            "types have one length); take the metric out of the case's gates, or use another "
            "length",
            "collective_bytes_per_step",
        )
        return
    tally.add_parts("collective_bytes_per_step", [calls.collective_bytes for calls in steps])


def count_syncs(
    tally: Tally, steps: list[StepCalls], seen: list[list[Site]], micro_steps: int = 0
) -> None:
    """Count host_syncs_per_step and keep their sites. Allowed ones do not count."""
    both = zip(steps, seen, strict=True)
    sites = [located(calls.syncs, lines, micro_steps) for calls, lines in both]
    counts = [sum(site.count for site in of_step if not site.allowed) for of_step in sites]
    tally.add("host_syncs_per_step", counts, sites=sites)


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


def profile_steps(counted: RankStep) -> ProfiledSteps:
    """Profile the steps of a counting pass. Return all that their trace says."""
    gpu = on_gpu(counted.device)
    return read_all(take_profile(counted, COUNTED_STEPS if gpu else ACTIVE_STEPS))


def read_all(taken: TakenProfile) -> ProfiledSteps:
    """Return what a counting pass needs of the trace."""
    trace, steps = _exported(taken.profiled), taken.steps
    calls = read_steps(trace.events, MARK, steps)[:ACTIVE_STEPS]
    if not taken.on_gpu:
        return ProfiledSteps(calls)
    return ProfiledSteps(calls, *_profile(trace), _identity(trace.events, steps, settings()))


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
