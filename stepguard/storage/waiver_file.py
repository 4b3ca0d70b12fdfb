"""baselines/waivers.json: the waivers that people wrote, read strictly like a baseline file."""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from stepguard.core.permission import Permission
from stepguard.core.recording import BaselineFile, Count, Text
from stepguard.core.text import meant
from stepguard.judge.waiver_rules import MAX_PCT, problem_of
from stepguard.storage.baseline_files import WAIVERS, files, load
from stepguard.storage.json_file import FileError, one_at_a_time, read, save

SCHEMA = 1


class WaiverRow(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A waiver as the file has it. permission.py explains the fields."""

    case: Text
    metric: Text
    limit_pct: Annotated[float, msgspec.Meta(gt=0, le=MAX_PCT)] | None = None
    value: Count | None = None
    reason: Text
    expires: date
    who: Text


class WaiverFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file of waivers."""

    schema: int
    waivers: list[WaiverRow]


class BadWaiver(FileError):
    """A waiver that is refused before it is written."""


def today() -> date:
    """Return today's date, by which waivers expire. It is in UTC, the same on every machine."""
    return datetime.now(UTC).date()


def load_waivers(folder: Path, day: date) -> tuple[Permission, ...]:
    """Return the waivers of a folder of baselines; empty if there is no file. Raises FileError for
    a wrong one, except for its case: see unknown().
    """
    path = folder / WAIVERS
    content = read(path, WaiverFile, SCHEMA, "stepguard waive CASE --reason '...' --days N")
    rows = content.waivers if content else []
    waivers = tuple(Permission(**msgspec.structs.asdict(row)) for row in rows)
    seen: set[tuple[str, str]] = set()
    for index, waiver in enumerate(waivers):
        problem = problem_of(waiver, day)
        if _key(waiver) in seen:
            problem = problem or "there is another one of the same metric; keep one"
        seen.add(_key(waiver))
        if problem:
            where = f"waiver {index + 1} ({waiver.case}, {waiver.metric})"
            raise FileError(f"{path}, {where}: {problem}")
    return waivers


def declared(
    own: Sequence[Permission], base: Sequence[Permission], commit: str
) -> tuple[Permission, ...]:
    """Return the waivers that a change adds or edits, then those of its base."""
    added = [msgspec.structs.replace(waiver, commit=commit) for waiver in own if waiver not in base]
    edited = {_key(waiver) for waiver in added}
    return (*added, *(waiver for waiver in base if _key(waiver) not in edited))


def _key(waiver: Permission) -> tuple[str, str]:
    return waiver.case, waiver.metric


def unknown(folder: Path, waivers: Sequence[Permission], known: Collection[str]) -> list[str]:
    """Return the cases of waivers that nothing knows: typing errors."""
    recorded = _recorded(folder) if waivers else set()
    return sorted({waiver.case for waiver in waivers} - recorded - set(known))


def _recorded(folder: Path) -> set[str]:
    return {case_id for content in _baselines(folder) for case_id in content.cases}


def _baselines(folder: Path) -> Iterator[BaselineFile]:
    yield from filter(None, map(load, files(folder)))


@one_at_a_time
def remove_waivers(folder: Path, case_id: str, metric: str, day: date) -> Path:
    """Remove the case's waiver of a metric, or all ("" is any). Raises FileError without one."""
    path, waivers = folder / WAIVERS, load_waivers(folder, day)
    kept = [row for row in waivers if (row.case, metric and row.metric) != (case_id, metric)]
    if len(kept) == len(waivers):
        has = ", ".join(f"{waiver.case} {waiver.metric}" for waiver in waivers) or "none at all"
        raise FileError(f"{path}: no waiver of {f'{case_id} {metric}'.rstrip()}; it has: {has}")
    _save(path, kept)
    return path


@one_at_a_time
def add_waiver(folder: Path, waiver: Permission, day: date, known: Collection[str] = ()) -> Path:
    """Write the waiver into the folder's file, in place of one of the same metric. Raises BadWaiver
    if it breaks a rule or has no such case, FileError if load_waivers() does.
    """
    path = folder / WAIVERS
    problem = problem_of(waiver, day)
    if not problem and unknown(folder, [waiver], known):
        hint = meant(waiver.case, _recorded(folder) | set(known))
        problem = f"no baseline and no run that is kept here has this case{hint}"
    if problem:
        raise BadWaiver(f"{waiver.case}: not waived, {problem}")
    others = [row for row in load_waivers(folder, day) if _key(row) != _key(waiver)]
    # Sorted, so that a diff shows only the waiver that was written.
    _save(path, sorted([*others, waiver], key=_key))
    return path


def _save(path: Path, waivers: Sequence[Permission]) -> None:
    names = WaiverRow.__struct_fields__
    rows = [WaiverRow(**{name: getattr(row, name) for name in names}) for row in waivers]
    save(path, WaiverFile(schema=SCHEMA, waivers=rows), SCHEMA, "run the command again")
