"""The figures of one rank's trace for each step, as pages and JSON show them, and what bounds the
step.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from stepguard.core.profile import IdleRow, Profile, Series, mean
from stepguard.trace.api_calls import SYNC_CALLS
from stepguard.trace.columns import KERNEL, NONE
from stepguard.trace.kernel_classes import COMMUNICATION
from stepguard.trace.make_profile import CAUSES, Analysis, Idle, call_counts, profile
from stepguard.trace.step_windows import queue_depth


@dataclass(frozen=True)
class ClassRow:
    """The records of one class. Lengths are added up, so overlapping records count twice."""

    name: str
    calls: float  # in each step
    us: float  # in each step
    share: float  # of the sum over all classes


@dataclass(frozen=True)
class PhaseRow:
    """A phase on the host, and what it launched on the GPU."""

    path: str
    host_us: float  # in each step
    own_us: float  # the part of host_us outside the phases inside it
    gpu_us: float  # in each step, while at least one of its records runs
    # In each step, from the first record's begin to the last one's end, summed over the passes.
    gpu_span_us: float


@dataclass(frozen=True)
class CallRow:
    """A CUDA call on the host."""

    name: str
    calls: float  # in each step
    us: float  # in each step
    share: float  # of the host's time in CUDA calls
    waits: bool


@dataclass(frozen=True)
class Queue:
    """How far the host is ahead of the GPU."""

    delay_median_us: float  # from the end of the launch call to the kernel's begin
    delay_p90_us: float
    depth_median: float  # launches that wait when a kernel begins
    depth_max: int
    late_share: float  # kernels that were launched after the GPU had run out of work


@dataclass(frozen=True)
class Summary:
    """One rank."""

    source: str
    rank: int
    marked_steps: int
    incomplete_steps: int
    has_marks: bool
    launches: int
    lost: int
    profile: Profile
    communication_us: Series
    # The part of communication during which something computes; None without communication.
    overlap_share: float | None
    classes: tuple[ClassRow, ...]
    phases: tuple[PhaseRow, ...]
    calls: tuple[CallRow, ...]
    queue: Queue


def summary(analysis: Analysis, source: str, rank: int) -> Summary:
    """Return the figures of an analysed trace."""
    windows = analysis.windows
    edges = windows.begin_us, windows.end_us
    whole = profile(analysis)
    communication = analysis.busy(analysis.of(COMMUNICATION)).inside(*edges)
    exposed = sum(whole.parts.exposed_communication_us)
    total = float(communication.sum())
    return Summary(
        source=source,
        rank=rank,
        marked_steps=windows.marked,
        incomplete_steps=windows.incomplete,
        has_marks=windows.has_marks,
        launches=windows.launches,
        lost=windows.lost,
        profile=whole,
        communication_us=tuple(communication.tolist()),
        overlap_share=1 - exposed / total if total else None,
        classes=tuple(_classes(analysis)),
        phases=tuple(_phases(analysis)),
        calls=tuple(_calls(analysis)),
        queue=_queue(analysis),
    )


def _classes(analysis: Analysis) -> list[ClassRow]:
    gpu, steps = analysis.windows.gpu, analysis.windows.steps
    rows = analysis.windows.step_of_record != NONE
    us = np.bincount(analysis.kind[rows], weights=(gpu.end_us - gpu.start_us)[rows])
    calls = np.bincount(analysis.kind[rows])
    return [
        ClassRow(analysis.kinds[i], calls[i] / steps, us[i] / steps, us[i] / us.sum())
        for i in np.argsort(-us).tolist()
        if calls[i]
    ]


def _phases(analysis: Analysis) -> list[PhaseRow]:
    windows, gpu = analysis.windows, analysis.windows.gpu
    in_step = windows.step_of_record != NONE
    first = np.full(len(analysis.passes) + 1, np.inf)
    last = np.full(len(analysis.passes) + 1, -np.inf)
    np.minimum.at(first, analysis.pass_of_record[in_step], gpu.start_us[in_step])
    np.maximum.at(last, analysis.pass_of_record[in_step], gpu.end_us[in_step])
    span = np.where(np.isfinite(first), last - first, 0.0)
    in_marks = windows.marked_at(np.array([span.start_us for span in analysis.passes])) != NONE
    rows = []
    for number, path in enumerate(analysis.phases):
        mine = [i for i, span in enumerate(analysis.passes) if span.path == path]
        timed = [analysis.passes[i] for i in mine if in_marks[i]]
        host = sum(span.end_us - span.start_us for span in timed)
        inside = [
            span.end_us - span.start_us
            for span, here in zip(analysis.passes, in_marks, strict=True)
            if here and path and span.path.rpartition("/")[0] == path
        ]
        union = analysis.busy((analysis.phase == number) & in_step)
        gpu_us = float((union.end_us - union.start_us).sum())
        if host or gpu_us:
            shown = float(span[mine].sum()) if mine else gpu_us
            figures = host, host - sum(inside), gpu_us, shown
            rows.append(PhaseRow(path, *(us / windows.steps for us in figures)))
    return rows


def _calls(analysis: Analysis) -> list[CallRow]:
    windows, names = analysis.windows, analysis.trace.names
    inside = windows.marked_at(windows.calls.start_us) != NONE
    us = windows.calls.end_us - windows.calls.start_us
    total = np.bincount(windows.calls.name[inside], us[inside], minlength=len(names))
    whole = max(float(total.sum()), 1e-9)
    rows = [
        CallRow(
            name=name,
            calls=sum(calls) / windows.steps,
            us=float(total[names.index(name)]) / windows.steps,
            share=float(total[names.index(name)]) / whole,
            waits=name in SYNC_CALLS,
        )
        for name, calls in call_counts(analysis).items()
    ]
    return sorted(rows, key=lambda row: -row.us)


def _queue(analysis: Analysis) -> Queue:
    windows, gpu = analysis.windows, analysis.windows.gpu
    launched = windows.call_of_record != NONE
    rows = (windows.step_of_record != NONE) & (gpu.kind == KERNEL) & launched
    if not rows.any():
        return Queue(0.0, 0.0, 0.0, 0, 0.0)
    delay = gpu.start_us[rows] - windows.calls.end_us[windows.call_of_record[rows]]
    delay = np.maximum(delay, 0.0)
    depth = queue_depth(windows)[rows]
    queued = [CAUSES.index(Idle.GAP), CAUSES.index(Idle.STREAM)]
    late = np.count_nonzero(~np.isin(analysis.gaps.cause, queued))
    return Queue(
        delay_median_us=float(np.median(delay)),
        delay_p90_us=float(np.quantile(delay, 0.9)),
        depth_median=float(np.median(depth)),
        depth_max=int(depth.max()),
        late_share=late / int(rows.sum()),
    )


BOUND_SHARE = 0.05  # of the step; with a smaller loss the GPU bounds the step


class Bound(StrEnum):
    """What bounds the step."""

    GPU = "GPU"
    SYNC = "sync"
    LAUNCH = "launch"  # the host is slower than the GPU
    INPUT = "input"
    COMMUNICATION = "communication"
    COPIES = "copy"
    KERNELS = "small-kernel"  # work is queued, but there is a pause after each kernel
    STREAM = "stream-wait"  # work is queued behind another stream
    PROFILER = "profiler"


_OF_IDLE = {
    Idle.SYNC: Bound.SYNC,
    Idle.HOST: Bound.LAUNCH,
    Idle.INPUT: Bound.INPUT,
    Idle.GAP: Bound.KERNELS,
    Idle.STREAM: Bound.STREAM,
    Idle.PROFILER: Bound.PROFILER,
}


@dataclass(frozen=True)
class Bottleneck:
    """The bound of a step, with its evidence."""

    bound: Bound
    compute_share: float
    loss: Bound  # the largest loss, even if it is not the bound
    loss_share: float
    rows: tuple[IdleRow, ...]  # the gaps of that loss, the longest first; none for exchanges


def bottleneck(profile: Profile) -> Bottleneck:
    """Return what bounds the step."""
    parts, step_us = profile.parts, mean(profile.parts.step_us)
    losses = dict.fromkeys(Bound, 0.0)
    losses[Bound.COMMUNICATION] = mean(parts.exposed_communication_us)
    losses[Bound.COPIES] = mean(parts.exposed_copies_us)
    for row in profile.idle:
        losses[_OF_IDLE[Idle(row.cause)]] += mean(row.us)
    loss = max(losses, key=lambda bound: losses[bound])
    rows = [row for row in profile.idle if _OF_IDLE[Idle(row.cause)] == loss]
    share = losses[loss] / step_us if step_us else 0.0
    return Bottleneck(
        bound=loss if share >= BOUND_SHARE else Bound.GPU,
        compute_share=mean(parts.compute_us) / step_us if step_us else 0.0,
        loss=loss,
        loss_share=share,
        rows=tuple(sorted(rows, key=lambda row: -mean(row.us))),
    )
