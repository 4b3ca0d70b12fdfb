"""The command explain-code: what the code of a reason means, and what to do about it. Of a metric:
how it is measured.

python -m stepguard explain-code NOT_STEADY
python -m stepguard explain-code graph_breaks
python -m stepguard explain-code CHANGED
python -m stepguard explain-code
"""

import argparse
import os
import re
import site
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, say
from stepguard.core import former
from stepguard.core.metrics import METRICS
from stepguard.core.reasons import Reason
from stepguard.core.run_document import ProblemCode

OF_A_RUN = "problem of a run"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
_ITEM = re.compile(r"^\* `([A-Z_]+)`: (.*(?:\n  .*)*)$", re.MULTILINE)  # of the page's lists
_ABOVE = Path(__file__).resolve().parents[2]  # the clone, or the folder of all packages
_INSTALLED = "share/doc/stepguard"  # of an installation; see pyproject.toml


@dataclass(frozen=True)
class Code:
    """A code with what docs/reason-codes.md says of it."""

    name: str
    verdict: str  # or OF_A_RUN
    text: str  # Markdown; a short phrase if the installation has no pages

    def lines(self) -> list[str]:
        """Return the text without Markdown, and the pages that it names."""
        named = dict.fromkeys(page for _, page in _LINK.findall(self.text))
        more = [f"  more: {where}" for page in named if (where := _read_more(page))]
        return [*_wrapped(_plain(self.text)), *more]


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("explain-code", help="what a reason or a metric means")
    command.add_argument(
        "code", nargs="?", metavar="REASON", help="or a metric; default: all reasons"
    )
    command.set_defaults(call=_explain, root=root)


def codes() -> Iterator[Code]:
    """Yield all codes. A name may occur twice: for a case and for a run."""
    path = _path_of("reason-codes.md")
    cases, _, runs = (path.read_text() if path else "").partition("\n## Problems of a run\n")
    of_cases, of_runs = dict(_ITEM.findall(cases)), dict(_ITEM.findall(runs))
    for reason in Reason:
        verdicts = ", ".join(status.value for status in reason.statuses)
        yield Code(reason, verdicts, of_cases.get(reason, reason.phrase))
    for problem in ProblemCode:
        yield Code(problem, OF_A_RUN, of_runs.get(problem, "the run says it"))


def _read_more(page: str) -> str:
    """Return a page's path on this machine, and its section, or "" without pages."""
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
    """Return a metric's row of docs/method.md; without the page its kind and unit."""
    metric, path = METRICS[name], _path_of("method.md")
    begin = f"| `{name}` | "
    lines = path.read_text().splitlines() if path else ()
    row = next((line for line in lines if line.startswith(begin)), "")
    kind, _, measured = row.removeprefix(begin).removesuffix(" |").partition(" | ")
    if not measured:
        return [f"{name} ({metric.kind}), in {metric.unit}"]
    more = f"  more: {_read_more('method.md#metrics')}"
    return [f"{name} ({kind})", *_wrapped(f"measured: {_plain(measured)}"), more]


def _explain(options: argparse.Namespace) -> int:
    if options.code in METRICS:
        say(*_metric(options.code))
        return 0
    if instead := former.METRICS.get(options.code):
        say(f"{options.code} is no metric any more: {instead}")
        return 0
    known = list(codes())
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
            say(code.name, *code.lines())
        return 0
    if not asked:
        verdicts = {v.replace(" ", "_") for code in known for v in code.verdict.split(", ")}
        names = [code.name for code in known] + sorted(filter(str.isupper, verdicts))
        shown = {name.upper(): name for name in (*names, *METRICS)}
        (nearest,) = get_close_matches(wanted, shown, n=1, cutoff=0)
        raise UsageError(
            f"{options.code!r} is no reason and no metric; the nearest is {shown[nearest]}"
        )
    for code in asked:
        say(f"{code.name} ({code.verdict})", *code.lines())
    return 0


def _plain(text: str) -> str:
    return " ".join(_LINK.sub(r"\1", text).replace("`", "").split())


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 79, initial_indent="  ", subsequent_indent="  ")
