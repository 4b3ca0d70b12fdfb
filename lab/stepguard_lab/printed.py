"""Parts of the lab's printed pages: their width, their rows, text without its beginning."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Sequence

from stepguard.core.text import printable
from stepguard.report.progress_line import columns
from stepguard.report.table import aligned

_LEAST_TEXT = 16  # columns that a shortened text keeps; a shorter name says nothing


def page_width() -> int:
    """Return the width of printed pages: COLUMNS, the terminal's width, or 80."""
    return columns(sys.stdout)


def add_top(command: argparse.ArgumentParser, usual: int) -> None:
    """Add the option for the number of rows of a command's tables."""
    text = "rows (%(default)s)"
    command.add_argument("--top", type=_rows, default=usual, metavar="N", help=text)


def _rows(text: str) -> int:
    """Return a number of rows. Raises ArgumentTypeError for a number below 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(printable(f"{text!r}: give a number of rows, at least 1"))
    return int(text)


def end_of(text: str, width: int) -> str:
    """Return a text of at most so many columns. A longer one loses its beginning."""
    return text if len(text) <= width else f"...{text[3 - width :]}"


def fitted(
    rows: Sequence[Sequence[str]],
    width: int,
    shorten: Callable[[str, int], str],
    column: int = 0,
    left: Collection[int] = (0,),
) -> Iterator[str]:
    """Yield a table. If it is wider than ``width``, ``shorten`` makes the texts of one ``column``
    shorter.
    """
    lines = list(aligned(rows, left))
    excess = max(map(len, lines)) - width
    if excess > 0 and len(rows) > 1:
        header, *body = rows
        most = max(_LEAST_TEXT, max(len(row[column]) for row in body) - excess)
        cells = [[*row[:column], shorten(row[column], most), *row[column + 1 :]] for row in body]
        lines = list(aligned([header, *cells], left))
    yield from lines
