"""A run's document as a page of Markdown: the verdict first, and below it what there is room for.

Anybody may have written the document, for example a fork. So no text in it acts as Markdown.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate

from msgspec import structs

from stepguard.core.profile import grouped
from stepguard.core.run_document import Page, RunDocument, State
from stepguard.core.text import first, listed, markdown, printable_lines, revision, short_hash
from stepguard.report import table
from stepguard.report.verdict_text import block, is_news, reference

SUMMARY_BYTES = 900_000  # GitHub drops a summary of more than 1 MiB
COMMENT_BYTES = 60_000  # and refuses a comment or a check run of more than 65,535 characters
LISTED = 50  # rows of a list; a table is cut by its bytes
# Of these changes only added waivers judged.
_EDITED = (
    "**This change edits baselines or waivers.** "
    "Those of {} judged, and waivers declared here; old -> new:"
)
# A measuring job runs a pull request's own code, and nobody asked the base branch about it.
_SAID_BY = "This is what the measuring job says of itself. The check `perf / gate` decides."
NOT_MEASURED = (State.UNMEASURED, State.ABSENT, State.SKIPPED, State.DESELECTED, State.LEFT_OUT)
ON_PURPOSE = (State.DESELECTED, State.LEFT_OUT)


def page(
    document: RunDocument,
    limit_bytes: int = SUMMARY_BYTES,
    for_comment: bool = False,
) -> str:
    """Return the page, with at most ``limit_bytes`` of UTF-8, the worst case open. A comment folds
    the table, and has no next steps, since its readers do not have the evidence.
    """
    problems = [problem.sentence for problem in document.problems]
    run, _, said = title(document).partition(": ")
    parts = [f"**{run}:** {markdown(said)}"]
    parts += _bulleted(document.base_changes, _EDITED.format(markdown(document.base)))
    parts += _bulleted(problems, "**The run itself is no pass:**")
    rows = "\n\n".join(_table(document, limit_bytes // 2))
    if for_comment:
        parts += [_SAID_BY, _folded("all cases", f"{rows}\n") if rows else ""]
    else:
        parts += [rows]
    shown: dict[Hashable, str] = {}
    for at, result in enumerate(one for one in document.worst_first if is_news(one.verdict)):
        known = structs.replace(result.text, steps=[]) if for_comment else result.text
        parts.append(_details(known, reference(result.verdict, shown), is_open=not at))
    # The effect of each waiver is among the notices.
    parts += [*_unmeasured(document), *_bulleted(document.notices, "notices", is_folded=True)]
    parts += [", ".join(f"{name} `{_code(text)}`" for name, text in facts(document))]
    return "\n\n".join(_that_fit(parts, limit_bytes)) + "\n"


def _folded(title: str, text: str, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{title}</summary>\n\n{text}\n</details>"


def _that_fit(parts: list[str], limit_bytes: int) -> Iterator[str]:
    """Yield the parts for which there is room, and a line on how many are left out."""
    room, left_out = limit_bytes - 200, 0
    for part in filter(None, parts):
        size = len(part.encode()) + 2
        if size > room:
            left_out += 1
            continue
        room -= size
        yield part
    if left_out:
        yield f"{left_out} parts of this page are too long for it; the run's document has them."


def title(document: RunDocument) -> str:
    """Return how a run ended, its worst case's headline, and how many there are of each verdict."""
    verdicts = [result.verdict for result in document.results]
    why = [one.text.headline for one in document.failing] or [p.sentence for p in document.problems]
    return table.title(document.outcome, verdicts, why)


def facts(document: RunDocument) -> Iterator[tuple[str, str]]:
    """Yield what was measured, where, how it was asked for and how it ended: names and texts."""
    options, states = document.options, Counter(case.state for case in document.cases)
    named = {
        "commit": short_hash(document.commit) + (" and changes" if document.dirty else ""),
        "against": document.against and revision(document.against, document.base_commit),
        "baselines of": document.base,
        "machine": document.machine,
        "GPUs": ", ".join(f"{gpu.uuid} (driver {gpu.driver})" for gpu in document.gpus),
        "began": document.date,
        "took": f"{document.wall_s:,.0f} s",
        "cases": ", ".join(f"{states[state]} {state.value}" for state in State if states[state]),
        "strict": "yes" if document.strict else "no",
        "arguments": " ".join([*first(options.arguments, 10), options.environment]),
        "ended": document.end.value,
    }
    yield from ((name, text) for name, text in named.items() if text.strip())


def _code(text: str) -> str:
    return printable_lines(text).replace("\n", " ").replace("`", "'").strip()


def _table(document: RunDocument, limit_bytes: int) -> Iterator[str]:
    """Yield the table, if anything was measured: columns that have a cell, worst cases first."""
    rows = [cells for cells, _ in table.rows([result.verdict for result in document.results])]
    kept = [at for at in range(len(table.COLUMNS)) if any(row[at] for row in rows)]
    cells = [[table.COLUMNS[at] for at in kept], ["---"] * len(kept)]
    cells += [[markdown(row[at]) or "-" for at in kept] for row in rows]
    lines = [f"| {' | '.join(line)} |" for line in cells]
    sizes = accumulate(len(line.encode()) + 1 for line in lines)
    fitting = sum(size <= limit_bytes for size in sizes)
    if rows:
        yield "\n".join(lines[:fitting])
    if fitting < len(lines):
        yield f"{len(lines) - fitting} more cases are not in this table."


def _details(page: Page, reference: str, is_open: bool) -> str:
    headline, *lines = block(page, reference).split("\n")
    body = "\n".join(lines)
    # This fence is longer than any in the text: a docstring in a traceback may contain one.
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", body))]))
    # As code, where neither "@" nor "#" makes a link.
    title = f"<code>{markdown(headline)}</code>"
    return _folded(title, f"{fence}\n{body}\n{fence}", is_open) if body else title


def unmeasured(document: RunDocument) -> Iterator[tuple[State, str, int, str]]:
    """Yield how many cases were not measured, by state and reason, and which, unless on purpose."""
    for state in NOT_MEASURED:
        its = [case for case in document.cases if case.state is state]
        for why, alike in grouped(its, lambda case: case.why).items():
            names = [] if state in ON_PURPOSE else [case.case or case.test for case in alike]
            yield state, why, len(alike), listed(names, LISTED)


def _unmeasured(document: RunDocument) -> Iterator[str]:
    for state, groups in grouped(unmeasured(document), lambda group: group[0]).items():
        lines = [": ".join(filter(None, (names or f"{n}", why))) for _, why, n, names in groups]
        total = sum(n for _, _, n, _ in groups)
        yield from _bulleted(lines, f"{total} {state.value}", is_folded=True)


def _bulleted(lines: Sequence[str], title: str, is_folded: bool = False) -> list[str]:
    """Return a title and a list as parts of the page; nothing without lines."""
    text = "\n".join(first([f"* {markdown(line)}" for line in lines], LISTED, "* "))
    if is_folded:
        return [_folded(title, text)] if lines else []
    return [title, text] if lines else []
