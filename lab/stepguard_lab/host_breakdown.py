"""The trace of a CPU, and its page: where the host's time goes, by phase and operator.

Here the host computes. So an operator's own time, without that of the operators inside it,
corresponds to a kernel's time on a GPU.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepguard.core.profile import Series, mean
from stepguard.core.text import cut, listed
from stepguard.report.table import aligned
from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.columns import NONE, Floats, Host, Ints, Trace
from stepguard.trace.kernel_classes import Classes
from stepguard.trace.phases import find_passes, pass_at
from stepguard.trace.step_windows import marked, step_at
from stepguard_lab.printed import end_of, fitted
from stepguard_lab.trace_page import WIDTH


@dataclass(frozen=True)
class OperatorRow:
    """All calls of one operator in one phase."""

    name: str
    phase: str
    calls: float  # in each step
    us: float  # in each step; its own time
    total_us: float  # in each step; with the operators inside it


@dataclass(frozen=True)
class HostPhase:
    """A phase on the host."""

    path: str
    us: float  # in each step


@dataclass(frozen=True)
class HostSummary:
    """One rank that computes on a CPU."""

    source: str
    rank: int
    ranks: int
    step_us: Series
    phases: tuple[HostPhase, ...]
    operators: tuple[OperatorRow, ...]  # the longest first


def host_summary(trace: Trace, classes: Classes, source: str, rank: int) -> HostSummary:
    """Return the figures of a trace without a GPU. Raises TraceError without a marked step."""
    steps = marked(trace, classes.steps)
    if not len(steps):
        there = annotations_in(trace)
        has = f"its annotations are {there}" if there else "call profiler.step()"
        raise TraceError(f"it has neither a kernel of a GPU nor a marked step; {has}")
    begin, end = trace.annotations.start_us[steps], trace.annotations.end_us[steps]
    passes = find_passes(trace, classes)
    rows = trace.operators
    rows = rows.where(step_at(rows.start_us, begin, end) != NONE)
    phase = pass_at(passes, rows.start_us)
    paths = [span.path for span in passes]
    operators = _by_operator(trace, rows, phase, paths, len(begin))
    phases: dict[str, float] = {}
    for span in passes:
        if begin[0] <= span.start_us < end[-1]:
            phases[span.path] = phases.get(span.path, 0.0) + span.end_us - span.start_us
    return HostSummary(
        source=source,
        rank=rank,
        ranks=trace.machine.world_size,
        step_us=tuple((end - begin).tolist()),
        phases=tuple(HostPhase(path, us / len(begin)) for path, us in phases.items()),
        operators=operators,
    )


def own_and_total_us(rows: Host) -> tuple[Floats, Floats]:
    """Return each operator's time without that of the operators directly inside it, and its whole
    time, both in us. The whole time is 0 for an operator inside another one of its name, so that
    the times of a name add up.
    """
    own = rows.end_us - rows.start_us
    around: dict[int, list[int]] = {}
    threads, ends, names = rows.thread.tolist(), rows.end_us.tolist(), rows.name.tolist()
    length, total = own.copy(), own.copy()
    for row, (thread, start) in enumerate(zip(threads, rows.start_us.tolist(), strict=True)):
        stack = around.setdefault(thread, [])
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        if stack:
            own[stack[-1]] -= length[row]
        if any(names[outer] == names[row] for outer in stack):
            total[row] = 0.0
        stack.append(row)
    return np.maximum(own, 0.0), total


def _by_operator(
    trace: Trace, rows: Host, phase: Ints, paths: list[str], steps: int
) -> tuple[OperatorRow, ...]:
    calls_us: dict[tuple[str, str], list[tuple[float, float]]] = {}
    times = zip(*(us.tolist() for us in own_and_total_us(rows)), strict=True)
    for name, at, us in zip(rows.name.tolist(), phase.tolist(), times, strict=True):
        path = "" if at == NONE else paths[at]
        calls_us.setdefault((trace.names[name], path), []).append(us)
    table = [
        OperatorRow(
            *key, len(us) / steps, *(sum(column) / steps for column in zip(*us, strict=True))
        )
        for key, us in calls_us.items()
    ]
    return tuple(sorted(table, key=lambda row: -row.us))


def host_page(ranks: Sequence[HostSummary], top: int, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines: the steps of all ranks, then phases and operators of the first one."""
    yield "No kernel of a GPU, so these are the host's times. Profiling slows a step."
    yield ""
    header = ("rank", "step [ms]", "each step [ms]", "file")
    body = [
        (
            f"{rank.rank} of {rank.ranks}",
            _ms(mean(rank.step_us)),
            " ".join(map(_ms, rank.step_us[:4])) + (" ..." if len(rank.step_us) > 4 else ""),
            rank.source,
        )
        for rank in ranks
    ]
    yield from aligned([header, *body], left=(0, 2, 3))
    first, step = ranks[0], mean(ranks[0].step_us)
    if first.phases:
        yield ""
        phases = [(row.path, _ms(row.us), _pct(row.us, step)) for row in first.phases]
        yield from fitted([("phase", "[ms]", "[% of the step]"), *phases], width, end_of)
    yield ""
    titles = ("operator", "phase", "calls", "own [ms]", "[%]", "total [ms]")
    operators = [
        (
            row.name,
            end_of(row.phase, 22),
            f"{row.calls:g}",
            _ms(row.us),
            _pct(row.us, step),
            _ms(row.total_us),
        )
        for row in first.operators[:top]
    ]
    yield from fitted([titles, *operators], width, cut, left=(0, 1))


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f}"


def _pct(us: float, step: float) -> str:
    return f"{100 * us / step:.1f}" if step else ""


def annotations_in(trace: Trace) -> str:
    """Return the names of a trace's annotations, "ProfilerStep#N, forward"; empty if there are
    none.
    """
    names = {re.sub(r"\d+", "N", trace.names[at]) for at in np.unique(trace.annotations.name)}
    return listed(sorted(names), 6)
