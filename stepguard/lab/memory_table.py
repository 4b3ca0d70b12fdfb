"""The page of a step's memory, at most 80 columns."""

from collections.abc import Iterator, Mapping

from stepguard.core.text import end_of
from stepguard.lab.memory_events import MemoryTable
from stepguard.report.table import aligned

BEFORE = "before the step"
MICRO_STEP, _AUTOGRAD = "micro_step_", "autograd::engine::evaluate_function: "
_TRIO = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def memory_page(table: MemoryTable, allocator: Mapping[str, int], top: int) -> Iterator[str]:
    """Yield the lines. ``allocator`` has the bytes that a GPU's caching allocator reports."""
    yield f"peak: {_mib(table.peak)} MiB in {table.peak_phase or 'no phase'}"
    for name in (name for name in _TRIO if name in allocator):
        yield f"{name.replace('_', ' ')}: {_mib(allocator[name])} MiB"
    yield ""
    rows = [(path or "(outside all)", _mib(peak)) for path, peak in table.peaks]
    yield from aligned([("peak by phase", "[MiB]"), *rows])
    yield ""
    header = ("what holds the peak", "function", "phase", "[MiB]", "blocks", "largest")
    body = [(BEFORE, "", "", _mib(table.before), "", "")]
    body += [
        (
            end_of(holder.operator.removeprefix(_AUTOGRAD), 20),
            end_of(_place(holder.source), 22),
            end_of(holder.phase.replace(MICRO_STEP, ""), 10),
            _mib(holder.bytes),
            str(holder.blocks),
            _mib(holder.largest),
        )
        for holder in table.holders[:top]
    ]
    yield from aligned([header, *body], left=(0, 1, 2))
    if rest := table.holders[top:]:
        yield f"and {len(rest)} more with {_mib(sum(holder.bytes for holder in rest))} MiB"
    yield "before the step: parameters, optimizer state, what else was there"
    if any(MICRO_STEP in holder.phase for holder in table.holders[:top]):
        yield f"phase 0/forward: short for {MICRO_STEP}0/forward"


def _place(source: str) -> str:
    """Return "gpt.py:57 forward" of "model/gpt.py(57): forward", the first line of the function."""
    place, _, function = source.partition("): ")
    file, _, line = place.rpartition("(")
    return f"{file.rpartition('/')[2]}:{line} {function}" if file else source


def _mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"
