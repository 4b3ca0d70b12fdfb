"""Verdicts for a reader: one line that fits a terminal, the evidence below it, what to do next.

A cause that several cases of a run share is shown in full only for the first of them.
"""

import re
from collections.abc import Hashable, Sequence

from stepguard.core.evidence import Evidence
from stepguard.core.explanation import Cause
from stepguard.core.metrics import (
    BETWEEN_STEPS,
    COLLECTIVES,
    FLOPS,
    FP64,
    METRICS,
    NUMBERS,
    OF_KERNELS,
    OPERATOR_METRICS,
    OPERATORS,
    SETTINGS,
    format_value,
    unit_behind,
)
from stepguard.core.reason_sentences import TREE_CHANGED, Failed, OverSteps, Unstable, WorkMoved
from stepguard.core.reasons import Reason
from stepguard.core.run_document import Page
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.text import counted, cut, listed, printable
from stepguard.core.verdict import MetricVerdict, Verdict, worst_first
from stepguard.measure.suite import Result
from stepguard.report import time_causes
from stepguard.report.metric_notes import (
    in_function,
    note,
    of_waivers,
    on_ranks,
    operator_move,
    parts,
    place_lines,
    share_of_place,
)
from stepguard.report.next_steps import Commands, commit_first, next_steps
from stepguard.report.time_causes import sentence

HEADLINE, FRONT = 160, 60  # characters, and those of them that a long case id may take
PLACED = 100  # characters that an operator's move may have with its function
MOST_SHOWN_PCT = 1000.0  # a larger move is shown in units
# Counts of what operators make a device do. The only known lines are those of the operators.
DONE_BY_OPERATORS = (
    "launches_per_step",
    "copies_per_step",
    "copied_bytes_per_step",
    "pageable_copies_per_step",
    "memsets_per_step",
)

# Frames of a traceback between a rank's main() and the user's code, with their source lines: frames
# of the engine, and frames of an import.
_OURS = re.compile(
    r'^  File "(?:.*/stepguard/worker/|.*/importlib/__init__\.py"|<frozen importlib).*\n?'
    r"(?:(?:    |  \[Previous line repeated ).*\n?)*",
    re.MULTILINE,
)


def headline(verdict: Verdict) -> str:
    """Return a verdict as one line: case, verdict, cause."""
    return _first_line(verdict)[0]


def _first_line(verdict: Verdict) -> tuple[str, Site | None]:
    cause, place = _cause(verdict)
    waived = " (waived)" if verdict.waived_until else ""  # the last day is in the lines below
    front = f"{verdict.case_id}: {verdict.status.value}{waived}: "
    if not verdict.whole or isinstance(verdict.figures, WorkMoved):  # other words are shown whole
        cause = cut(cause, HEADLINE - min(len(front), FRONT))
    return printable(front + cause), place and place.cause


def _cause(verdict: Verdict) -> tuple[str, Site | None]:
    """Return what a verdict is based on, and the line of what decided or explains it, if known."""
    worst, moved = verdict.worst, _moved(verdict)
    others = [m for m in moved if m is not worst and m.status is not Status.SAME]
    numbers = [m for m in others if m.metric == NUMBERS]  # other work may compute the same
    if verdict.whole or worst is None:
        # Other work is named by the operators that moved, with the place of their calls.
        calls = [m for m in moved if m.metric == OPERATORS and m.moved] + numbers
        message = (verdict.message or verdict.reason.phrase).split("\n")[0]
        failed = verdict.figures.site if isinstance(verdict.figures, Failed) else None
        places = (failed if failed and failed.file else None, *(m.place for m in moved))
        place, said = next(filter(None, places), None), "; ".join(map(_what_moved, calls))
        if said and isinstance(verdict.figures, WorkMoved):
            return f"{verdict.figures.moved} {said}", place
        return "; ".join(filter(None, [cut(said, HEADLINE), message])), place
    if worst.reason is Reason.EQUAL and worst.old == worst.new:  # 0 -> 0 would be no news
        return worst.reason.phrase, worst.place
    cause = time_causes.culprit(verdict)
    if cause is None:
        operators = _operator_of(worst, verdict)
        both = ", ".join(_what_moved(metric) for metric in (worst, operators) if metric)
        flops = [m for m in moved if m.metric == FLOPS and m.change_pct and m is not worst]
        work = f"FLOPs {_percent(flops[0])}: " if flops and worst.metric == OPERATORS else ""
        slower = (m for m in others if m.status is Status.SLOWER and not m.waived_until)
        behind = [*map(_what_moved, numbers), *(f"{m.metric} {_percent(m)}" for m in slower)]
        return "; ".join([work + both, *behind]), (operators or worst).place
    if isinstance(cause, Cause):
        named, site = time_causes.moved(cause, verdict)
        known = worst.change_pct is not None
        by = f"{worst.metric} {_percent(worst)}" if known else change(worst, digits=1)
        return f"{by}: {named}", site
    # The count comes before the time that it explains.
    return f"{_what_moved(cause)}; {change(worst, digits=1)}", cause.place


