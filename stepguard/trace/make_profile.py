"""From a trace to a Profile: the parts of the step, its kernels and its idle time.

The GPU's idle time is made of gaps between two records, each with a cause. A gap ends with a
record. If that record's launch began before the gap, the GPU had work: a short gap is the pause
between two kernels, a long one a stream that waits. If not, the host was late, and what it did at
that moment is the cause.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from stepguard.core.profile import IdleRow, KernelRow, Parts, Profile, Series, Work
from stepguard.trace.api_calls import SYNC_CALLS
from stepguard.trace.columns import (
    ANNOTATION,
    KERNEL,
    NONE,
    OPERATOR,
    OVERHEAD,
    PYTHON,
    Bools,
    Floats,
    Host,
    Ints,
    Trace,
    look_up,
    taken,
)
from stepguard.trace.kernel_classes import COMMUNICATION, INPUT, OTHER, Classes
from stepguard.trace.phases import Pass, find_passes, pass_at
from stepguard.trace.step_windows import LOST_AT_MOST, Windows, find_windows, is_memory, queue_depth


@dataclass(frozen=True)
class Union:
    """Intervals that neither overlap nor touch, in order; in us."""

    start_us: Floats
    end_us: Floats

    def inside(self, begin_us: Floats, end_us: Floats) -> Floats:
        """Return how many us of each window [begin, end) the union covers."""
        return self._up_to(end_us) - self._up_to(begin_us)

    def _up_to(self, when_us: Floats) -> Floats:
        """Return the length of the union before each moment, in us."""
        if not len(self.start_us):
            return np.zeros(len(when_us))
        before = np.concatenate([[0.0], np.cumsum(self.end_us - self.start_us)])
        at = np.searchsorted(self.start_us, when_us, side="right")
        last = np.maximum(at - 1, 0)
        partly = np.minimum(when_us, self.end_us[last]) - self.start_us[last]
        return np.where(at > 0, before[last] + partly, 0.0)

    def gaps(self) -> tuple[Floats, Floats]:
        """Return the begins and ends of the gaps between the intervals."""
        return self.end_us[:-1], self.start_us[1:]


def union(start_us: Floats, end_us: Floats) -> Union:
    """Return the union of intervals, which may overlap, in any order."""
    order = np.argsort(start_us, kind="stable")
    start, end = start_us[order], end_us[order]
    if not len(start):
        return Union(start, end)
    reached = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Union(start[first], reached[last])


class Idle(StrEnum):
    """Why the GPU had nothing to do."""

    SYNC = "sync"  # the host waited for the GPU, and only then launched more
    INPUT = "input wait"  # the host waited for data
    PROFILER = "profiler"  # the profiler emptied its buffers
    HOST = "host late"  # the host was slower than the GPU
    GAP = "between kernels"  # work was queued; the GPU took this long to begin it
    # Work was queued, but its stream waited: for another stream, an event, memory.
    STREAM = "stream wait"


CAUSES = tuple(Idle)
_SYNC = CAUSES.index(Idle.SYNC)
# A longer gap is no pause between two kernels. 16,485 pauses on H200s: median 1.6 us, longest 19.4.
BETWEEN_US = 50.0
AHEAD = 16  # if so many launches wait, the host is ahead of the GPU
CATCH_UP_SHARE = 0.05  # share of a step; a host that takes longer to get ahead is slow by itself


_IN_ORDER = (Idle.STREAM, Idle.GAP, Idle.INPUT, Idle.SYNC, Idle.PROFILER)  # the first that applies


@dataclass(frozen=True)
class Gaps:
    """Every gap inside the steps; one item for each gap."""

    begin_us: Floats
    us: Floats
    step: Ints
    cause: Ints  # into CAUSES
    sync: Ints  # row in ``Windows.calls`` of the call that caused it; NONE without one
    record: Ints  # row in ``Windows.gpu`` of the record that ended it


def find_gaps(trace: Trace, windows: Windows, passes: tuple[Pass, ...]) -> Gaps:
    """Return the gaps of the GPU inside the steps, with their causes."""
    gpu = windows.gpu
    begin, end = union(gpu.start_us, gpu.end_us).gaps()
    step = np.searchsorted(windows.begin_us, begin, side="right") - 1
    inside = (step >= 0) & (end <= windows.end_us[np.maximum(step, 0)] + 1e-6)
    begin, end, step = begin[inside], end[inside], step[inside]
    record = np.searchsorted(gpu.start_us, end, side="left")
    call = windows.call_of_record[record]
    launch = taken(windows.calls.start_us, call, -np.inf)
    late = launch > begin
    sync = np.where(late, _sync_before(trace, windows.calls, begin, launch), NONE)
    inputs = [span for span in passes if span.path.rpartition("/")[2] == INPUT]
    waits = union(np.array([p.start_us for p in inputs]), np.array([p.end_us for p in inputs]))
    dumps = trace.host.where(trace.host.kind == OVERHEAD)
    buffers = union(dumps.start_us, dumps.end_us)
    cause = np.select(
        [
            ~late & (end - begin > BETWEEN_US),
            ~late,
            _mostly(waits, begin, launch, late),
            sync != NONE,
            _mostly(buffers, begin, launch, late),
        ],
        [CAUSES.index(cause) for cause in _IN_ORDER],
        CAUSES.index(Idle.HOST),
    )
    sync = np.where(cause == _SYNC, sync, NONE)
    sync = _catching_up(windows, cause, sync, record)
    cause = np.where(sync == NONE, cause, _SYNC)
    return Gaps(begin, end - begin, step, cause, sync, record)


def _catching_up(windows: Windows, cause: Ints, sync: Ints, record: Ints) -> Ints:
    """Return the sync of each gap. After a sync the host may be late several times until it is
    ahead; later it is late for another reason.
    """
    waits = np.flatnonzero(cause == _SYNC)
    ahead = np.flatnonzero(queue_depth(windows) >= AHEAD)
    if not len(waits) or not len(ahead):
        return sync
    last = np.searchsorted(record[waits], record, side="right") - 1
    from_record = record[waits[np.maximum(last, 0)]]
    at = np.minimum(np.searchsorted(ahead, from_record), len(ahead) - 1)
    until = ahead[at]
    took = windows.gpu.start_us[until] - windows.gpu.start_us[from_record]
    soon = (took >= 0) & (took <= CATCH_UP_SHARE * windows.step_us.mean())
    caught = (cause == CAUSES.index(Idle.HOST)) & (last >= 0) & (record < until) & soon
    return np.where(caught, sync[waits[np.maximum(last, 0)]], sync)


def _sync_before(trace: Trace, calls: Host, begin: Floats, launch: Floats) -> Ints:
    """Return the wait during which the GPU ran out of work, before the launch."""
    rows = np.flatnonzero(np.isin(calls.name, trace.named(SYNC_CALLS)))
    rows = rows[np.argsort(calls.end_us[rows], kind="stable")]
    if not len(rows):
        return np.full(len(begin), NONE, np.int64)
    ends = calls.end_us[rows]
    at = np.searchsorted(ends, begin, side="right")
    row = rows[np.minimum(at, len(rows) - 1)]
    waited = (at < len(rows)) & (calls.start_us[row] <= begin) & (calls.end_us[row] <= launch)
    return np.where(waited, row, NONE)


def _mostly(busy: Union, begin: Floats, launch: Floats, late: Bools) -> Bools:
    """Return whether the union covers at least half of the time from the begin to the launch."""
    end = np.where(late, launch, begin)
    covered: Bools = late & (2 * busy.inside(begin, end) >= end - begin)
    return covered


_LIBRARIES = (
    "/torch/",
    "/inductor/",
    "/torchinductor_",
    "/nn.Module: ",
    "site-packages",
    "<frozen",
    "<built-in",
    "threading.py",
)
_TF32 = ("tf32", "s1688")
COPIES = "copies and fills"


@dataclass(frozen=True)
class Analysis:
    """One rank's trace, taken apart. All pages are made of it."""

    trace: Trace
    classes: Classes
    windows: Windows
    passes: tuple[Pass, ...]
    pass_of_record: Ints  # the pass that it was launched in; NONE outside all
    phase: Ints  # the phase of each record, into ``phases``
    phases: tuple[str, ...]
    kind: Ints  # the class of each record, into ``kinds``
    kinds: tuple[str, ...]
    gaps: Gaps

    def busy(self, rows: Bools) -> Union:
        """Return the time in which at least one of these records runs."""
        return union(self.windows.gpu.start_us[rows], self.windows.gpu.end_us[rows])

    @cached_property
    def has_stack(self) -> bool:
        """Tell whether the file has frames of Python (``with_stack=True``)."""
        return bool((self.trace.host.kind == PYTHON).any())

    def of(self, *kinds: str) -> Bools:
        """Return the records of these classes."""
        rows: Bools = np.isin(self.kind, [self.kinds.index(kind) for kind in kinds])
        return rows


