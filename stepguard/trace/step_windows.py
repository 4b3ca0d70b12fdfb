"""The steps of a trace: as marked on the host, and as windows of the GPU's time.

A record belongs to the step that launched it. The GPU lags behind the host by up to a whole step.
So step k lasts on the GPU from the first record launched in step k to the first one launched in
step k + 1. The last marked step has no such end and is left out, unless it is the only one.
"""

import re
from dataclasses import dataclass

import numpy as np

from stepguard.trace.api_calls import is_memset, works
from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.columns import (
    COPY,
    FILL,
    KERNEL,
    NONE,
    Bools,
    Floats,
    GpuRecords,
    Host,
    Ints,
    Trace,
    launched_by,
    look_up,
)
from stepguard.trace.kernel_classes import COMMUNICATION, Classes

LOST_AT_MOST = 0.005  # share of a step's launches; a lost record looks like idle time


@dataclass(frozen=True)
class Windows:
    """The complete steps of a trace, and what belongs to each; one item for each step."""

    mark_us: Floats  # begin on the host
    mark_end_us: Floats
    begin_us: Floats  # on the GPU
    end_us: Floats
    gpu: GpuRecords  # all records of the device, inside and outside the steps
    step_of_record: Ints  # by correlation; NONE for a record that no complete step launched
    calls: Host  # all CUDA calls
    call_of_record: Ints  # row in ``calls``; NONE if the call is not in the file
    marked: int  # steps in the file that launch something
    incomplete: int  # of the marked steps, those left out because launches have no record
    launches: int  # of the complete steps
    lost: int  # of these launches, those without a record
    has_marks: bool = True

    @property
    def steps(self) -> int:
        """Return the number of complete steps."""
        return len(self.begin_us)

    @property
    def step_us(self) -> Floats:
        """Return how long each step takes the GPU."""
        return self.end_us - self.begin_us

    def marked_at(self, when_us: Floats) -> Ints:
        """Return the step that the host is in at each moment; NONE outside all."""
        return step_at(when_us, self.mark_us, self.mark_end_us)


def find_windows(trace: Trace, classes: Classes) -> Windows:
    """Return the complete steps of a trace. If nothing marks steps, the whole trace is one step.

    Raises TraceError if there is no record of a GPU, or no step whose launches all have one.
    """
    gpu = _main_device(trace.gpu)
    calls, call_of_record = trace.calls, launched_by(trace.calls, gpu.correlation)
    steps = marked(trace, classes.steps)
    begin, end = trace.annotations.start_us[steps], trace.annotations.end_us[steps]
    if not len(steps):
        return _whole(gpu, calls, call_of_record)
    if not len(calls.kind):
        raise TraceError("it has marked steps and no CUDA call: no kernel can be put into a step")
    launched = step_at(calls.start_us, begin, end)
    step_of_record = np.append(launched, NONE)[call_of_record]  # NONE, -1, selects the last value
    launches, lost = _lost(trace, calls, launched, gpu.correlation, len(steps))
    gpu_begin, gpu_end = _on_gpu(gpu, trace.names, classes, step_of_record, launches)
    whole = np.isfinite(gpu_begin) & (gpu_end > gpu_begin)
    kept = np.flatnonzero(whole & (lost <= LOST_AT_MOST * np.maximum(launches, 1)))
    if not len(kept):
        raise TraceError(
            f"none of its {len(steps)} steps is complete: {int(lost.sum()):,} of "
            f"{int(launches.sum()):,} launches have no record of the GPU; profile at least two "
            "steps, and fewer if records get lost"
        )
    return Windows(
        mark_us=begin[kept],
        mark_end_us=end[kept],
        begin_us=gpu_begin[kept],
        end_us=gpu_end[kept],
        gpu=gpu,
        step_of_record=look_up(kept, np.arange(len(kept)), step_of_record),
        calls=calls,
        call_of_record=call_of_record,
        marked=int(np.count_nonzero(launches)),
        incomplete=int(np.count_nonzero(whole)) - len(kept),
        launches=int(launches[kept].sum()),
        lost=int(lost[kept].sum()),
    )


def _main_device(gpu: GpuRecords) -> GpuRecords:
    devices, counts = np.unique(gpu.device[gpu.kind == KERNEL], return_counts=True)
    if not len(devices):
        raise TraceError(
            "it has no kernel of a GPU: profile with ProfilerActivity.CUDA, on a machine with one"
        )
    return gpu.where(gpu.device == devices[counts.argmax()])


