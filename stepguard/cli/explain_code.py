"""The command explain-code: what the code of a reason means, and what to do about it.

    python -m stepguard explain-code NOT_STEADY
    python -m stepguard explain-code CHANGED
    python -m stepguard explain-code

Its table is docs/reason-codes.md, which an installation has, too.
"""

import argparse
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, say

PAGE = "reason-codes.md"  # a link into docs/, of which an installation has a copy
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True)
class Code:
    """A row of the table, as text."""

    name: str
    verdict: str  # or "problem of a run"
    means: str
    remedy: str


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("explain-code", help="what a reason means, and what mends it")
    command.add_argument("code", nargs="?", metavar="REASON", help="default: a list of all")
    command.set_defaults(call=_explain, root=root)


def codes() -> list[Code]:
    """Return the page's rows in order; a code may be there for a case and for a run."""
    page = resources.files("stepguard.cli").joinpath(PAGE).read_text("utf-8")
    return list(_rows(page))


def _rows(page: str) -> Iterator[Code]:
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) in (3, 4):
            name, *verdict, means, remedy = (_LINK.sub(r"\1", c).replace("`", "") for c in cells)
            yield Code(name, verdict[0] if verdict else "problem of a run", means, remedy)


def _explain(options: argparse.Namespace) -> int:
    known = codes()
    if not options.code:
        width = max(len(code.name) for code in known)
        say(*(f"{code.name:{width}}  {code.verdict}" for code in known))
        return 0
    wanted = re.sub(r"\W+", "_", options.code.strip()).upper()
    found = [code for code in known if code.name == wanted]
    verdict = wanted.replace("_", " ")
    if not found and (its := [c for c in known if verdict in c.verdict.upper().split(", ")]):
        say(f"{verdict} is a verdict; its reasons:")
        for code in its:
            say(code.name, *_both(code))
        return 0
    if not found:
        verdicts = {v.replace(" ", "_") for code in known for v in code.verdict.split(", ")}
        names = [code.name for code in known] + sorted(filter(str.isupper, verdicts))
        (nearest,) = get_close_matches(wanted, names, n=1, cutoff=0)
        raise UsageError(f"{options.code!r} is no reason; the nearest is {nearest}")
    for code in found:
        say(f"{code.name} ({code.verdict})", *_both(code))
    return 0


def _both(code: Code) -> list[str]:
    """Return what a code means and what mends it."""
    return [*_wrapped("means", code.means), *_wrapped("to do", code.remedy)]


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, 79, initial_indent=f"  {title}: ", subsequent_indent="    ")
