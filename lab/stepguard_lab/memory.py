"""The command memory: what holds the memory of a step at its peak.

    python -m stepguard memory 'train_step[124m-bf16]'
    python -m stepguard memory model.workloads:train_step size=nano device=cpu

On a GPU it also writes a file for https://pytorch.org/memory_viz.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepguard.cli.common import add_json, put_json, refuse_target, say, suite_of
from stepguard.cli.workload_arguments import add_workload, chosen_case
from stepguard.machine.git.worktree import FOLDER
from stepguard.report.table import aligned
from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.columns import NONE, OPERATOR, PYTHON, Allocations, Trace
from stepguard.trace.kernel_classes import Classes, usual_classes
from stepguard.trace.make_profile import own_line
from stepguard.trace.phases import find_passes, pass_at
from stepguard_lab.chrome_chunks import read_chrome
from stepguard_lab.printed import add_top, end_of
from stepguard_lab.record_traces import ask, new_folder

BEFORE = "before the step"
MICRO_STEP, _AUTOGRAD = "micro_step_", "autograd::engine::evaluate_function: "
_TRIO = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("memory", help="what holds a step's memory at its peak")
    add_workload(command)
    text = "folder of the files (.stepguard/memory)"
    command.add_argument("--out", type=Path, metavar="DIR", help=text)
    add_top(command, 16)
    add_json(command)
    command.set_defaults(call=_memory, root=root)


def _memory(options: argparse.Namespace) -> int:
    refuse_target(options.json)
    case = chosen_case(options)
    folder = new_folder(options.out or options.root / FOLDER / "memory")
    recorded = "stepguard_lab.profilers.memory_snapshot:record_memory"
    answers = ask(suite_of(options.root), case, recorded, folder=str(folder))
    tables = []
    for number, rank in enumerate(answers):
        with Path(rank["trace"]).open("rb") as file:
            trace = read_chrome(file)
        table = memory_table(trace, usual_classes(), rank["live_bytes"], rank["on_gpu"])
        say(*([""] if number else []), f"{case.id}, rank {number} of {case.world_size}")
        say(*memory_page(table, rank, options.top))
        tables.append({"allocator": rank, **dataclasses.asdict(table)})
        if snapshot := rank.get("snapshot"):
            say(f"drop into https://pytorch.org/memory_viz: {snapshot}")
    put_json({"ranks": tables}, options.json)
    return 0


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

    A block that is allocated while the trace runs is known by its address until it is freed. All
    that was there before is one sum, which frees of unknown blocks reduce. Raises TraceError if the
    trace has no allocations of the device.
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
    """Return the allocations that are still alive after row ``top``, and by how many bytes memory
    from before the trace has changed.
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
