"""The folder of baselines: which file has a machine's figures, and what it may contain. Beside them
waivers.json has the waivers that people wrote. All are read strictly.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stepguard.core.case import from_dict
from stepguard.core.device import is_gpu
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import METRICS
from stepguard.core.permission import Permission
from stepguard.core.recording import SCHEMA, BaselineFile, Count, Entry, Recording, Text
from stepguard.core.strict_json import DocumentPart
from stepguard.core.text import meant
from stepguard.judge.compare_profiles import restored
from stepguard.judge.waiver_rules import MAX_PCT, problem_of
from stepguard.machine.interpreter import as_typed
from stepguard.storage.json_file import FileError, one_at_a_time, read, restore
from stepguard.storage.json_file import save as save_json

CPU_MACHINE = "CPU"
WAIVERS = "waivers.json"  # in the same folder as the baseline files, but not one of them
WAIVERS_SCHEMA = 1
# Tables of a recording, each with the kind that the metrics in it must have.
_KINDS = {"times_ms": "time", "counters": "counter", "sites": "counter"}
_FEWEST_STEPS = 2  # that a list has: a count of one step has none
_KINDS |= {"differences_pct": "difference"}


def file_name(device: str, device_name: str, world_size: int, nodes: int = 1) -> str:
    """Return a machine's file name: "h100-80gb-hbm3x1.json", "cpu.json", by the ranks of a node."""
    over = f"-{nodes}-nodes" if nodes > 1 else ""
    if not is_gpu(device):
        return f"cpu{over}.json"
    words = re.findall(r"[a-z0-9]+", device_name.lower().replace("nvidia", ""))
    return f"{'-'.join(words)}x{world_size}{over}.json"


def name_of(case: Mapping[str, Any], machine: str) -> str:
    """Return the name of the file for a case as a baseline describes it."""
    return file_name(case["device"], machine, case["world_size"], case.get("nodes", 1))


def path_of(folder: Path, evidence: Evidence) -> Path:
    """Return the file in ``folder`` for the evidence."""
    return folder / name_of(evidence.case, machine_of(evidence))


def usual(root: Path) -> Path:
    """Return the usual folder of baselines, relative to the current folder."""
    return Path(os.path.relpath(root / "baselines"))


def files(folder: Path) -> list[Path]:
    """Return the baseline files of a folder, sorted by name."""
    return [path for path in sorted(folder.glob("*.json")) if path.name != WAIVERS]


def recorded(folder: Path) -> dict[str, dict[str, Entry]]:
    """Return what is recorded in a folder, by machine and case. Raises FileError."""
    by_machine: dict[str, dict[str, Entry]] = {}
    for path in files(folder):
        if content := load(path):
            entries = by_machine.setdefault(content.machine, {})
            for case_id, entry in content.cases.items():
                if name_of(entry.case, content.machine) == path.name:  # a copy judges nothing
                    entries[case_id] = entry
    return by_machine


def load(path: Path) -> BaselineFile | None:
    """Return the file's content, or None. Raises FileError if it is no baseline file."""
    return read(path, BaselineFile, SCHEMA, "pytest perf_tests --perf-update", _problems)


def machine_of(evidence: Evidence) -> str:
    """Return the kind of machine of the evidence, as a baseline file names it."""
    if not evidence.on_gpu:
        return CPU_MACHINE
    return evidence.fingerprint.device_name if evidence.fingerprint else ""


def load_for(path: Path, machine: str) -> BaselineFile | None:
    """Return the file's content, or None. Raises FileError, also for another machine's."""
    content = load(path)
    if content is not None and content.machine != machine:
        other = f"holds figures of {content.machine!r}, not of {machine!r}"
        raise FileError(f"{path}: {other}; {restore(path)}")
    return content


def _problems(content: BaselineFile) -> Iterator[str]:
    for case_id, entry in content.cases.items():
        yield from (f"{case_id}: {problem}" for problem in _problems_of_entry(entry))


def _problems_of_entry(entry: Entry) -> Iterator[str]:
    try:
        from_dict(entry.case, tuple(entry.gates), tuple(entry.margins_pct))
    except ValueError as error:
        yield str(error)
        return
    ranks = entry.case.get("world_size", 1)
    # Only the newest recording must have by_rank: older ones may date from before it was counted.
    if ranks != 1 and entry.newest.by_rank is msgspec.UNSET:
        yield (
            "the newest recording lacks by_rank, without which a rank hides behind the busiest one"
        )
    for epoch in entry.epochs:
        for recording in epoch.recordings:
            yield from _problems_of_recording(recording, ranks)


