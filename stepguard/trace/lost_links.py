"""Kernels whose link to their operator is lost.

The profiler links a kernel to its operator by an id. In profiles of a compiled step on an H100 it
lost the id of one kernel launch in 10,000 (2026-11-26). Without its operator a
launch has no work and no hash of code, so it looks like another kernel.
"""

import numpy as np

from stepguard.trace.columns import KERNEL, NONE, Host, Ints, Trace, look_up
from stepguard.trace.step_windows import LOST_AT_MOST, Windows


def with_lost_links(trace: Trace, windows: Windows) -> Ints:
    """Return the external id of each record of the GPU. A kernel without an operator has the id of
    the innermost operator around its call, if other launches of that kernel have an operator.
    Nothing changes if more than one kernel and more than LOST_AT_MOST of them are like that, as
    those of a CUDA graph are.
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
        external[record] = _around(windows.calls, int(windows.call_of_record[record]), few)
    return external


def _around(calls: Host, call: int, operators: Host) -> int:
    """Return the external id of the innermost operator around a call; NONE if there is none."""
    when = calls.start_us[call]
    around = (operators.start_us <= when) & (operators.end_us >= when)
    rows = np.flatnonzero(around & (operators.thread == calls.thread[call]))
    return int(operators.external[rows[-1]]) if len(rows) else NONE