def _what_moved(metric: MetricVerdict) -> str:
    """Return a metric's move, with its ranks, and with its place or what is known instead."""
    moved, site = change(metric, digits=1), metric.place
    here = f" {on_ranks(metric.ranks)}" if metric.ranks else ""
    if metric.metric in OPERATOR_METRICS and metric.moved:
        operator = operator_move(metric) + here
        if not site:
            return f"{operator}, {moved.partition(' (')[0]}"
        said = in_function(operator, site.cause)
        return said if len(said) <= PLACED else f"{operator} {site.cause.place}"
    if metric.metric == NUMBERS:
        return f"{NUMBERS}: {note(metric)}"
    if metric.pairs and metric.reason is Reason.UNDECIDED:
        after = f"undecided after {counted(metric.pairs.decision.pairs, 'pair')}"
        return f"{moved}{here}, {after}" + (f" {site.place}" if site else "")
    if metric.moved and (metric.new == metric.old or metric.metric == SETTINGS):
        return f"{metric.metric}: {parts(metric, 2)}"
    if site:
        return f"{moved}{here}{share_of_place(metric)} {site.place}{site.reached}"
    if metric.metric == BETWEEN_STEPS:
        return f"{moved}{here}: made by no counted line"
    if metric.metric in OF_KERNELS and metric.moved:
        return f"{moved}{here}: {parts(metric, 1)}"
    return moved + here


def _operator_of(worst: MetricVerdict, verdict: Verdict) -> MetricVerdict | None:
    """Return the operators that moved as a device's count did; None if it has a place."""
    if worst.metric not in DONE_BY_OPERATORS or worst.place or worst.old is None:
        return None
    rises = (worst.new or 0) > worst.old
    with_it = ((m, m.place) for m in verdict.metrics if m.metric in OPERATOR_METRICS)
    return next((m for m, at in with_it if at and (at.count > 0) == rises), None)


def _short(name: str, value: float) -> str:
    """Format a value in few characters for the headline: 2.62 G."""
    if METRICS[name].unit == "B" or abs(value) < 1e6:
        return format_value(name, value)
    scales = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
    scale, letter = next(row for row in scales if abs(value) >= row[0])
    return f"{value / scale:,.3g} {letter}"


def _percent(metric: MetricVerdict, digits: int = 1) -> str:
    """Return a metric's move, "+4.2 %". A limit of less than 0.2 % asks for two digits."""
    fine = metric.limit_pct is not None and metric.limit_pct < 0.2
    return f"{metric.change_pct or 0.0:+.{2 if fine else digits}f} %"