def _problems_of_recording(recording: Recording, ranks: int) -> Iterator[str]:
    for field, kind in _KINDS.items():
        for name in getattr(recording, field):
            if name not in METRICS or METRICS[name].kind != kind:
                yield f"{field} has {name!r}, which is no metric of the kind {kind!r}"
    for name, values in recording.times_ms.items():
        if not values:
            yield f"{name} has no values"
    for name, sites in recording.sites.items():
        if lowest := [site for site in sites if site.count < 1]:
            yield f"{name} has a site with the count {lowest[0].count}, at least 1 is needed"
    try:
        if recording.profile is not msgspec.UNSET:
            restored(recording.profile)
    except ValueError as error:
        yield str(error)
    for name, steps in recording.differing_steps().items():
        if name not in recording.counters:
            yield f"lists has {name!r}, which counters has not"
        elif len(steps) < _FEWEST_STEPS:
            yield f"lists has {len(steps)} counts of {name!r}, at least {_FEWEST_STEPS} are needed"
    for name, counts in recording.differing_ranks().items():
        if name not in recording.counters:
            yield f"by_rank has {name!r}, which counters has not"
        elif len(counts) != ranks:
            yield f"by_rank of {name!r} has {len(counts)} counts for {ranks} ranks"


def save(path: Path, content: BaselineFile) -> None:
    """Write a baseline file. Raises FileError, and leaves the old one, if that fails."""
    remedy = f"the evidence is kept: {as_typed('stepguard accept')}, once it can be written"
    save_json(path, content, SCHEMA, remedy, _problems)


class WaiverRow(DocumentPart, frozen=True, kw_only=True, omit_defaults=True):
    """A waiver as the file has it. permission.py explains the fields."""

    case: Text
    metric: Text
    limit_pct: Annotated[float, msgspec.Meta(gt=0, le=MAX_PCT)] | None = None
    value: Count | None = None
    reason: Text
    expires: date
    who: Text


class WaiverFile(DocumentPart, frozen=True, kw_only=True):
    """The whole file of waivers."""

    schema: int
    waivers: list[WaiverRow]


def today() -> date:
    """Return today's date, by which waivers expire. It is in UTC, the same on every machine."""
    return datetime.now(UTC).date()


def load_waivers(folder: Path, day: date) -> tuple[Permission, ...]:
    """Return the waivers of a folder of baselines; empty if there is no file. Raises FileError for
    a wrong one, except for its case: see unknown().
    """
    path = folder / WAIVERS
    content = read(path, WaiverFile, WAIVERS_SCHEMA, "stepguard waive CASE --reason '...' --days N")
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
    contents = filter(None, map(load, files(folder)))
    return {case_id for content in contents for case_id in content.cases}


@one_at_a_time
def remove_waivers(folder: Path, case_id: str, metric: str, day: date) -> Path:
    """Remove the case's waiver of a metric, or all ("" is any). Raises FileError without one."""
    path, waivers = folder / WAIVERS, load_waivers(folder, day)
    kept = [row for row in waivers if (row.case, metric and row.metric) != (case_id, metric)]
    if len(kept) == len(waivers):
        has = ", ".join(f"{waiver.case} {waiver.metric}" for waiver in waivers) or "none at all"
        raise FileError(f"{path}: no waiver of {f'{case_id} {metric}'.rstrip()}; it has: {has}")
    _save_waivers(path, kept)
    return path


@one_at_a_time
def add_waiver(folder: Path, waiver: Permission, day: date, known: Collection[str] = ()) -> Path:
    """Write the waiver into the folder's file, in place of one of the same metric. Raises
    ValueError if it breaks a rule or has no such case, FileError if load_waivers() does.
    """
    path = folder / WAIVERS
    problem = problem_of(waiver, day)
    if not problem and unknown(folder, [waiver], known):
        hint = meant(waiver.case, _recorded(folder) | set(known))
        problem = f"no baseline and no run that is kept here has this case{hint}"
    if problem:
        raise ValueError(f"{waiver.case}: not waived, {problem}")
    others = [row for row in load_waivers(folder, day) if _key(row) != _key(waiver)]
    # Sorted, so that a diff shows only the waiver that was written.
    _save_waivers(path, sorted([*others, waiver], key=_key))
    return path


def _save_waivers(path: Path, waivers: Sequence[Permission]) -> None:
    names = WaiverRow.__struct_fields__
    rows = [WaiverRow(**{name: getattr(row, name) for name in names}) for row in waivers]
    content = WaiverFile(schema=WAIVERS_SCHEMA, waivers=rows)
    save_json(path, content, WAIVERS_SCHEMA, "run the command again")
