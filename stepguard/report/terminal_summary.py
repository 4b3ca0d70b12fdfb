"""The summary at the end of a run: the table, then a headline for each case that needs a reader.
The scaling efficiency of cases of several GPUs informs: nothing judges it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stepguard.core.comparison import gates_times
from stepguard.core.device import is_gpu
from stepguard.core.metrics import METRICS
from stepguard.core.profile import grouped
from stepguard.core.reasons import Reason
from stepguard.core.run_document import Problem
from stepguard.core.status import Status
from stepguard.core.text import cut, listed, printable, shortened
from stepguard.core.verdict import Verdict
from stepguard.measure.suite import Result
from stepguard.report import metric_notes, table, verdict_text
from stepguard.report.next_steps import Commands

Markup = dict[str, bool]  # keywords of pytest's terminal writer
LEAST_OF_ID = 12  # columns of a case's id in a headline; the verdict and the cause need the rest
_IN_BRACKETS = re.compile(r" \([+-][^()]*\)")
_FOLDERS = re.compile(r"(?:[\w.-]+/)+(?=[\w.-]+\.py)")


@dataclass(frozen=True)
class ShownRun:
    """A run that is over."""

    results: Sequence[Result]
    commands: Commands
    first: Sequence[str] = ()  # what a reader must know before the verdicts
    notices: Sequence[str] = ()  # sentences about the run as a whole
    blocks: bool = True  # pytest shows a block for every case that fails
    # Reasons why tests of cases were skipped that nothing else shows, with the number of tests.
    skipped: Mapping[str, int] = field(default_factory=dict)
    problems: Sequence[Problem] = ()  # that fail the run, whatever its verdicts are
    annotations: Sequence[str] = ()  # lines for a log of GitHub Actions


def lines(run: ShownRun, width: int = 0) -> Iterator[tuple[str, Markup]]:
    """Yield the summary, each line with its colour. A ``width`` of 0 is any width."""
    verdicts = [result.verdict for result in run.results]
    yield from ((text, {"yellow": True}) for text in run.first)
    if verdicts:
        for text, status in table.lines(table.rows(verdicts), width):
            yield text, colour(status)
    if not run.results:
        yield "NOTHING WAS MEASURED: no selected case came to a result.", {"red": True}
    elif not any(_may_judge_times(result) for result in run.results):
        yield table.CPU_NOTE, {}
    if verdicts:
        yield table.counts(verdicts), {}
    for reason, count in sorted(run.skipped.items(), key=lambda item: -item[1]):
        yield f"{count} skipped: {reason}", {}
    for result in run.results:
        yield from ((line, {}) for line in _beside(result))
    for notice in run.notices:
        yield notice, {}
    yield from _problems(run.problems)
    for result in sorted(run.results, key=lambda r: r.verdict.status.rank):
        if verdict_text.is_news(result.verdict):
            yield from _headline(run, result, width)


def _headline(run: ShownRun, result: Result, width: int) -> Iterator[tuple[str, Markup]]:
    """Yield a result's headline, and below it its page if pytest shows it nowhere else."""
    verdict = result.verdict
    markup: Markup = {"yellow": True} if verdict.waived_until else colour(verdict.status)
    page = verdict_text.result_page(result, run.commands)
    head = narrowed(page.headline, verdict.case_id, width)
    yield head, markup
    # Of a case that fails, its block among pytest's failures has everything.
    if verdict.outcome == "passed":
        yield from ((line, {}) for line in page.lines)
    if verdict.outcome == "passed" or not run.blocks:
        yield from ((f"  {step}", {}) for step in page.steps[:1])


def narrowed(headline: str, case_id: str, width: int) -> str:
    """Return a headline of at most ``width`` columns; 0 is any width. What is too long loses, in
    this order: figures in brackets, folders, the middle of the case's name, and last its end.
    """
    if not width:
        return headline
    name = printable(case_id)
    cause = headline.removeprefix(name)
    for less in (_IN_BRACKETS, _FOLDERS):
        cause = less.sub("", cause) if len(name + cause) > width else cause
    return cut(shortened(name, max(LEAST_OF_ID, width - len(cause))) + cause, width)


