"""The HTML report: runs as one page that loads nothing and runs no script.

The template escapes every text. Texts that a file, a branch or a worker wrote are first made
printable, as for a terminal. The page's content security policy forbids scripts, so even markup
that was not escaped could not run one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from textwrap import dedent

from markupsafe import Markup

from stepguard import __version__
from stepguard.core.run_document import RunDocument
from stepguard.core.status import Status
from stepguard.core.text import bounded, cut, first, printable_lines, short_hash
from stepguard.core.verdict import Verdict, outcome_of_run
from stepguard.report import table as verdict_table
from stepguard.report.markdown_page import LISTED, facts, unmeasured
from stepguard_lab import profile_sections, time_sections, work_sections
from stepguard_lab.html_templates import MOST_TEXT, TEMPLATES
from stepguard_lab.report_input import MeasuredCase, ReportedRun
from stepguard_lab.report_model import (
    FEW_ROWS,
    MANY_CASES,
    MOST_ROWS,
    Cell,
    Section,
    Table,
    shortened,
    table,
)
from stepguard_lab.source_links import Repository

NAME_CHARACTERS = 200
OPEN_CASES = 3  # so many failing cases are shown unfolded


@dataclass(frozen=True)
class CaseView:
    """A case as the template shows it."""

    anchor: str
    name: str
    word: str
    outcome: str
    headline: str
    lines: str
    notes: tuple[str, ...]
    sections: tuple[Section, ...]
    is_open: bool


@dataclass(frozen=True)
class RunView:
    """A run as the template shows it."""

    title: str
    outcome: str
    facts: tuple[tuple[str, str], ...]
    base_changes: list[str]
    problems: list[str]
    overview: tuple[Table, ...]
    cases: tuple[CaseView, ...]
    unmeasured: tuple[Table, ...]
    notices: list[str]


def page(runs: Sequence[ReportedRun], repository: Repository, pictures: Mapping[str, str]) -> str:
    """Return the HTML of these runs; ``pictures`` are timelines as SVG, by case id."""
    # A run's source tells it from other runs. A single run's source may be a temporary file.
    alone = len(runs) == 1 and runs[0].document is not None
    runs = [replace(run, source="") for run in runs] if alone else runs
    views = [_run(run, number, repository, pictures) for number, run in enumerate(runs)]
    title = views[0].title if len(views) == 1 else f"Performance of {len(views)} runs"
    heads = dict.fromkeys(table.head for view in views for table in _tables(view))
    return TEMPLATES.get_template("report.html").render(
        title=title, runs=views, heads=heads, version=__version__
    )


def _tables(run: RunView) -> Iterator[Table]:
    yield from (*run.overview, *run.unmeasured)
    for case in run.cases:
        for section in case.sections:
            yield from section.tables


def _run(
    run: ReportedRun, number: int, repository: Repository, pictures: Mapping[str, str]
) -> RunView:
    document = run.document
    order = sorted(run.cases, key=lambda case: (case.verdict.status.rank, case.verdict.case_id))
    failing = [case for case in order if case.verdict.outcome != "passed"][:OPEN_CASES]
    views = tuple(
        _case(
            case,
            f"run{number}-case{place}",
            repository,
            pictures.get(case.verdict.case_id, ""),
            case in failing or len(order) == 1,
            FEW_ROWS if len(order) > MANY_CASES else MOST_ROWS,
        )
        for place, case in enumerate(order)
    )
    verdicts = [case.verdict for case in order]
    outcome = document.outcome if document else outcome_of_run(verdicts)
    problems = [cut(one.sentence, MOST_TEXT) for one in document.problems] if document else []
    why = [*(case.text.headline for case in failing), *problems]
    return RunView(
        title=verdict_table.title(outcome, verdicts, why),
        outcome=outcome,
        facts=tuple(_facts(run)),
        base_changes=first(document.base_changes, LISTED) if document else [],
        problems=problems,
        overview=_overview(order, views),
        cases=views,
        unmeasured=_unmeasured(document) if document else (),
        notices=first(document.notices, LISTED) if document else [],
    )


def _facts(run: ReportedRun) -> Iterator[tuple[str, str]]:
    if run.source:
        yield "from", run.source
    if run.document is None:
        yield "judged", "by today's baselines and waivers"
    else:
        yield from facts(run.document)


def _overview(cases: Sequence[MeasuredCase], views: Sequence[CaseView]) -> tuple[Table, ...]:
    """Return the table of verdicts, the worst first, each case a link to its part."""
    rows: list[list[str | Cell]] = []
    for (cells, _), case, view in zip(
        verdict_table.rows([case.verdict for case in cases]), cases, views, strict=True
    ):
        link = Cell(cut(cells[0], NAME_CHARACTERS), f"#{view.anchor}")
        verdict = Cell(cells[-1], css=case.verdict.outcome)
        rows.append([link, verdict, *cells[1:-1]])
    columns = verdict_table.COLUMNS
    head = (columns[0], columns[-1], *columns[1:-1])
    return table("Verdicts, the worst first", head, rows, 2, len(rows))


def _without_status(headline: str, verdict: Verdict) -> str:
    """Return the headline without the status, which is beside it."""
    status = re.escape(verdict.status.value)
    return re.sub(rf": {status}( \(waived\))?: ", ": ", headline, count=1)


def _case(
    case: MeasuredCase,
    anchor: str,
    repository: Repository,
    picture: str,
    is_open: bool,
    most: int,
) -> CaseView:
    verdict, text = case.verdict, case.text
    # The picture's texts are escaped where it is drawn.
    drawn = Markup(printable_lines(picture))
    parts = chain(
        time_sections.sections(case),
        profile_sections.sections(case, drawn),
        work_sections.sections(case, repository),
    )
    steps = ["", "next:", *text.steps] if text.steps else []
    is_detailed = verdict.status is not Status.SAME and text.detail
    detail = ["", text.detail] if is_detailed and text.detail not in "\n".join(text.lines) else []
    old = None if case.pairs else case.recording
    since = [f"the newest recording is of {short_hash(old.commit)}, {old.date[:10]}"] if old else []
    # In a terminal these lines are indented below the headline.
    rests_on = dedent("\n".join(text.lines))
    return CaseView(
        anchor=anchor,
        name=cut(verdict.case_id, NAME_CHARACTERS),
        word=verdict.word,
        outcome=verdict.outcome,
        headline=cut(_without_status(text.headline, verdict), 400),
        lines="\n".join([rests_on, *since, *detail, *steps]).strip("\n"),
        notes=(case.missing,) if case.missing else (),
        sections=tuple(shortened(part, most) for part in parts if not part.is_empty),
        is_open=is_open,
    )


def _unmeasured(document: RunDocument) -> tuple[Table, ...]:
    rows = [
        (state.value, str(count), why, bounded(names, 2_000))
        for state, why, count, names in unmeasured(document)
    ]
    return table("Not measured", ("state", "cases", "why", "which"), rows, 4, LISTED)
