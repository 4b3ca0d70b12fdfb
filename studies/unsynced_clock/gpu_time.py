"""Times in a trace of marked steps: of CUDA calls on the host, of kernels on the GPU.

Counts of calls are exact, the GPU's records are not: some get lost in long traces. So every figure
of the GPU's time comes with the number of launches that have no record.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stepguard.trace.calls import API_CATEGORIES, LAUNCH_CALLS, is_copy, is_memset
from stepguard.trace.steps import Event, marked_steps
from studies.unsynced_clock.kernels import MEMORY, OTHER, kernel_class

_MEMORY_RECORDS = ("gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class GpuTime:
    """Totals over the marked steps; times in us."""

    api_us: Counter[str] = field(default_factory=Counter)  # by call, inside the marked steps
    api_calls: Counter[str] = field(default_factory=Counter)
    class_us: Counter[str] = field(default_factory=Counter)  # by class; kernels may overlap
    other_us: Counter[str] = field(default_factory=Counter)  # by name, where no class is known
    window_us: float = 0.0  # from the first record's begin to the last one's end
    busy_us: float = 0.0  # ... of it with at least one record running
    launches: int = 0  # calls that should have a record: kernels, copies, fills
    lost_records: int = 0  # ... of them without one


def read_gpu_time(events: Iterable[Event], mark: str, steps: int) -> GpuTime:
    """Return the times of what was called inside ``steps`` annotations named ``mark``.

    What runs on the GPU belongs to the step that launched it, by the correlation of call and
    record. Raises RuntimeError when the trace does not have every marked step.
    """
    events = list(events)
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in marked_steps(events, mark, steps)]
    calls = [
        e
        for e in events
        if e.get("cat") in API_CATEGORIES and any(a <= e["ts"] < b for a, b in spans)
    ]
    launches = {e["args"].get("correlation") for e in calls if _launches(str(e["name"]))}
    records = [
        e
        for e in events
        if e.get("cat") in ("kernel", *_MEMORY_RECORDS)
        and e.get("args", {}).get("correlation") in launches
    ]
    api_us, class_us, other_us = Counter[str](), Counter[str](), Counter[str]()
    for call in calls:
        api_us[call["name"]] += call["dur"]
    for record in records:
        kind = MEMORY if record["cat"] in _MEMORY_RECORDS else kernel_class(record["name"])
        class_us[kind] += record["dur"]
        if kind == OTHER:
            other_us[record["name"]] += record["dur"]
    seen = {e["args"]["correlation"] for e in records}
    window_us, busy_us = _window_and_busy([(e["ts"], e["ts"] + e["dur"]) for e in records])
    return GpuTime(
        api_us=api_us,
        api_calls=Counter(e["name"] for e in calls),
        class_us=class_us,
        other_us=other_us,
        window_us=window_us,
        busy_us=busy_us,
        launches=len(launches),
        lost_records=len(launches - seen),
    )


def _launches(call: str) -> bool:
    return call in LAUNCH_CALLS or is_copy(call) or is_memset(call)


def _window_and_busy(spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the length from the first begin to the last end, and that of the spans' union."""
    if not spans:
        return 0.0, 0.0
    ordered = sorted(spans)
    first, covered = ordered[0][0], ordered[0][0]
    busy = 0.0
    for began, ended in ordered:
        busy += max(0.0, ended - max(began, covered))
        covered = max(covered, ended)
    return covered - first, busy
