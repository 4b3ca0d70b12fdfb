"""The metrics of one case, for a reader: those that a run measured, and those that it records."""

from collections.abc import Iterator
from functools import partial

from stepguard.core.evidence import Counts
from stepguard.core.metrics import COLLECTIVES, METRICS, NUMBERS, OPERATORS, UNWANTED, format_value
from stepguard.core.text import first, listed
from stepguard.core.verdict import MetricVerdict, cause_first
from stepguard.judge.summarise_evidence import summarise
from stepguard.measure.suite import Result
from stepguard.report.metric_notes import happens, note, operator_move
from stepguard.report.next_steps import Commands
from stepguard.report.table import figure
from stepguard.report.verdict_text import change
from stepguard.storage.accept_recording import Accepted, Action

MOVES = 9  # lines of a case; ten with accepted_line() above them
PARTS = 8  # a counter with more kinds of parts shows only its sum; the evidence has all of them
ALONE = "  Its ranks exchange nothing: each of them trains a copy of its own."
PLACES = 3  # of a metric that is recorded as normal, or only informs


def figures(result: Result) -> Iterator[str]:
    """Yield all metrics that were measured. Below a counter come its places or parts."""
    values = summarise(result.evidence).values()
    width = max((len(name) for name in values), default=0)
    for name in (name for name in METRICS if name in values):
        yield figure(name, values[name], width)
        yield from _made_of(name, result.evidence.counted)


def _made_of(name: str, counts: Counts) -> Iterator[str]:
    """Yield where a counter happens; if that is unknown, its parts, the largest first."""
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
    """Return in one line what was done with evidence that was accepted."""
    figures = {"path": commands.relative(done.path), "number": done.number, "reason": done.reason}
    return f"{done.case_id}: {done.action.value.format(**figures)}"


def moves(done: Accepted) -> list[str]:
    """Return "old -> new" of each metric whose level changed, at most MOVES. If nothing was
    compared, return what of UNWANTED is now normal, and whether ranks exchange nothing.
    """
    moved = sorted((m for m in done.moved if m.old is not None), key=cause_first)
    if not moved and done.action in (Action.FIRST_RECORDING, Action.EPOCH_OPENED):
        alone = [ALONE for one in done.moved if one.metric == COLLECTIVES and not one.new]
        unwanted = (one for one in done.moved if one.metric in UNWANTED and one.new)
        return [*map(_normal, unwanted), *alone]
    lines = [f"  {change(m)}{_parts_of(m)}" for m in moved]
    return first(lines, MOVES if len(lines) <= MOVES else MOVES - 1, "  ")


def _parts_of(metric: MetricVerdict) -> str:
    if metric.metric == NUMBERS:
        return f": {note(metric)}"
    return f": {operator_move(metric)}" if metric.old == metric.new and metric.moved else ""


def _normal(metric: MetricVerdict) -> str:
    """Return "Recorded as normal: 6 calls a step that would wait on a GPU (2 x .item() train.py:8
    and 1 more). More will fail." The places with most come first.
    """
    amount = partial(format_value, metric.metric)
    of = "of" if METRICS[metric.metric].unit == "B" else "x"
    most_first = sorted(metric.sites, key=lambda site: -site.count)
    at = [f"{amount(site.count)} {of} {site.what} {site.place}".rstrip() for site in most_first]
    where = f" ({listed(at, PLACES)})" if at else ""
    recorded = UNWANTED[metric.metric].format(amount(metric.new))
    return f"  Recorded as normal: {recorded}{where}. More will fail."
