"""The metrics of one case, for a person: what a run measured, and what a baseline holds."""

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import geometric_mean

from stepguard.core.baseline import Entry, Epoch
from stepguard.core.evidence import Counts
from stepguard.core.metrics import (
    GARBAGE,
    GRAPH_NODES,
    GROWING_LINES,
    JUDGED_TIME,
    METRICS,
    OPERATORS,
    WASTE,
    format_value,
)
from stepguard.core.recording import Recording
from stepguard.core.text import first, listed
from stepguard.core.verdict import MetricVerdict, cause_first
from stepguard.judge.summary import summarise
from stepguard.measure.suite import Result
from stepguard.report.commands import Commands
from stepguard.report.table import aligned, figure
from stepguard.report.words import change, happens, operator_move
from stepguard.storage.accepting import Accepted, Action

MOVES = 9  # lines; with the one above them ten
PARTS = 8  # a counter with more kinds of parts shows its sum alone; the evidence has them all
PLACES = 3  # of what is recorded as normal, and of what informs
_WASTED = {  # a counter of WASTE: what its number is of
    "host_syncs_per_step": "{} waits of the host for the GPU a step",
    "sync_candidates_per_step": "{} calls a step that would wait on a GPU",
    "pageable_copies_per_step": "{} copies a step from or to pageable memory",
    "device_allocations_per_step": "{} calls a step to the GPU's driver for memory",
    "graph_breaks": "{} graph breaks",
    "recompiles": "{} recompiles",
    "uncached_graphs": "{} graphs that the compile cache does not keep",
    "leaked_bytes_per_step": "{} that each step leaves behind",
    GRAPH_NODES: "{} nodes of autograd's graph that each step leaves behind",
    GARBAGE: "{} objects a step that only Python's garbage collector frees",
    GROWING_LINES: "{} lines of Python more in each step than in the one before",
}
LISTED = ("case", "level", "recordings", "newest", "step [ms]")
COLUMNS = (
    "recorded",
    "commit",
    "GPU",
    "torch",
    "launches",
    "step\n[ms]",
    "median\n[ms]",
    "to\nfirst",
)


def figures(result: Result) -> Iterator[str]:
    """Yield every metric that was measured, a line each; under a counter its places or parts."""
    values = summarise(result.evidence).values()
    width = max((len(name) for name in values), default=0)
    for name in (name for name in METRICS if name in values):
        yield figure(name, values[name], width)
        yield from _made_of(name, result.evidence.counted)


def _made_of(name: str, counts: Counts) -> Iterator[str]:
    """Yield where a counter happens; else what it is made of, the largest first."""
    sites = counts.sites.get(name, ()) if name != OPERATORS else ()
    if METRICS[name].kind == "information":
        sites = sites[:PLACES]
    for site in sites:
        text = happens(site, METRICS[name].unit)
        yield f"    {text}" + (f" (allowed: {site.allowed})" if site.allowed else "")
    parts = {} if sites else counts.detail.get(name, {})
    shown = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    if 1 < len(shown) <= PARTS:
        yield "    " + ", ".join(f"{part} {format_value(name, n)}" for part, n in shown)


def accepted_line(done: Accepted, commands: Commands) -> str:
    """Return what was done with evidence that was accepted, in a line."""
    figures = {"path": commands.relative(done.path), "number": done.number, "reason": done.reason}
    return f"{done.case_id}: {done.action.value.format(**figures)}"


def moves(done: Accepted) -> list[str]:
    """Return old -> new of each metric whose level was changed, the cause first, in MOVES lines at
    most; of a level that nothing is compared with what is recorded that a good step does not have.
    """
    moved = sorted((m for m in done.moved if m.old is not None), key=cause_first)
    if not moved and done.action in (Action.FIRST_RECORDING, Action.EPOCH_OPENED):
        return [_normal(metric) for metric in done.moved if metric.metric in WASTE and metric.new]
    lines = [
        # Which parts moved, where their sum did not.
        f"  {change(m)}" + (f": {operator_move(m)}" if m.old == m.new and m.moved else "")
        for m in moved
    ]
    return first(lines, MOVES if len(lines) <= MOVES else MOVES - 1, "  ")


def _normal(found: MetricVerdict) -> str:
    """Return "Recorded as normal: 6 calls a step that would wait on a GPU (2 x .item() train.py:8
    and 1 more). More will fail."
    """
    amount = partial(format_value, found.metric)
    of = "of" if METRICS[found.metric].unit == "B" else "x"
    at = [f"{amount(site.count)} {of} {site.what} {site.place}".rstrip() for site in found.sites]
    where = f" ({listed(at, PLACES)})" if at else ""
    recorded = _WASTED[found.metric].format(amount(found.new))
    return f"  Recorded as normal: {recorded}{where}. More will fail."


def listing(cases: Mapping[str, Entry]) -> Iterator[str]:
    """Yield a table of cases' baselines: which level it is, and its newest recording."""
    rows = []
    for case_id, entry in cases.items():
        level, count = str(len(entry.epochs)), str(len(entry.level.recordings))
        times = _figure(entry.newest, JUDGED_TIME)
        rows.append((case_id, level, count, entry.newest.date[:10], times))
    yield from (f"  {text}" for text in aligned([LISTED, *rows]))


def lines(entry: Entry) -> Iterator[str]:
    """Yield every epoch with its recordings, oldest first; then the newest one's counters."""
    for number, epoch in enumerate(entry.epochs, start=1):
        yield f"  level {number}: {epoch.reason}"
        rows = [COLUMNS, *(_row(recording, epoch) for recording in epoch.recordings)]
        yield from (f"  {text}" for text in aligned(rows, left=range(4)))
    newest = entry.newest
    yield "  counted in the newest:"
    width = max((len(name) for name in newest.counters), default=0)
    for name in (name for name in METRICS if name in newest.counters):
        yield f"    {figure(name, newest.counters[name], width)}"
    for name, found in newest.differences_pct.items():
        yield f"    {name} {found.mean:+.2f} +- {found.half_width:.2f} {METRICS[name].unit}"


def _row(recording: Recording, epoch: Epoch) -> tuple[str, ...]:
    times = recording.times_ms.get(JUDGED_TIME, [])
    # The first: a level may creep by steps that are each within the limit.
    first = epoch.recordings[0].times_ms.get(JUDGED_TIME, [])
    change = geometric_mean(times) / geometric_mean(first) - 1 if times and first else None
    return (
        recording.date[:10],
        recording.commit[:7],
        recording.device_uuid.removeprefix("GPU-")[:8],
        recording.software.get("torch", ""),
        str(len(times) or ""),
        _figure(recording, JUDGED_TIME),
        _figure(recording, "step_ms_median"),
        "" if change is None else f"{100 * change:+.2f} %",
    )


def _figure(recording: Recording, name: str) -> str:
    value = recording.values().get(name)
    return "" if value is None else format_value(name, value)  # a column of nothing is left out
