"""Baselines and waivers that a change edits: old -> new, a line for each entry."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from stepguard.core.baseline import Entry
from stepguard.core.metrics import GATEABLE, format_value
from stepguard.core.shared_sentences import both_pct
from stepguard.core.text import short_hash
from stepguard.report.permission_text import described
from stepguard.storage import baseline_files
from stepguard.storage.waiver_file import load_waivers, today

FIGURES = 4  # shown for an entry; git's diff has all fields
NONE = "none"
Kept = TypeVar("Kept")


def changes(old: Path, new: Path) -> list[str]:
    """Return how the folder of baselines ``new`` differs from ``old``: a line for each waiver, then
    one for each case, sorted by file and case. Raises FileError if a file of either folder cannot
    be trusted.
    """
    lines: list[str] = []
    for name in _names(old, new):
        if name != baseline_files.WAIVERS:
            was, now = baseline_files.load(old / name), baseline_files.load(new / name)
            both = (was.cases if was else {}, now.cases if now else {})
            lines += _lines(name, both, _entry)
    waived = _waived(old), _waived(new)
    added = _lines(baseline_files.WAIVERS, waived, _waiver)
    return [*added, *lines]


def _waiver(old: str | None, new: str | None) -> str:
    return f"declared here: {new}" if old is None else f"{old} -> {new or NONE}"


def _names(old: Path, new: Path) -> list[str]:
    return sorted({path.name for folder in (old, new) for path in folder.glob("*.json")})


def _waived(folder: Path) -> dict[str, str]:
    waivers = load_waivers(folder, today())
    return {f"{waiver.case}, {waiver.metric}": described(waiver) for waiver in waivers}


def _lines(
    name: str,
    both: tuple[Mapping[str, Kept], Mapping[str, Kept]],
    say: Callable[[Kept | None, Kept | None], str],
) -> Iterator[str]:
    """Yield a line for each entry that differs."""
    old, new = both
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was != now:
            yield f"{name}: {key}: {say(was, now)}"


def _entry(old: Entry | None, new: Entry | None) -> str:
    """Return how a case's baseline differs: its level, and the recordings behind it."""
    if old is None or new is None:
        return f"{_level(old)} -> {_level(new)}"
    was, now = old.level, new.level
    counted = (
        ("levels", str(len(old.epochs)), str(len(new.epochs))),
        ("recordings", str(len(was.recordings)), str(len(now.recordings))),
        ("commit", *(short_hash(side.recordings[0].commit) for side in (was, now))),
        ("reason", repr(was.reason), repr(now.reason)),
        ("gates", *_apart(old.required_gates, new.required_gates)),
        ("margins", *map(both_pct, (old.margins, new.margins))),
        ("extended", str(old.extended), str(new.extended)),
    )
    parts = [*_figures(old, new), *counted]
    moved = [f"{name} {a} -> {b}" for name, a, b in parts if a != b]
    return ", ".join(moved) or "other fields, which git diff shows"


def _apart(old: frozenset[str], new: frozenset[str]) -> tuple[str, str]:
    """Return what each of the two has that the other lacks."""
    first, second = (", ".join(sorted(metrics)) or NONE for metrics in (old - new, new - old))
    return first, second


def _figures(old: Entry, new: Entry) -> list[tuple[str, str, str]]:
    """Return the judged figures that differ as name, old and new; the first FIGURES of them."""
    was, now = (entry.newest.values() for entry in (old, new))
    names = [name for name in GATEABLE if was.get(name) != now.get(name)]
    shown = [(n, format_value(n, was.get(n)), format_value(n, now.get(n))) for n in names[:FIGURES]]
    rest = len(names) - len(shown)
    return [*shown, ("other figures", "0", f"{rest} changed")] if rest else shown


def _level(entry: Entry | None) -> str:
    """Return the first two figures of a baseline; NONE without one."""
    if entry is None:
        return NONE
    values = entry.newest.values()
    names = [name for name in GATEABLE if name in values][:2]
    return "recorded, " + ", ".join(f"{name} {format_value(name, values[name])}" for name in names)