def change(metric: MetricVerdict, digits: int = 2) -> str:
    """Format a metric's move: "step_ms 252.500 -> 263.100 (+4.20 %, limit 4.00 %)"."""
    name, unit = metric.metric, METRICS[metric.metric].unit
    if metric.old is None or metric.new is None:
        return f"{name} {format_value(name, metric.new)}"
    show = _short if digits < 2 else format_value
    old, new = show(name, metric.old), show(name, metric.new)
    if old == new and metric.old != metric.new and unit == "B":  # the move is below the last digit
        old, new = f"{metric.old:,.0f}", f"{metric.new:,.0f} B"
    text = f"{name} {old} -> {new}"
    if metric.limit_pct is not None and metric.change_pct is not None:
        limit = f"{metric.limit_pct:.{digits if metric.limit_pct >= 0.2 else 2}f}"
        return f"{text} ({_percent(metric, digits)}, limit {limit} %)"
    if not (moved := metric.new - metric.old):
        return text
    over = f" {metric.figures.sentence}" if isinstance(metric.figures, OverSteps) else ""
    share = abs(metric.change_pct or 0)
    if share < 10**-digits or share > MOST_SHOWN_PCT or abs(metric.new) < 1000:
        return f"{text} ({moved:+,.0f} {unit_behind(name, moved)}{over})"
    return f"{text} ({metric.change_pct:+.{digits}f} %{over})"


def evidence_lines(verdict: Verdict) -> list[str]:
    """Return what the verdict is based on, in lines of any width, causes first."""
    lines, moved = [], _moved(verdict)
    if verdict.libraries and verdict.against:
        lines.append(f"  between the environments: {verdict.libraries}")
    elif verdict.libraries and moved:
        lines.append(f"  {verdict.libraries} since the recording")
    for above, metric in zip([None, *moved], moved, strict=False):
        lines += _metric_lines(metric, above, bool(verdict.against))
    lines += [f"  {text}" for text in time_causes.lines(verdict)]
    lines += [f"  | {line}" for line in detail(verdict).rstrip().splitlines()]
    lines += [f"  {text}" for text in of_waivers(verdict)]
    if verdict.against and not verdict.whole:
        lines.append(f"  compared with {verdict.against}, measured in pairs with it")
    if verdict.recordings:
        lines.append(f"  compared with {counted(verdict.recordings, 'recording')}")
    return lines


def _metric_lines(metric: MetricVerdict, above: MetricVerdict | None, in_pairs: bool) -> list[str]:
    """Return a metric's figures, places, parts and noise, but for what ``above`` says."""
    row = METRICS[metric.metric]
    line = f"  {metric.metric} [{row.unit}]: {change(metric)[len(metric.metric) + 1 :]}"
    line += f": {metric.status.value}"
    follows = above is not None and metric.reason is above.reason
    line += "" if follows else f", {metric.reason.phrase}"
    line += f" (waived until {metric.waived_until})" if metric.waived_until else ""
    lines = [line, *(f"    {where}" for where in place_lines(metric))]
    # The place of a collective does not tell its size, and that of a kernel does not tell its
    # instructions, so the note is shown, too.
    text, placed = note(metric), metric.sites and metric.metric not in (COLLECTIVES, FP64)
    if text and (row.kind == "time" or metric.pairs or metric.status is Status.INCONCLUSIVE):
        lines.append(f"    {text.removeprefix(f'{metric.reason.phrase}: ')}")
    elif text and metric.new == metric.old and isinstance(metric.figures, OverSteps):
        lines.append(f"    {text}")
    elif text and not placed and not (follows and metric.metric in OPERATOR_METRICS):
        lines.append(f"    moved: {text}")
    if metric.noise_pct is not None and not in_pairs:
        lines.append(f"    95 % interval over pairs +- {metric.noise_pct:.2f} %")
    return lines


def detail(verdict: Verdict) -> str:
    """Return the user's frames of a traceback, last output, or where a count is unstable."""
    if isinstance(verdict.figures, Unstable) and verdict.figures.sites:
        return "".join(f"{site.described()}\n" for site in verdict.figures.sites)
    if verdict.reason in (Reason.BAD_WORKLOAD, Reason.BASE_LACKS):  # the message says all
        return users_frames(verdict.detail)
    if verdict.reason in (Reason.RAISED, Reason.OUT_OF_MEMORY):
        return users_frames(verdict.detail) or verdict.detail
    return verdict.detail


