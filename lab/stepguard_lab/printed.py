"""Parts of the lab's printed pages: their width, their rows, text without its beginning."""

import argparse
import sys

from stepguard.core.text import printable
from stepguard.report.progress_line import columns


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