def analyse(trace: Trace, classes: Classes) -> Analysis:
    """Take a trace apart. Raises TraceError if it has no complete step."""
    windows = find_windows(trace, classes)
    external = with_lost_links(trace, windows)
    windows = replace(windows, gpu=replace(windows.gpu, external=external))
    passes = find_passes(trace, classes)
    gpu = windows.gpu
    # A record whose call is not in the file was launched before the file begins.
    passed = pass_at(passes, taken(windows.calls.start_us, windows.call_of_record, -1.0))
    phases = ("", *dict.fromkeys(span.path for span in passes))
    # NONE, -1, selects the last item: it is for records outside all passes.
    of_pass = np.array([phases.index(span.path) for span in passes] + [0])
    kinds = (*dict.fromkeys(name for _, name in classes.kernels), OTHER, COPIES)
    of_name = np.full(len(trace.names), len(kinds) - 1)
    for name in np.unique(gpu.name[~is_memory(gpu)]).tolist():
        of_name[name] = kinds.index(classes.kernel(trace.names[name]))
    return Analysis(
        trace=trace,
        classes=classes,
        windows=windows,
        passes=passes,
        pass_of_record=passed,
        phase=of_pass[passed],
        phases=phases,
        kind=of_name[gpu.name],
        kinds=kinds,
        gaps=find_gaps(trace, windows, passes),
    )


