"""From a trace to a Profile: the parts of the step, its kernels and its idle time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepguard.core.profile import IdleRow, KernelRow, Parts, Profile, Series, Work
from stepguard.trace.columns import (
    ANNOTATION,
    KERNEL,
    NONE,
    OPERATOR,
    PYTHON,
    Bools,
    Floats,
    Host,
    Ints,
    LaunchShape,
    Trace,
    look_up,
    taken,
)
from stepguard.trace.idle_causes import CAUSES, Gaps, Idle, Union, find_gaps, union
from stepguard.trace.kernel_classes import COMMUNICATION, OTHER, Classes
from stepguard.trace.phases import Pass, find_passes, pass_at
from stepguard.trace.step_windows import LOST_AT_MOST, Windows, find_windows, is_memory

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
    shapes = (*analysis.trace.shapes, LaunchShape())
    return [
        KernelRow(
            name=(name := analysis.trace.names[groups[0, i]]),
            canonical=analysis.classes.canonical_name(name),
            kind=analysis.kinds[analysis.kind[rows[first[i]]]],
            phase=analysis.phases[groups[2, i]],
            calls=_series(calls[i]),
            us=_series(total[i]),
            grid=shapes[groups[1, i]].grid,
            block=shapes[groups[1, i]].block,
            operator=operators[i],
            source=_source(analysis, int(analysis.windows.call_of_record[rows[first[i]]])),
            code=analysis.trace.codes.get(int(gpu.external[rows[first[i]]]), ""),
            begin_us=float(gpu.start_us[rows[first[i]]]),
            work=_on(name, works[groups[3, i]]),
        )
        for i in order.tolist()
    ]


def _grouped(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the different columns, where each of them comes first, and for every column of ``key``
    the index of its group.
    """
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
    """Return the innermost frame outside of all libraries around a CUDA call; "" without a call or
    a stack.
    """
    if call == NONE or not analysis.has_stack:
        return ""
    return own_line([name for kind, name in _around(analysis, call) if kind == PYTHON])


def own_line(frames: Sequence[str]) -> str:
    """Return the last frame that is in no library; "" if there is none. Frames begin with the
    outermost.
    """
    mine = [name for name in frames if not any(part in f"/{name}" for part in _LIBRARIES)]
    return mine[-1] if mine else ""


def _place(analysis: Analysis, call: int) -> str:
    """Return where a CUDA call is made: the function, or else the ranges and operators around."""
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
