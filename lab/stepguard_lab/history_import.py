"""Imports a history from kept evidence, and from git's history of the baseline files."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from stepguard.core.evidence import Evidence
from stepguard.core.recording import Recording
from stepguard.core.strict_json import converted
from stepguard.core.text import short_hash
from stepguard.judge.summarise_evidence import summarise
from stepguard.machine.git.resolve import TreeError
from stepguard.machine.git.revision import git
from stepguard.storage.baseline_files import WAIVERS, machine_of
from stepguard.storage.json_file import FileError
from stepguard.storage.kept_runs import kept_files, read_evidence
from stepguard_lab.history_store import HistoryStore, Measurement, measurement_of

_FIELDS = frozenset(Recording.__struct_fields__) - {"detail", "sites", "operators", "profile"}
_LACKING: dict[str, Any] = {
    "information": {},
    "counters": {},
    "times_ms": {},
    "driver": "",
    "tokens_per_step": 0,
}


@dataclass(frozen=True)
class Imported:
    """How much an import added, and what it left out: a sentence each."""

    added: int
    left_out: tuple[str, ...] = ()


def import_evidence(store: HistoryStore, root: Path, folders: Sequence[Path]) -> Imported:
    """Add the evidence below these folders whose commits are in HEAD's history.

    A branch's own measurements are no history of main. Evidence of uncommitted code, or with a
    fault, is left out, too.
    """
    known = set((git(root, "rev-list", "HEAD") or "").split())
    measurements: list[Measurement] = []
    left_out = Counter[str]()
    for path in chain.from_iterable(kept_files(folder)[0] for folder in folders if folder.is_dir()):
        try:
            evidence = read_evidence(path)
        except FileError:
            left_out["cannot be read"] += 1
            continue
        if why := _unfit(evidence, known):
            left_out[why] += 1
        else:
            figures, machine = summarise(evidence), machine_of(evidence)
            measurements.append(measurement_of(figures, evidence.case_id, machine, evidence.case))
    texts = [f"kept measurements left out: {count}, {why}" for why, count in left_out.items()]
    return Imported(store.add(measurements), tuple(texts))


def _unfit(evidence: Evidence, known: set[str]) -> str:
    if evidence.faults or not evidence.launches or evidence.fingerprint is None:
        return "not measured to the end"
    if evidence.of_no_commit:
        return "of code that is in no commit"
    if evidence.commit not in known:
        return "of a commit that HEAD's history does not have"
    return ""


def import_baselines(store: HistoryStore, root: Path, folder: Path) -> Imported:
    """Add every recording that a baseline file of ``folder`` has, or had at a commit of HEAD's
    history. Each version of a file is read once. Raises TreeError where git fails.
    """
    versions = _versions(root, folder)
    fresh = [version for version in versions if version not in store.read_versions()]
    added = unreadable = 0
    for version in fresh:
        text = git(root, "cat-file", "blob", version)
        if text is None:
            raise TreeError(
                f"git cannot read {versions[version]} ({short_hash(version)}): git fsck"
            )
        try:
            added += store.add(recorded_in(text))
        except ValueError:  # an early or broken version, which was replaced since
            unreadable += 1
    store.note_read(fresh)
    what = f"{unreadable} versions of baseline files left out: no recordings that can be read"
    return Imported(added, (what,) if unreadable else ())


def _versions(root: Path, folder: Path) -> dict[str, str]:
    """Return the path of every version of a baseline file that HEAD's history has, by its hash."""
    prefix = (git(folder, "rev-parse", "--show-prefix") or "").rstrip("\n")
    listed = git(root, "rev-list", "--objects", "HEAD", "--", str(folder.resolve())) or ""
    pairs = (line.partition(" ") for line in listed.splitlines())
    files = {version: path.removeprefix(prefix) for version, _, path in pairs}
    return {
        version: path
        for version, path in files.items()
        if path.endswith(".json") and "/" not in path and path != WAIVERS
    }


class _Level(msgspec.Struct, frozen=True):
    """A level of a baseline file of any version; other fields are not read."""

    reason: str
    recordings: list[dict[str, Any]]


class _Entry(msgspec.Struct, frozen=True):
    case: dict[str, Any]
    epochs: list[_Level]


class _File(msgspec.Struct, frozen=True):
    machine: str
    cases: dict[str, _Entry]


def recorded_in(text: str) -> list[Measurement]:
    """Return the recordings of a baseline file of any version, without the parts that a history
    does not show. Raises ValueError for a file that holds none.
    """
    file = converted(json.loads(text), _File)
    return [
        measurement_of(
            _recording(raw),
            case_id,
            file.machine,
            entry.case,
            reason="" if number else level.reason,
        )
        for case_id, entry in file.cases.items()
        for level in entry.epochs
        for number, raw in enumerate(level.recordings)
    ]


def _recording(raw: dict[str, Any]) -> Recording:
    """Return a recording of any version: fields of earlier ones are dropped, and those that they
    lacked are empty.
    """
    known = {name: value for name, value in raw.items() if name in _FIELDS}
    return converted(_LACKING | known | {"detail": {}}, Recording)
