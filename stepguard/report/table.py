"""The table of a run: a row for each case, worst first. Empty columns are left out."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from stepguard.core.metrics import JUDGED_TIME, METRICS, PEAK, format_value, unit_behind
from stepguard.core.reasons import Reason
from stepguard.core.status import Outcome, Status
from stepguard.core.text import cut
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.report.verdict_text import HEADLINE

COLUMNS = (
    "case",
    "step [ms]",
    "baseline [ms]",
    "change [%]",
    "limit [%]",
    "tok/s",
    "MFU [%]",
    "peak [MiB]",
    "counters",
    "verdict",
)
NARROW = tuple(name.replace(" [", "\n[") for name in COLUMNS)
LOG_WIDTH = 120  # columns of a table in a file or a log, if its content allows
CPU_NOTE = "Times are not gated on CPU."


Row = tuple[tuple[str, ...], Status]  # a case's cells, by column, and its verdict for the colour


def rows(verdicts: Sequence[Verdict]) -> list[Row]:
    """Return the rows, worst verdict first, then sorted by case id."""
    ordered = sorted(verdicts, key=lambda v: (v.status.rank, v.case_id))
    return [(_cells(verdict), verdict.status) for verdict in ordered]


def _cells(verdict: Verdict) -> tuple[str, ...]:
    by_name = {metric.metric: metric for metric in verdict.metrics}
    step = by_name.get(JUDGED_TIME)
    gated = step is not None and step.gated
    peak = by_name.get(PEAK)
    return (
        verdict.case_id,
        _value(step),
        format_value(JUDGED_TIME, step.old) if gated and step and step.old else "",
        f"{step.change_pct:+.2f}" if gated and step and step.change_pct is not None else "",
        f"{step.limit_pct:.2f}" if gated and step and step.limit_pct is not None else "",
        _value(by_name.get("tokens_per_s")),
        _value(by_name.get("mfu_pct")),
        f"{peak.new / 2**20:,.1f}" if peak and peak.new is not None else "",
        _counters(verdict),
        verdict.word,
    )


def _value(metric: MetricVerdict | None) -> str:
    return "" if metric is None else format_value(metric.metric, metric.new)


def _counters(verdict: Verdict) -> str:
    counters = [m for m in verdict.metrics if m.gated and METRICS[m.metric].kind == "counter"]
    if not counters:
        return ""
    moved = [
        m
        for m in counters
        if m.status in (Status.CHANGED, Status.FASTER) or m.reason is Reason.TIME_DECIDES
    ]
    if moved:
        return f"{len(moved)} of {len(counters)} moved"
    # Counters without an old value are called "counted": there is no baseline, the case as a whole
    # failed, or the recording is older than the counter.
    equal = sum(m.old is not None for m in counters)
    parts = {"equal": equal, "counted": len(counters) - equal}
    return ", ".join(f"{number} {word}" for word, number in parts.items() if number)


def lines(table: Sequence[Row], width: int = 0) -> Iterator[tuple[str, Status | None]]:
    """Yield the table as text, with each line's status, None for the header. What is wider than
    ``width`` moves closer, or is placed below. 0 is for a file or a log, as wide as LOG_WIDTH or
    more.
    """
    left = (0, len(COLUMNS) - 1)
    for heading, gap in ((COLUMNS, 2), (NARROW, 1)):
        texts = list(aligned([heading, *(cells for cells, _ in table)], left, gap))
        if max(map(len, texts)) <= (width or LOG_WIDTH):
            break
    else:
        if width:
            for cells, status in table:
                yield from ((line, status) for line in _stacked(cells, width))
            return
    above = [None] * (len(texts) - len(table))
    yield from zip(texts, [*above, *(status for _, status in table)], strict=True)


def _stacked(cells: tuple[str, ...], width: int) -> Iterator[str]:
    case, *figures, verdict = cells
    yield f"{case}: {verdict}"
    shown = [f"{name} {text}" for name, text in zip(COLUMNS[1:-1], figures, strict=True) if text]
    line = ""
    for cell in shown:
        if line and len(line) + len(cell) + 2 > width - 3:
            yield f"  {line},"
            line = ""
        line += f", {cell}" if line else cell
    if line:
        yield f"  {line}"


def aligned(
    rows: Sequence[Sequence[str]], left: Collection[int] = (0,), gap: int = 2
) -> Iterator[str]:
    """Yield a table, its header first, the columns ``left`` aligned to the left. A cell without
    text is "-", and a column without any is left out.
    """
    header, *body = rows
    kept = [i for i in range(len(header)) if not body or any(row[i] for row in body)]
    headings = [header[i].split("\n") for i in kept]
    height = max(map(len, headings), default=1)
    above = [[""] * (height - len(heading)) + heading for heading in headings]
    filled = [*zip(*above, strict=True), *([row[i] or "-" for i in kept] for row in body)]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    for row in filled:
        cells = zip(kept, row, widths, strict=True)
        yield (
            (" " * gap)
            .join(text.ljust(width) if i in left else text.rjust(width) for i, text, width in cells)
            .rstrip()
        )


def figure(name: str, value: float, width: int) -> str:
    """Return a metric as a line: its name in ``width`` columns, its value and unit."""
    unit = "" if METRICS[name].unit == "B" else unit_behind(name, value)
    return f"{name.ljust(width)}  {format_value(name, value):>16} {unit}".rstrip()


def counts(verdicts: Sequence[Verdict]) -> str:
    """Return how many of each verdict there are: "1 SLOWER, 2 same, 1 recorded"."""
    # Recorded and waived ones come last: they pass, whatever their status.
    ordered = sorted(verdicts, key=lambda v: (v.word != v.status.value, v.status.rank))
    numbers = Counter(verdict.word for verdict in ordered)
    return ", ".join(f"{number} {word}" for word, number in numbers.items())


def title(outcome: Outcome, verdicts: Sequence[Verdict], causes: Sequence[str]) -> str:
    """Return a run's outcome, its first cause and the count of each verdict, as pages begin."""
    first = [cut(cause, HEADLINE) for cause in causes[:1]]
    said = [*first, counts(verdicts) or "nothing was measured"]
    return f"Performance {outcome}: {'; '.join(filter(None, said))}"