def profile(analysis: Analysis) -> Profile:
    """Return the profile of an analysed trace."""
    windows, trace = analysis.windows, analysis.trace
    machine = trace.machine
    return Profile(
        gpu=machine.gpu,
        ranks=machine.world_size,
        parts=parts(analysis),
        kernels=tuple(kernel_rows(analysis)),
        idle=tuple(idle_rows(analysis)),
        calls=call_counts(analysis),
        lost_share=windows.lost / max(1, windows.launches),
        incomplete=windows.incomplete,
        software=machine.software,
    )


def parts(analysis: Analysis) -> Parts:
    """Return compute, exposed communication, exposed copies and idle time of each step."""
    windows = analysis.windows
    edges = windows.begin_us, windows.end_us
    communicates = analysis.of(COMMUNICATION)
    computes = ~communicates & ~is_memory(windows.gpu)
    compute = analysis.busy(computes).inside(*edges)
    kernels = analysis.busy(computes | communicates).inside(*edges)
    everything = analysis.busy(np.ones(len(analysis.kind), bool)).inside(*edges)
    return Parts(
        step_us=_series(windows.step_us),
        compute_us=_series(compute),
        exposed_communication_us=_series(kernels - compute),
        exposed_copies_us=_series(everything - kernels),
        idle_us=_series(windows.step_us - everything),
    )