def marked(trace: Trace, patterns: tuple[str, ...]) -> Ints:
    """Return the annotations that mark steps, in order of time."""
    for pattern in patterns:
        wanted = np.array([bool(re.search(pattern, name)) for name in trace.names], bool)
        if len(rows := np.flatnonzero(wanted[trace.annotations.name])):
            return rows
    return np.zeros(0, np.int64)


def step_at(when_us: Floats, begin_us: Floats, end_us: Floats) -> Ints:
    """Return the mark that contains each moment; NONE outside all."""
    at = np.searchsorted(begin_us, when_us, side="right") - 1
    inside = (at >= 0) & (when_us < end_us[np.maximum(at, 0)])
    return np.where(inside, at, NONE)


def _lost(
    trace: Trace, calls: Host, launched: Ints, recorded: Ints, steps: int
) -> tuple[Ints, Ints]:
    """Return the launches, copies and fills called in each step, and those without a record. A fill
    without a record is not counted at all: whole files lack them, and a fill takes microseconds.
    """
    rows = np.array([works(name) for name in trace.names], bool)[calls.name] & (launched != NONE)
    without = rows & ~np.isin(calls.correlation, recorded)
    fills = np.array([is_memset(name) for name in trace.names], bool)[calls.name]
    rows, without = rows & ~(without & fills), without & ~fills
    count = np.bincount(launched[rows], minlength=steps)
    return count, np.bincount(launched[without], minlength=steps)


def _on_gpu(
    gpu: GpuRecords, names: tuple[str, ...], classes: Classes, step_of_record: Ints, launches: Ints
) -> tuple[Floats, Floats]:
    """Return begin and end of each step on the GPU; NaN for a step that launches nothing. A step
    begins with its first record on the stream that computes most, and ends where the next one
    begins. If only one step launches something, it ends with its last record.

    A copy on a stream of its own may run ahead, during the step before; the computing stream does
    not.
    """
    kernels = gpu.kind == KERNEL
    used = np.unique(gpu.name[kernels]).tolist()
    exchanges = [name for name in used if classes.kernel(names[name]) == COMMUNICATION]
    rows = kernels & ~np.isin(gpu.name, exchanges)
    rows = rows if rows.any() else kernels
    streams, index = np.unique(gpu.stream[rows], return_inverse=True)
    busy = np.bincount(index, weights=(gpu.end_us - gpu.start_us)[rows])
    on_it = (gpu.stream == streams[busy.argmax()]) & (step_of_record != NONE)
    first = np.full(len(launches), np.inf)
    np.minimum.at(first, step_of_record[on_it], gpu.start_us[on_it])
    begin = np.where(np.isfinite(first), first, np.nan)
    end = np.append(begin[1:], np.nan)
    if len(only := np.flatnonzero(launches)) == 1:
        end[only] = gpu.end_us[step_of_record == only[0]].max(initial=-np.inf)
    return begin, end


def _whole(gpu: GpuRecords, calls: Host, call_of_record: Ints) -> Windows:
    """Return the whole trace as one step."""
    begin, end = gpu.start_us[:1], np.array([gpu.end_us.max()])
    return Windows(
        mark_us=np.array([calls.start_us.min(initial=begin[0])]),
        mark_end_us=np.array([calls.end_us.max(initial=end[0])]),
        begin_us=begin,
        end_us=end,
        gpu=gpu,
        step_of_record=np.zeros(len(gpu.kind), np.int64),
        calls=calls,
        call_of_record=call_of_record,
        marked=0,
        incomplete=0,
        launches=len(gpu.kind),
        lost=0,
        has_marks=False,
    )


def queue_depth(windows: Windows) -> Ints:
    """Return how many launches wait when each record begins."""
    with_call = windows.call_of_record != NONE
    called = np.sort(windows.calls.start_us[windows.call_of_record[with_call]])
    started = windows.gpu.start_us[with_call]
    when = windows.gpu.start_us
    before = np.searchsorted(called, when, side="right")
    return np.asarray(before - np.searchsorted(started, when, side="right"), np.int64)


def is_memory(gpu: GpuRecords) -> Bools:
    """Return which records are copies or fills."""
    rows: Bools = (gpu.kind == COPY) | (gpu.kind == FILL)
    return rows
