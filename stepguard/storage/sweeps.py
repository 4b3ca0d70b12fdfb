"""The rows of a sweep, in a file that is written anew after each of them."""

from pathlib import Path

from stepguard.storage.json_file import read, save
from stepguard.sweep import SCHEMA, SweepFile

RENEW = "python -m stepguard sweep FILE --anew"
ROWS = "rows.json"


def load_rows(folder: Path) -> SweepFile | None:
    """Return what a sweep has so far, if anything; raises FileError as read() does."""
    return read(folder / ROWS, SweepFile, SCHEMA, RENEW)


def save_rows(folder: Path, content: SweepFile) -> None:
    """Write the rows; raises FileError where that cannot be done."""
    save(folder / ROWS, content, SCHEMA, f"the rows before are kept: {RENEW.split(' --')[0]} again")