def kernel_rows(analysis: Analysis) -> list[KernelRow]:
    """Return a row for each kernel, launch shape, work and phase, the longest first."""
    gpu, steps = analysis.windows.gpu, analysis.windows.steps
    rows = np.flatnonzero((analysis.windows.step_of_record != NONE) & (gpu.kind == KERNEL))
    works, work = _works(analysis, rows)
    key = np.stack([gpu.name[rows], gpu.shape[rows], analysis.phase[rows], work])
    groups, first, member = _grouped(key)
    cell = member * steps + analysis.windows.step_of_record[rows]
    size = (groups.shape[1], steps)
    us = (gpu.end_us - gpu.start_us)[rows]
    calls = np.bincount(cell, minlength=size[0] * steps).reshape(size)
    total = np.bincount(cell, weights=us, minlength=size[0] * steps).reshape(size)
    operators = _operators(analysis, rows[first])
    order = np.argsort(-total.sum(axis=1), kind="stable")
    shapes = (*analysis.trace.shapes, ((), ()))
    return [
        KernelRow(
            name=(name := analysis.trace.names[groups[0, i]]),
            canonical=analysis.classes.canonical_name(name),
            kind=analysis.kinds[analysis.kind[rows[first[i]]]],
            phase=analysis.phases[groups[2, i]],
            calls=_series(calls[i]),
            us=_series(total[i]),
            grid=shapes[groups[1, i]][0],
            block=shapes[groups[1, i]][1],
            operator=operators[i],
            source=_source(analysis, int(analysis.windows.call_of_record[rows[first[i]]])),
            code=analysis.trace.codes.get(int(gpu.external[rows[first[i]]]), ""),
            begin_us=float(gpu.start_us[rows[first[i]]]),
            work=_on(name, works[groups[3, i]]),
        )
        for i in order.tolist()
    ]


