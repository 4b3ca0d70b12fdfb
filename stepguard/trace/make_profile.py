"""From a trace to a Profile: the parts of the step, its kernels and its idle time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepguard.core.profile import IdleRow, KernelRow, Parts, Profile, Series
from stepguard.core.roofline import Work
from stepguard.trace.columns import (
    ANNOTATION,
    KERNEL,
    NONE,
    OPERATOR,
    PYTHON,
    Bools,
    Floats,
    Ints,
    LaunchShape,
    Trace,
    look_up,
    taken,
)
from stepguard.trace.idle_causes import CAUSES, Gaps, Idle, find_gaps
from stepguard.trace.intervals import Union, union
from stepguard.trace.kernel_classes import COMMUNICATION, OTHER, Classes
from stepguard.trace.phases import Pass, find_passes, pass_at
from stepguard.trace.step_windows import Windows, find_windows, is_memory

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
    """One rank's trace, taken apart; all pages are made of it."""

    trace: Trace
    classes: Classes
    windows: Windows
    passes: tuple[Pass, ...]
    pass_of_record: Ints  # that it was launched in, NONE outside all
    phase: Ints  # of each record, into ``phases``
    phases: tuple[str, ...]
    kind: Ints  # of each record, into ``kinds``
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
        found: Bools = np.isin(self.kind, [self.kinds.index(kind) for kind in kinds])
        return found


def analyse(trace: Trace, classes: Classes) -> Analysis:
    """Take a trace apart. Raises TraceError where it has no complete step."""
    windows = find_windows(trace, classes)
    passes = find_passes(trace, classes)
    gpu = windows.gpu
    # A record without its call in the file was launched before the file begins.
    passed = pass_at(passes, taken(windows.calls.start_us, windows.call_of_record, -1.0))
    phases = ("", *dict.fromkeys(one.path for one in passes))
    of_pass = np.array([phases.index(one.path) for one in passes] + [0])  # the last: outside all
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


def profile(found: Analysis) -> Profile:
    """Return the profile of an analysed trace."""
    windows, trace = found.windows, found.trace
    machine = trace.machine
    return Profile(
        gpu=machine.gpu,
        ranks=machine.world_size,
        parts=parts(found),
        kernels=tuple(kernel_rows(found)),
        idle=tuple(idle_rows(found)),
        calls=call_counts(found),
        lost_share=windows.lost / max(1, windows.launches),
        incomplete=windows.incomplete,
        software=machine.software,
    )


def parts(found: Analysis) -> Parts:
    """Return compute, exposed communication, exposed copies and idle time of each step."""
    windows = found.windows
    edges = windows.begin_us, windows.end_us
    communicates = found.of(COMMUNICATION)
    computes = ~communicates & ~is_memory(windows.gpu)
    compute = found.busy(computes).inside(*edges)
    kernels = found.busy(computes | communicates).inside(*edges)
    everything = found.busy(np.ones(len(found.kind), bool)).inside(*edges)
    return Parts(
        step_us=_series(windows.step_us),
        compute_us=_series(compute),
        exposed_communication_us=_series(kernels - compute),
        exposed_copies_us=_series(everything - kernels),
        idle_us=_series(windows.step_us - everything),
    )


def kernel_rows(found: Analysis) -> list[KernelRow]:
    """Return a row for each kernel, launch shape, work and phase, the longest first."""
    gpu, steps = found.windows.gpu, found.windows.steps
    rows = np.flatnonzero((found.windows.step_of_record != NONE) & (gpu.kind == KERNEL))
    works, work = _works(found, rows)
    key = np.stack([gpu.name[rows], gpu.shape[rows], found.phase[rows], work])
    groups, first, member = _grouped(key)
    cell = member * steps + found.windows.step_of_record[rows]
    size = (groups.shape[1], steps)
    us = (gpu.end_us - gpu.start_us)[rows]
    calls = np.bincount(cell, minlength=size[0] * steps).reshape(size)
    total = np.bincount(cell, weights=us, minlength=size[0] * steps).reshape(size)
    operators = _operators(found, rows[first])
    order = np.argsort(-total.sum(axis=1), kind="stable")
    shapes = (*found.trace.shapes, LaunchShape())
    return [
        KernelRow(
            name=(name := found.trace.names[groups[0, i]]),
            canonical=found.classes.canonical_name(name),
            kind=found.kinds[found.kind[rows[first[i]]]],
            phase=found.phases[groups[2, i]],
            calls=_series(calls[i]),
            us=_series(total[i]),
            grid=shapes[groups[1, i]].grid,
            block=shapes[groups[1, i]].block,
            operator=operators[i],
            source=_source(found, int(found.windows.call_of_record[rows[first[i]]])),
            code=found.trace.codes.get(int(gpu.external[rows[first[i]]]), ""),
            begin_us=float(gpu.start_us[rows[first[i]]]),
            work=_on(name, works[groups[3, i]]),
        )
        for i in order.tolist()
    ]


