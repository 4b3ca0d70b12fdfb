"""Describe what is said of one rank's trace: figures for each step, as pages and JSON show them."""

from dataclasses import dataclass

import numpy as np

from stepguard.core.profile import Profile, Series
from stepguard.trace.api_calls import SYNC_CALLS
from stepguard.trace.columns import KERNEL, NONE
from stepguard.trace.idle_causes import CAUSES, Idle
from stepguard.trace.kernel_classes import COMMUNICATION
from stepguard.trace.make_profile import Analysis, call_counts, profile
from stepguard.trace.step_windows import queue_depth


@dataclass(frozen=True)
class ClassRow:
    """The records of one class; lengths are summed, so that overlapping ones count twice."""

    name: str
    calls: float  # a step
    us: float  # a step
    share: float  # of the sum over all classes


@dataclass(frozen=True)
class PhaseRow:
    """A phase on the host, and what it launched on the GPU."""

    path: str
    host_us: float  # a step
    own_us: float  # ... outside the phases inside it
    gpu_us: float  # a step, with at least one of its records running
    gpu_span_us: float  # a step, from the first record's begin to the last one's end, each pass


@dataclass(frozen=True)
class CallRow:
    """A CUDA call on the host."""

    name: str
    calls: float  # a step
    us: float  # a step
    share: float  # of the host's time in CUDA calls
    waits: bool


@dataclass(frozen=True)
class Queue:
    """Describe how far the host is ahead of the GPU."""

    delay_median_us: float  # from the end of the launch call to the kernel's begin
    delay_p90_us: float
    depth_median: float  # launches that wait when a kernel begins
    depth_max: int
    late_share: float  # kernels that were launched after the GPU had run dry


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
    overlap_share: float | None  # of communication, with compute beside it; None without any
    classes: tuple[ClassRow, ...]
    phases: tuple[PhaseRow, ...]
    calls: tuple[CallRow, ...]
    queue: Queue


def summary(found: Analysis, source: str, rank: int) -> Summary:
    """Return what is said of an analysed trace."""
    windows = found.windows
    edges = windows.begin_us, windows.end_us
    whole = profile(found)
    communication = found.busy(found.of(COMMUNICATION)).inside(*edges)
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
        classes=tuple(_classes(found)),
        phases=tuple(_phases(found)),
        calls=tuple(_calls(found)),
        queue=_queue(found),
    )


def _classes(found: Analysis) -> list[ClassRow]:
    gpu, steps = found.windows.gpu, found.windows.steps
    rows = found.windows.step_of_record != NONE
    us = np.bincount(found.kind[rows], weights=(gpu.end_us - gpu.start_us)[rows])
    calls = np.bincount(found.kind[rows])
    return [
        ClassRow(found.kinds[i], calls[i] / steps, us[i] / steps, us[i] / us.sum())
        for i in np.argsort(-us).tolist()
        if calls[i]
    ]


def _phases(found: Analysis) -> list[PhaseRow]:
    windows, gpu = found.windows, found.windows.gpu
    in_step = windows.step_of_record != NONE
    first = np.full(len(found.passes) + 1, np.inf)
    last = np.full(len(found.passes) + 1, -np.inf)
    np.minimum.at(first, found.pass_of_record[in_step], gpu.start_us[in_step])
    np.maximum.at(last, found.pass_of_record[in_step], gpu.end_us[in_step])
    span = np.where(np.isfinite(first), last - first, 0.0)
    in_marks = windows.marked_at(np.array([one.start_us for one in found.passes])) != NONE
    rows = []
    for number, path in enumerate(found.phases):
        mine = [i for i, one in enumerate(found.passes) if one.path == path]
        timed = [found.passes[i] for i in mine if in_marks[i]]
        host = sum(one.end_us - one.start_us for one in timed)
        inside = [
            one.end_us - one.start_us
            for one, here in zip(found.passes, in_marks, strict=True)
            if here and path and one.path.rpartition("/")[0] == path
        ]
        union = found.busy((found.phase == number) & in_step)
        gpu_us = float((union.end_us - union.start_us).sum())
        if host or gpu_us:
            shown = float(span[mine].sum()) if mine else gpu_us
            figures = host, host - sum(inside), gpu_us, shown
            rows.append(PhaseRow(path, *(us / windows.steps for us in figures)))
    return rows


def _calls(found: Analysis) -> list[CallRow]:
    windows, names = found.windows, found.trace.names
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
        for name, calls in call_counts(found).items()
    ]
    return sorted(rows, key=lambda row: -row.us)


def _queue(found: Analysis) -> Queue:
    windows, gpu = found.windows, found.windows.gpu
    launched = windows.call_of_record != NONE
    rows = (windows.step_of_record != NONE) & (gpu.kind == KERNEL) & launched
    if not rows.any():
        return Queue(0.0, 0.0, 0.0, 0, 0.0)
    delay = gpu.start_us[rows] - windows.calls.end_us[windows.call_of_record[rows]]
    delay = np.maximum(delay, 0.0)
    depth = queue_depth(windows)[rows]
    queued = [CAUSES.index(Idle.GAP), CAUSES.index(Idle.STREAM)]
    late = np.count_nonzero(~np.isin(found.gaps.cause, queued))
    return Queue(
        delay_median_us=float(np.median(delay)),
        delay_p90_us=float(np.quantile(delay, 0.9)),
        depth_median=float(np.median(depth)),
        depth_max=int(depth.max()),
        late_share=late / int(rows.sum()),
    )
