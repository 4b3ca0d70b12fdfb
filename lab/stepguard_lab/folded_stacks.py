"""Folded stacks of a trace, as flame graphs are drawn from them: a line for each stack.

    train.py(8): step;model.py(7): forward;aten::linear;gemm 1520

The number is a time in us over the whole file. If the trace has kernels of a GPU, it is the time of
the kernels that the stack launched. Otherwise it is the host's time in the last frame, without the
time of what that calls.
"""

from collections import defaultdict
from collections.abc import Iterator

from stepguard.core.text import printable
from stepguard.trace.columns import ANNOTATION, CALL, NONE, OVERHEAD, Trace, launched_by


def folded(trace: Trace) -> list[str]:
    """Return the lines, sorted by stack, without those of 0 us."""
    own, of_call = _walked(trace)
    if len(trace.gpu.kind):
        total: defaultdict[str, float] = defaultdict(float)
        gpu, names = trace.gpu, trace.names
        for row, call in enumerate(launched_by(trace.calls, gpu.correlation).tolist()):
            stack = of_call[call] if call != NONE else ""
            key = ";".join(filter(None, (stack, _frame(names[gpu.name[row]]))))
            total[key] += float(gpu.end_us[row] - gpu.start_us[row])
        own = total
    return [f"{stack} {us:.0f}" for stack, us in sorted(own.items()) if round(us) > 0]


def _walked(trace: Trace) -> tuple[defaultdict[str, float], list[str]]:
    """Return the host's own us by stack, and the stack of each CUDA call."""
    of_call = list[str]()
    own: defaultdict[str, float] = defaultdict(float)
    around: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
    for kind, name, start, end, thread in _rows(trace):
        stack = around[thread]
        while stack and stack[-1][0] <= start:
            stack.pop()
        above = stack[-1][1] if stack else ""
        if kind == CALL:
            of_call.append(above)
        if kind in (CALL, OVERHEAD, ANNOTATION):  # a range is around frames that say more
            continue
        here = ";".join(filter(None, (above, _frame(trace.names[name]))))
        own[here] += end - start
        if above:
            own[above] -= min(end, stack[-1][0]) - start
        stack.append((end, here))
    return own, of_call


def _rows(trace: Trace) -> Iterator[tuple[int, int, float, float, int]]:
    """Yield kind, name, begin, end and thread of the host's events. They are sorted by begin, the
    longer first.
    """
    host = trace.host
    columns = (host.kind, host.name, host.start_us, host.end_us, host.thread)
    return zip(*(column.tolist() for column in columns), strict=True)


def _frame(name: str) -> str:
    """Return a name without characters that end a frame or a line."""
    return printable(name).replace(";", ",")