def _grouped(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the columns that there are, where each is first, and which one each column is."""
    groups, first, member = np.unique(key, axis=1, return_index=True, return_inverse=True)
    return groups, first, member.reshape(-1)


def _works(found: Analysis, rows: Ints) -> tuple[list[Work], Ints]:
    """Return the works that launches have, and which one each record has. An operator's is that of
    its longest kernel, since the others only prepare it: longest on average, or one launch's chance
    would tell it from the next one's.
    """
    gpu, known = found.windows.gpu, found.trace.work
    works = [Work(), *dict.fromkeys(known.values())]
    number = {work: i for i, work in enumerate(works)}
    external = gpu.external[rows]
    work = np.array([number[known.get(one, Work())] for one in external.tolist()], np.int64)
    _, _, member = _grouped(np.stack([gpu.name[rows], gpu.shape[rows], found.phase[rows], work]))
    each_us = np.bincount(member, weights=(gpu.end_us - gpu.start_us)[rows]) / np.bincount(member)
    order = np.lexsort((each_us[member], external))
    last = np.append(external[order][1:] != external[order][:-1], True) if len(order) else order
    longest = np.zeros(len(each_us), bool)
    longest[member[order[last]]] = True
    return works, np.where(longest[member], work, 0)


def _on(kernel: str, work: Work) -> Work:
    """Return the work as a kernel does it: single precision may be TF32 on a GPU."""
    tf32 = work.dtype == "fp32" and any(mark in kernel for mark in _TF32)
    return replace(work, dtype="tf32") if tf32 else work


def _operators(found: Analysis, records: Ints) -> list[str]:
    """Return the operator that launched each record, "" where the file does not say."""
    operators = found.trace.operators
    order = np.argsort(operators.external, kind="stable")
    at = look_up(operators.external[order], order, found.windows.gpu.external[records])
    return ["" if row == NONE else found.trace.names[operators.name[row]] for row in at]


def _source(found: Analysis, call: int) -> str:
    """Return the innermost frame outside libraries around a CUDA call, "" without call or stack."""
    if call == NONE or not found.has_stack:
        return ""
    return own_line([name for kind, name in _around(found, call) if kind == PYTHON])


def own_line(frames: Sequence[str]) -> str:
    """Return the innermost of frames, the outermost first, that is of no library; "" without."""
    mine = [name for name in frames if not any(part in f"/{name}" for part in _LIBRARIES)]
    return mine[-1] if mine else ""


def _place(found: Analysis, call: int) -> str:
    """Return where a CUDA call is made: the function, or else the ranges and operators."""
    around = [name for kind, name in _around(found, call) if kind in (OPERATOR, ANNOTATION)]
    return _source(found, call) or " > ".join(around[-3:])


def _around(found: Analysis, call: int) -> list[tuple[int, str]]:
    """Return kind and name of the host's events around a call, on its thread, outermost first."""
    host, calls = found.trace.host, found.windows.calls
    when, step = calls.start_us[call], 0.0
    if marks := np.flatnonzero(found.windows.mark_us <= when).tolist():
        step = float(found.windows.mark_us[marks[-1]])
    # What began before the step is around all of it, and says nothing of a place in it.
    lo, hi = np.searchsorted(host.start_us, [step, when])
    rows = np.arange(lo + 1 if found.windows.has_marks else lo, hi)
    rows = rows[(host.end_us[rows] >= when) & (host.thread[rows] == calls.thread[call])]
    return [(int(host.kind[row]), found.trace.names[host.name[row]]) for row in rows]


def idle_rows(found: Analysis) -> list[IdleRow]:
    """Return idle time by cause and place, the longest first."""
    gaps, steps = found.gaps, found.windows.steps
    places: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    known: dict[int, tuple[str, str]] = {}
    causes, between = [str(cause) for cause in CAUSES], CAUSES.index(Idle.GAP)
    columns = (column.tolist() for column in (gaps.cause, gaps.sync, found.phase[gaps.record]))
    for i, (cause, sync, phase) in enumerate(zip(*columns, strict=True)):
        if sync == NONE:
            key = (causes[cause], "", found.phases[phase] if cause != between else "")
        else:
            if sync not in known:
                call = found.trace.names[found.windows.calls.name[sync]]
                known[sync] = (call, _place(found, sync))
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


def call_counts(found: Analysis) -> dict[str, Series]:
    """Return how often each CUDA call is made in each step."""
    calls, names = found.windows.calls, found.trace.names
    step = found.windows.marked_at(calls.start_us)
    inside = step != NONE
    size = (len(names), found.windows.steps)
    cell = calls.name[inside].astype(np.int64) * size[1] + step[inside]
    count = np.bincount(cell, minlength=size[0] * size[1]).reshape(size)
    return {names[i]: _series(count[i]) for i in np.flatnonzero(count.sum(axis=1)).tolist()}


def _series(values: Floats | Ints | Sequence[float]) -> Series:
    return tuple(np.asarray(values).tolist())
