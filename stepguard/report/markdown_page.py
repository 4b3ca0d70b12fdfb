"""A run's document as a page of Markdown: the verdict first, and below it as much as there is room
for.

The document may be anybody's, for example a fork's: every text in it is shown as it is.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from stepguard.core.profile import grouped
from stepguard.core.run_document import ResultDocument, RunDocument, State
from stepguard.core.status import Status
from stepguard.core.text import first, listed, markdown, printable_lines, revision, short_hash
from stepguard.report import table
from stepguard.report.repeated_causes import ReportedCauses

SUMMARY_BYTES = 900_000  # GitHub drops a summary of more than 1 MiB
COMMENT_BYTES = 60_000  # and refuses a comment of more than 65,536 characters
LISTED = 50  # rows of a list; a table is cut by its bytes
NOT_MEASURED = (State.UNMEASURED, State.ABSENT, State.SKIPPED, State.DESELECTED, State.LEFT_OUT)


def page(
    document: RunDocument, limit_bytes: int = SUMMARY_BYTES, steps: bool = True, refused: str = ""
) -> str:
    """Return the page, with at most ``limit_bytes`` of UTF-8. Next ``steps`` are for readers who
    have the evidence. ``refused`` says why a run that passes by its own word does not pass.

    The page has, in this order: the verdict, baselines that the tree changes, the problems of the
    run, the table, a folded part for each case with more to say, cases that were not measured,
    notices, and what was measured where.
    """
    passed = document.passed and not refused
    parts = [_verdict(document, passed), *([refused] if refused else [])]
    parts += [*_base(document), *_problems(document), *_table(document, limit_bytes // 2)]
    reported = ReportedCauses()
    shown = filter(_speaks, worst_first(document))
    parts += [_details(result, steps, reported) for result in shown]
    # What each waiver did is among the notices.
    notices = _cut(_bullets(document.notices), "notices", folded="")
    parts += [*_unmeasured(document), *notices, _facts(document)]
    return "\n\n".join(_that_fit(parts, limit_bytes)) + "\n"


def _that_fit(parts: list[str], limit_bytes: int) -> Iterator[str]:
    """Yield the parts for which there is room, and how many had none."""
    room, left_out = limit_bytes - 200, 0
    for part in parts:
        size = len(part.encode()) + 2
        if size > room:
            left_out += 1
            continue
        room -= size
        yield part
    if left_out:
        yield f"{left_out} parts of this page are too long for it; the run's document has them."


def _verdict(document: RunDocument, passed: bool) -> str:
    word = "passed" if passed else "failed"
    verdicts = [result.verdict for result in document.results]
    counted = table.counts(verdicts) or "nothing was measured"
    return f"**Performance {word}:** {markdown(counted)}"


def _base(document: RunDocument) -> Iterator[str]:
    """Yield what the tree changes in the baselines. These changes did not judge it."""
    if document.base_changes:
        yield (
            "**This change edits baselines or waivers.** "
            f"Those of {markdown(document.base)} judged; old -> new:"
        )
    yield from _cut(_bullets(document.base_changes), "changes")


def _problems(document: RunDocument) -> Iterator[str]:
    if document.problems:
        yield "**The run itself is no pass:**"
    yield from _cut(_bullets([problem.sentence for problem in document.problems]), "problems")


def _facts(document: RunDocument) -> str:
    """Return what was measured, where, how it was asked for and how it ended."""
    options = document.options
    states = Counter(case.state for case in document.cases)
    cases = ", ".join(f"{states[state]} {state.value}" for state in State if states[state])
    facts = {
        "commit": short_hash(document.commit) + (" and changes" if document.dirty else ""),
        "against": document.against and revision(document.against, document.base_commit),
        "machine": ", ".join([document.machine, *(gpu.uuid for gpu in document.gpus)]),
        "cases": cases,
        "arguments": " ".join([*first(options.arguments, 10), options.environment]),
        "ended": document.end.value,
    }
    shown = (f"{name} `{_code(text)}`" for name, text in facts.items() if text.strip())
    return ("Strict: " if document.strict else "Not strict: ") + ", ".join(shown)


def _code(text: str) -> str:
    return printable_lines(text).replace("\n", " ").replace("`", "'").strip()


def _table(document: RunDocument, limit_bytes: int) -> Iterator[str]:
    """Yield the table, if anything was measured: columns that have a cell, worst cases first."""
    rows = [row.cells for row in table.rows([result.verdict for result in document.results])]
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


def worst_first(document: RunDocument) -> list[ResultDocument]:
    """Return the results of a run, the worst first, then by case id."""
    return sorted(document.results, key=lambda result: (result.verdict.status.rank, result.case))


def _speaks(result: ResultDocument) -> bool:
    silent = result.verdict.word in (Status.SAME.value, "recorded")
    return not silent or result.verdict.has_notice


def _details(result: ResultDocument, steps: bool, reported: ReportedCauses) -> str:
    """Return, folded, what a verdict is based on (unless it is ``reported``) and what to do
    next.
    """
    reference, next_steps = reported.reference(result.verdict), result.text.steps if steps else []
    lines = [reference, *next_steps[:1]] if reference else [*result.text.lines, *next_steps]
    body = printable_lines("\n".join(lines))
    # Longer than any in the text: a docstring in a traceback may contain a fence.
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", body))]))
    # As code, where neither "@" nor "#" makes a link.
    headline = f"<code>{markdown(result.text.headline)}</code>"
    if not body:
        return headline
    title = f"<details><summary>{headline}</summary>"
    return "\n".join([title, "", fence, body, fence, "</details>"])


def _unmeasured(document: RunDocument) -> Iterator[str]:
    for state in NOT_MEASURED:
        its = [case for case in document.cases if case.state is state]
        lines = []
        for why, alike in grouped(its, lambda case: case.why).items():
            shown = markdown(listed([case.case or case.test for case in alike], LISTED))
            lines.append(f"* {shown}" + (f": {markdown(why)}" if why else ""))
        yield from _cut(lines, state.value, folded=f"{len(its)} ")


def _bullets(lines: list[str]) -> list[str]:
    return [f"* {markdown(line)}" for line in lines]


def _cut(lines: list[str], name: str, folded: str | None = None) -> Iterator[str]:
    """Yield a list of at most LISTED lines, if there are any, under a title that folds it."""
    if not lines:
        return
    text = "\n".join(first(lines, LISTED, "* "))
    if folded is None:
        yield text
    else:
        yield f"<details><summary>{folded}{name}</summary>\n\n{text}\n</details>"