def users_frames(traceback: str) -> str:
    """Return a traceback from the factory inwards; empty if it only has engine frames."""
    kept, dropped = _OURS.subn("", traceback)
    # Without a user's frame only the exception would be left, which the message already has.
    return kept.rstrip("\n") if not dropped or '  File "' in kept else ""


def _moved(verdict: Verdict) -> list[MetricVerdict]:
    # Of a case that was judged as a whole, only the metrics that were compared.
    gated = [
        m
        for m in verdict.metrics
        if m.gated
        and (m.old is not None or not verdict.whole)
        and (m.status is not Status.SAME or m.has_notice)
    ]
    return worst_first(gated)


def remarks(evidence: Evidence) -> list[str]:
    """Return remarks on the measurement that a verdict does not show, a sentence each."""
    texts, lost = [], evidence.disturbances
    if lost:
        texts.append(f"blocks that were disturbed and measured again: {len(lost)} ({lost[-1]})")
    if evidence.untracked:
        what = f"it runs a module that is in no commit: {listed(evidence.untracked)}"
        texts.append(f"{what}; no other clone measures the same")
    if evidence.tree_changed:
        which = f" ({listed(evidence.dirty, 3)})" if evidence.dirty else ""
        texts.append(f"{TREE_CHANGED}{which}")
    return texts


def page_of(verdict: Verdict, steps: Sequence[str] = ()) -> Page:
    """Return the page of a verdict. ``steps`` are the next steps, if a run just measured it."""
    causes = verdict.explanation.causes if verdict.explanation else ()
    notes = {metric.metric: note(metric) for metric in verdict.metrics}
    first_line, place = _first_line(verdict)
    return Page(
        headline=first_line,
        message=verdict.message,
        detail=verdict.detail or detail(verdict),
        lines=evidence_lines(verdict),
        place=place,
        notes={metric: text for metric, text in notes.items() if text},
        causes=[sentence(cause) for cause in causes],
        steps=list(steps),
    )


def result_page(result: Result, commands: Commands) -> Page:
    """Return the page of what a run just measured, with relative paths."""
    path, first = commands.relative(result.evidence_path), commit_first(result.evidence)
    return page_of(result.verdict, next_steps(result.verdict, path, commands, first))


def block(page: Page, reference: str = "") -> str:
    """Return a page as pytest prints it. ``reference`` stands in for a cause shown before."""
    head, text, steps = page.headline, page.message, [f"  {step}" for step in page.steps]
    if reference:
        return "\n".join(map(printable, [head, f"  {reference}", *steps[:1]]))
    # A headline is one line; a message of several lines is shown in full.
    full = [] if head.endswith(text) else [f"  {line}" for line in text.splitlines()]
    return "\n".join(map(printable, [head, *full, *page.lines, *steps]))


def is_news(verdict: Verdict) -> bool:
    """Tell whether a run's report shows a page of the case, and not its row in the table alone."""
    return not verdict.recorded and (verdict.status is not Status.SAME or verdict.has_notice)


def reference(verdict: Verdict, shown: dict[Hashable, str]) -> str:
    """Return a line on the first case that ``shown`` has with the same cause; "" for itself."""
    cause = _shared_cause(verdict)
    first = shown.setdefault(cause, verdict.case_id) if cause else verdict.case_id
    return f"the same cause as in {first}, above" if first != verdict.case_id else ""


def _shared_cause(verdict: Verdict) -> Hashable:
    """Return what a verdict is based on: the places where counters moved, or a traceback. None if
    neither is known, or if times or permissions make each case different.
    """
    moved = [] if verdict.whole else verdict.moved
    if verdict.permissions or any(METRICS[m.metric].kind != "counter" for m in moved):
        return None
    unstable = verdict.figures.sites if isinstance(verdict.figures, Unstable) else ()
    sites = [*unstable, *(site for metric in moved for site in metric.sites)]
    said = frozenset(site.key for site in sites) or verdict.detail
    return (verdict.reason, frozenset((m.metric, m.status) for m in moved), said) if said else None
