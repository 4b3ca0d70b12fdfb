"""Names for the parts of a step: NVTX ranges for a profiler, a callback for whoever watches.

``with phase("backward", on_phase):`` opens the NVTX range "backward" and tells ``on_phase`` that
the host has come to it. Ranges stand outside compiled regions, so they add no graph break, and
range objects are made once per name. Without a profiler the ``nvtx`` package turns a range into
an empty call, and without the package there is none. What a range costs:

    python -m timeit -s "from model.phases import phase" "with phase('forward'): pass"

    nsys profile --trace=cuda,nvtx python my_run.py       # ranges appear on the timeline
    nsys profile --capture-range=nvtx --nvtx-capture=micro_step_0 python my_run.py

A range says when the host *enqueued* a part, not when the device ran it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

try:
    import nvtx  # type: ignore[import-untyped]
except ImportError:  # ranges are a convenience; a step must run without them
    nvtx = None

OnPhase = Callable[[str], None]

_NO_RANGE: AbstractContextManager[object] = nullcontext()


def phase(name: str, on_phase: OnPhase | None = None) -> AbstractContextManager[object]:
    """Enter the phase called ``name``: use it as ``with phase("forward", on_phase):`` at once.

    Args:
        name: one of a few fixed names; a range object is kept for each.
        on_phase: called with ``name`` before the range opens; None for nobody.
    """
    if on_phase is not None:
        on_phase(name)
    return _range(name)


@cache
def _range(name: str) -> AbstractContextManager[object]:
    # One object serves nested and repeated use: NVTX keeps the stack of open ranges itself.
    # No domain is given, so that profilers find the ranges without being told of one.
    return _NO_RANGE if nvtx is None else nvtx.annotate(name)