def _problems(problems: Sequence[Problem]) -> Iterator[tuple[str, Markup]]:
    for text, alike in grouped(problems, lambda problem: problem.text).items():
        shown = listed([problem.case for problem in alike], 3)
        yield f"{shown}: {text}" if shown else text, {"red": True}


def _beside(result: Result) -> Iterator[str]:
    case_id, verdict = result.case.id, result.verdict
    # Allowed syncs are shown in every run, with their reasons.
    for name, sites in result.evidence.counted.sites.items():
        for site in (site for site in sites if site.allowed):
            what = metric_notes.happens(site, METRICS[name].unit)
            yield f"allowed in {case_id}: {what}: {site.allowed}"
    yield from _equal_elsewhere(result)
    if verdict.against and verdict.outcome == "passed":
        front = f"{case_id} against {verdict.against}: "
        yield from (f"{front}{line}" for line in _same_times(verdict))
        if verdict.libraries:
            yield f"{front}{verdict.libraries}"


def _same_times(verdict: Verdict) -> Iterator[str]:
    """Yield how much slower a case may be that is `same` in pairs. What moved is on its page."""
    times = [m for m in verdict.metrics if m.gated and METRICS[m.metric].kind == "time"]
    if not times:
        yield "counters alone, its times are not gated"
    for time in times:
        moved = time.status is not Status.SAME or time.has_notice
        if not moved and (text := metric_notes.note(time)):
            yield f"{time.metric}: {text}"


def _equal_elsewhere(result: Result) -> Iterator[str]:
    """Yield the new places of counters whose numbers are equal: one call replaced another. Counters
    with the same places share a line. Bytes of an edited line are left out: they ask nothing.
    """
    said = [metric for metric in result.verdict.metrics if metric.reason is Reason.EQUAL]
    equal = [metric for metric in said if METRICS[metric.metric].unit != "B"]
    new = [(site.location(), metric.metric) for metric in equal for site in metric.sites]
    names = {
        location: tuple(dict.fromkeys(name for _, name in alike))
        for location, alike in grouped(new, lambda pair: pair[0]).items()
    }
    for together, places in grouped(names, lambda location: names[location]).items():
        are = "is" if len(together) == 1 else "are"
        yield f"{result.case.id}: {', '.join(together)} {are} equal, but now at {listed(places)}"


def colour(status: Status | None) -> Markup:
    """Return a verdict's colour; for None the table header's. The word says the same."""
    if status is None:
        return {"bold": True}
    if status is Status.SAME:
        return {}
    if status is Status.FASTER:
        return {"green": True}
    return {"red": True} if status.outcome == "failed" else {"yellow": True}


def _may_judge_times(result: Result) -> bool:
    # In pairs with another revision a CPU's times are judged, too.
    beside = bool(result.verdict.against)
    return beside or is_gpu(result.case.device) or gates_times(result.case)


def scaling_lines(results: Sequence[Result]) -> Iterator[str]:
    """Yield how many tokens a second each rank trains, in percent of a single GPU's."""
    for result in results:
        case = result.case
        if case.world_size == 1 or not is_gpu(case.device):  # ranks of a CPU share its cores
            continue
        on_one = case.as_dict() | {"world_size": 1}
        alone = next((one for one in results if one.case.as_dict() == on_one), None)
        if alone and (of_all := _tokens_per_s(result)) and (of_one := _tokens_per_s(alone)):
            pct = 100 * of_all / case.world_size / of_one
            text = f"{pct:.1f} % of {alone.case.id} (tokens/s per rank)"
            yield f"scaling efficiency of {case.id}: {text}"


def _tokens_per_s(result: Result) -> float | None:
    metrics = result.verdict.metrics
    return next((metric.new for metric in metrics if metric.metric == "tokens_per_s"), None)
