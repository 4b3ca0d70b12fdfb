"""What takes the memory of a step at its peak: by phase, operator and source line.

A block that is allocated while the trace runs is known by its address until it is freed. All that
was there before is one sum, which frees of unknown blocks reduce.
"""

from dataclasses import dataclass

import numpy as np

from stepguard.trace.chrome_chunks import TraceError
from stepguard.trace.columns import NONE, OPERATOR, PYTHON, Allocations, Trace
from stepguard.trace.kernel_classes import Classes
from stepguard.trace.make_profile import own_line
from stepguard.trace.phases import find_passes, pass_at


@dataclass(frozen=True)
class Holder:
    """Blocks of one origin that are alive at the peak."""

    phase: str  # in which they were allocated
    operator: str
    source: str  # "model/gpt.py(57): forward"; empty if no stack was recorded
    bytes: int
    blocks: int
    largest: int  # the largest block


@dataclass(frozen=True)
class MemoryTable:
    """A rank's memory, in bytes."""

    peak: int
    peak_phase: str
    before: int  # from before the trace, and still there at the peak
    peaks: tuple[tuple[str, int], ...]  # by phase, in order of time
    holders: tuple[Holder, ...]  # of the rest, the largest first


def memory_table(trace: Trace, classes: Classes, live: int, gpu: bool) -> MemoryTable:
    """Return what takes the memory at the peak of a trace that began with ``live`` bytes.

    Raises TraceError if the trace has no allocations of the device.
    """
    allocations = trace.allocations
    rows = allocations.where(allocations.on_gpu == int(gpu)) if allocations is not None else None
    if rows is None or not len(rows.bytes):
        raise TraceError("it has no allocation: profile with profile_memory=True")
    passes = find_passes(trace, classes)
    phase = ["" if at == NONE else passes[at].path for at in pass_at(passes, rows.when_us)]
    total = live + np.cumsum(rows.bytes)
    top = int(total.argmax())
    if total[top] <= live:
        return MemoryTable(live, "", live, ((phase[0], live),), ())
    peaks: dict[str, int] = {}
    for path, bytes_now in zip(phase, total.tolist(), strict=True):
        peaks[path] = max(bytes_now, peaks.get(path, 0))
    blocks, before = _living(rows, top)
    sizes: dict[tuple[str, str, str], list[int]] = {}
    for row in blocks:
        sizes.setdefault((phase[row], *_origin(trace, rows, row)), []).append(int(rows.bytes[row]))
    holders = [Holder(*key, sum(blocks), len(blocks), max(blocks)) for key, blocks in sizes.items()]
    holders.sort(key=lambda holder: -holder.bytes)
    return MemoryTable(
        int(total[top]), phase[top], live + before, tuple(peaks.items()), tuple(holders)
    )


def _living(rows: Allocations, top: int) -> tuple[list[int], int]:
    """Return the allocations that are still alive after row ``top``, and the change of what was
    there before.
    """
    alive: dict[int, int] = {}
    before = 0
    for row, (address, change) in enumerate(
        zip(rows.address[: top + 1].tolist(), rows.bytes[: top + 1].tolist(), strict=True)
    ):
        if change > 0:
            alive[address] = row
        elif address in alive:
            del alive[address]
        else:
            before += change
    return list(alive.values()), before


def _origin(trace: Trace, rows: Allocations, row: int) -> tuple[str, str]:
    """Return the outermost operator around an allocation, and the source line."""
    host, when = trace.host, rows.when_us[row]
    last = int(np.searchsorted(host.start_us, when, side="right"))
    around = np.flatnonzero(
        (host.end_us[:last] >= when) & (host.thread[:last] == rows.thread[row])
    ).tolist()
    operators = [trace.names[host.name[i]] for i in around if host.kind[i] == OPERATOR]
    frames = [trace.names[host.name[i]] for i in around if host.kind[i] == PYTHON]
    return next(iter(operators), ""), own_line(frames)