def _grouped(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the different columns, where each comes first, and the group of every column."""
    groups, first, member = np.unique(key, axis=1, return_index=True, return_inverse=True)
    return groups, first, member.reshape(-1)


def _works(analysis: Analysis, rows: Ints) -> tuple[list[Work], Ints]:
    """Return the works that launches have, and for each record the index of its work. The work of
    an operator belongs to its longest kernel, since its other kernels only prepare that one.
    Lengths are averages: in a single launch chance could make another kernel the longest.
    """
    gpu, known = analysis.windows.gpu, analysis.trace.work
    works = [Work(), *dict.fromkeys(known.values())]
    number = {work: i for i, work in enumerate(works)}
    external = gpu.external[rows]
    work = np.array([number[known.get(key, Work())] for key in external.tolist()], np.int64)
    _, _, member = _grouped(np.stack([gpu.name[rows], gpu.shape[rows], analysis.phase[rows], work]))
    each_us = np.bincount(member, weights=(gpu.end_us - gpu.start_us)[rows]) / np.bincount(member)
    order = np.lexsort((each_us[member], external))
    last = np.append(external[order][1:] != external[order][:-1], True) if len(order) else order
    longest = np.zeros(len(each_us), bool)
    longest[member[order[last]]] = True
    return works, np.where(longest[member], work, 0)


def _on(kernel: str, work: Work) -> Work:
    """Return the work as a kernel does it: on a GPU single precision may be TF32."""
    tf32 = work.dtype == "fp32" and any(mark in kernel for mark in _TF32)
    return replace(work, dtype="tf32") if tf32 else work


def _operators(analysis: Analysis, records: Ints) -> list[str]:
    """Return the operator that launched each record; "" if the file does not say."""
    operators = analysis.trace.operators
    order = np.argsort(operators.external, kind="stable")
    at = look_up(operators.external[order], order, analysis.windows.gpu.external[records])
    return ["" if row == NONE else analysis.trace.names[operators.name[row]] for row in at]


def _source(analysis: Analysis, call: int) -> str:
    """Return the innermost frame outside of libraries around a CUDA call; else ""."""
    if call == NONE or not analysis.has_stack:
        return ""
    return own_line([name for kind, name in _around(analysis, call) if kind == PYTHON])


def own_line(frames: Sequence[str]) -> str:
    """Return the last frame that is in no library, of frames from the outermost; else ""."""
    mine = [name for name in frames if not any(part in f"/{name}" for part in _LIBRARIES)]
    return mine[-1] if mine else ""


def _place(analysis: Analysis, call: int) -> str:
    around = [name for kind, name in _around(analysis, call) if kind in (OPERATOR, ANNOTATION)]
    return _source(analysis, call) or " > ".join(around[-3:])


def _around(analysis: Analysis, call: int) -> list[tuple[int, str]]:
    """Return kind and name of the host's events around a call, on its thread, outermost first."""
    host, calls = analysis.trace.host, analysis.windows.calls
    when, step = calls.start_us[call], 0.0
    if marks := np.flatnonzero(analysis.windows.mark_us <= when).tolist():
        step = float(analysis.windows.mark_us[marks[-1]])
    # What began before the step is around the whole step, so it does not tell a place in it.
    lo, hi = np.searchsorted(host.start_us, [step, when])
    rows = np.arange(lo + 1 if analysis.windows.has_marks else lo, hi)
    rows = rows[(host.end_us[rows] >= when) & (host.thread[rows] == calls.thread[call])]
    return [(int(host.kind[row]), analysis.trace.names[host.name[row]]) for row in rows]


def idle_rows(analysis: Analysis) -> list[IdleRow]:
    """Return idle time by cause and place, the longest first."""
    gaps, steps = analysis.gaps, analysis.windows.steps
    places: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    known: dict[int, tuple[str, str]] = {}
    causes, between = [str(cause) for cause in CAUSES], CAUSES.index(Idle.GAP)
    columns = (column.tolist() for column in (gaps.cause, gaps.sync, analysis.phase[gaps.record]))
    for i, (cause, sync, phase) in enumerate(zip(*columns, strict=True)):
        if sync == NONE:
            key = (causes[cause], "", analysis.phases[phase] if cause != between else "")
        else:
            if sync not in known:
                call = analysis.trace.names[analysis.windows.calls.name[sync]]
                known[sync] = (call, _place(analysis, sync))
            key = (causes[cause], *known[sync])
        places[key].append(i)
    rows = []
    for (cause, call, place), members in places.items():
        step = gaps.step[members]
        us = np.bincount(step, weights=gaps.us[members], minlength=steps)
        count = np.bincount(step, minlength=steps)
        begin = float(gaps.begin_us[members[0]])
        rows.append(IdleRow(cause, call, place, _series(count), _series(us), begin))
    return sorted(rows, key=lambda row: -sum(row.us))


def call_counts(analysis: Analysis) -> dict[str, Series]:
    """Return how often each CUDA call is made in each step."""
    calls, names = analysis.windows.calls, analysis.trace.names
    step = analysis.windows.marked_at(calls.start_us)
    inside = step != NONE
    size = (len(names), analysis.windows.steps)
    cell = calls.name[inside].astype(np.int64) * size[1] + step[inside]
    count = np.bincount(cell, minlength=size[0] * size[1]).reshape(size)
    return {names[i]: _series(count[i]) for i in np.flatnonzero(count.sum(axis=1)).tolist()}


def _series(values: Floats | Ints | Sequence[float]) -> Series:
    return tuple(np.asarray(values).tolist())


def with_lost_links(trace: Trace, windows: Windows) -> Ints:
    """Return the external id of each record of the GPU. A kernel without an operator has the id of
    the innermost operator around its call, if other launches of that kernel have an operator: in
    profiles of a compiled step on an H100 the profiler lost the id of one launch in 10,000
    (2026-11-26), and without work and code such a launch looks like another kernel. Nothing
    changes if more than one kernel and more than LOST_AT_MOST of them are like that, as those of a
    CUDA graph are.
    """
    gpu, operators = windows.gpu, trace.operators
    known = np.sort(operators.external)
    linked = look_up(known, known, gpu.external) != NONE
    kernel = gpu.name * (len(trace.shapes) + 1) + gpu.shape  # a number for both; NONE is -1
    lost = (gpu.kind == KERNEL) & ~linked & (windows.call_of_record != NONE)
    lost &= np.isin(kernel, kernel[linked])
    external, records = gpu.external.copy(), np.flatnonzero(lost).tolist()
    if len(records) > max(1, LOST_AT_MOST * np.count_nonzero(gpu.kind == KERNEL)):
        return external
    # Only a few of millions of operators are around a call that is asked for.
    when = np.sort(windows.calls.start_us[windows.call_of_record[records]])
    begins = np.searchsorted(when, operators.start_us)
    few = operators.where(begins < np.searchsorted(when, operators.end_us, side="right"))
    for record in records:
        external[record] = _operator_around(windows.calls, int(windows.call_of_record[record]), few)
    return external


def _operator_around(calls: Host, call: int, operators: Host) -> int:
    """Return the external id of the innermost operator around a call; NONE if there is none."""
    when = calls.start_us[call]
    around = (operators.start_us <= when) & (operators.end_us >= when)
    rows = np.flatnonzero(around & (operators.thread == calls.thread[call]))
    return int(operators.external[rows[-1]]) if len(rows) else NONE
