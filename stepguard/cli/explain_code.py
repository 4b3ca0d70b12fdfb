"""The command explain-code: what the code of a reason means, and what to do about it. Of a metric:
how it is measured.

python -m stepguard explain-code NOT_STEADY
python -m stepguard explain-code graph_breaks
python -m stepguard explain-code CHANGED
python -m stepguard explain-code
python -m stepguard explain-code --page > docs/reason-codes.md
"""

import argparse
import os
import re
import site
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, say
from stepguard.core import former
from stepguard.core.metrics import METRICS
from stepguard.core.reason_help import OF_REASONS
from stepguard.core.reasons import Reason
from stepguard.core.run_document import ProblemCode

OF_A_RUN = "problem of a run"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
_ABOVE = Path(__file__).resolve().parents[2]  # the clone, or the folder of all packages
_INSTALLED = "share/doc/stepguard"  # of an installation; see pyproject.toml
_PAGE = """\
# Reason codes

Every verdict has a reason. The JSON (`--perf-json`) has it under `verdict.reason` and in
`verdict.metrics[].reason`. The rules that choose it are in
`stepguard/judge/judge_recordings.py`, in the order in which they apply; the first that applies
decides.
`python -m stepguard explain-code REASON` prints a row of this page, `explain-code --page` makes it.
"""
_RUNS = """\
## Problems of a run

Why a run does not pass, apart from its verdicts. The JSON has them under `problems`, and
`python -m stepguard gate` prints them. Most occur only in [strict runs](ci.md#strict-runs).
"""
_COLUMNS = ("what it means", "what to do")


@dataclass(frozen=True)
class Code:
    """A code with its texts, without Markdown."""

    name: str
    verdict: str  # or OF_A_RUN
    means: str
    remedy: str
    pages: tuple[str, ...]  # of docs/ that say more, "judge.md#what-it-does-not-see"


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("explain-code", help="what a reason or a metric means")
    command.add_argument(
        "code", nargs="?", metavar="REASON", help="or a metric; default: all reasons"
    )
    command.add_argument("--page", action="store_true", help="print all as a page of Markdown")
    command.set_defaults(call=_explain, root=root)


def page() -> str:
    """Return docs/reason-codes.md."""
    parts = [_PAGE]
    for section in OF_REASONS:
        parts += [f"## {section.title}\n", *([f"{section.begins}\n"] if section.begins else [])]
        rows = [
            (_quoted(r), _verdicts(r), its.means, its.remedy) for r, its in section.codes.items()
        ]
        parts.append(_table(("reason", "verdict", *_COLUMNS), rows))
    problems = [(_quoted(code), code.means, code.remedy) for code in ProblemCode]
    parts += [_RUNS, _table(("code", *_COLUMNS), problems)]
    return "\n".join(parts)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(header)}", *lines[1:], ""])


def _quoted(code: str) -> str:
    return f"`{code}`"


def _verdicts(reason: Reason) -> str:
    return ", ".join(_quoted(status.value) for status in reason.statuses)


def codes() -> list[Code]:
    """Return all codes in the page's order. A name may occur twice: for a case and for a run."""
    rows: list[tuple[str, ...]] = [
        (reason, _verdicts(reason), its.means, its.remedy)
        for section in OF_REASONS
        for reason, its in section.codes.items()
    ]
    rows += [(code, OF_A_RUN, code.means, code.remedy) for code in ProblemCode]
    return [_code(row) for row in rows]


def _code(row: Sequence[str]) -> Code:
    """Return a row of the page without its marks of Markdown."""
    links = dict.fromkeys(link for text in row for _, link in _LINK.findall(text))
    name, verdict, means, remedy = (_LINK.sub(r"\1", text).replace("`", "") for text in row)
    return Code(name, verdict, means, remedy, tuple(links))


def _read_more(page: str) -> str:
    """Return a page's path on this machine, and its section: "docs/judge.md: what it does not see".

    Empty if the installation has no pages.
    """
    name, _, section = page.partition("#")
    path = _path_of(name)
    if path is None:
        return ""
    shown = os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
    return f"{shown}: {section.replace('-', ' ')}" if section else shown


def _path_of(page: str) -> Path | None:
    """Return where a page of docs/ is on this machine; None if the installation has no pages."""
    # The last two are for pip's --user and --target.
    parents = (sys.prefix, site.getuserbase(), _ABOVE)
    folders = [_ABOVE / "docs", *(Path(parent, _INSTALLED) for parent in parents)]
    return next((folder / page for folder in folders if (folder / page).is_file()), None)


def _metric(name: str) -> list[str]:
    """Return how a metric is judged and measured: its row of docs/method.md. Without the page
    return its kind and unit.
    """
    metric, path = METRICS[name], _path_of("method.md")
    begin = f"| `{name}` | "
    lines = path.read_text().splitlines() if path else ()
    row = next((line for line in lines if line.startswith(begin)), "")
    kind, _, measured = row.removeprefix(begin).removesuffix(" |").partition(" | ")
    if not measured:
        return [f"{name} ({metric.kind}), in {metric.unit}"]
    text = _LINK.sub(r"\1", measured).replace("`", "")
    more = f"  more: {_read_more('method.md#metrics')}"
    return [f"{name} ({kind})", *_wrapped("measured", text), more]


def _explain(options: argparse.Namespace) -> int:
    if options.page:
        say(*page().splitlines())
        return 0
    if options.code in METRICS:
        say(*_metric(options.code))
        return 0
    known = codes()
    if not options.code:
        width = max(len(code.name) for code in known)
        say(*(f"{code.name:{width}}  {code.verdict}" for code in known))
        return 0
    wanted = re.sub(r"\W+", "_", options.code.strip()).upper()
    today = [now[wanted] for now in (former.REASONS, former.PROBLEMS) if wanted in now]
    asked = [code for code in known if code.name in (today or [wanted])]
    verdict = wanted.replace("_", " ")
    if not asked and (its := [c for c in known if verdict in c.verdict.upper().split(", ")]):
        say(f"{verdict} is a verdict; its reasons:")
        for code in its:
            say(code.name, *_both(code))
        return 0
    if not asked:
        verdicts = {v.replace(" ", "_") for code in known for v in code.verdict.split(", ")}
        names = [code.name for code in known] + sorted(filter(str.isupper, verdicts))
        (nearest,) = get_close_matches(wanted, names, n=1, cutoff=0)
        raise UsageError(f"{options.code!r} is no reason; the nearest is {nearest}")
    for code in asked:
        say(f"{code.name} ({code.verdict})", *_both(code))
    return 0


def _both(code: Code) -> list[str]:
    """Return what a code means, what mends it, and where to read more."""
    pages = [f"  more: {where}" for page in code.pages if (where := _read_more(page))]
    return [*_wrapped("means", code.means), *_wrapped("to do", code.remedy), *pages]


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, 79, initial_indent=f"  {title}: ", subsequent_indent="    ")
