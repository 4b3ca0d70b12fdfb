"""Read and check the folder of baselines before a pytest run measures. Report what
the tree changes in it, a line for each entry, old -> new, and what the run did not use.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from stepguard.core import former
from stepguard.core.case import Case
from stepguard.core.metrics import GATEABLE, format_value
from stepguard.core.permission import Permission
from stepguard.core.reason_sentences import both_pct
from stepguard.core.recording import Entry
from stepguard.core.status import Status
from stepguard.core.text import first, listed, meant, revision, short_hash
from stepguard.machine.git.resolve import files_at, main_branch
from stepguard.machine.gpu import Gpu
from stepguard.measure.suite import Result
from stepguard.report.metric_notes import described, of_waivers
from stepguard.report.next_steps import Commands
from stepguard.storage.baseline_files import (
    CPU_MACHINE,
    WAIVERS,
    files,
    load,
    load_waivers,
    recorded,
    today,
    unknown,
)
from stepguard.storage.json_file import FileError, contents


@dataclass(frozen=True)
class BaseBranch:
    """The branch that a tree is merged into, if its baselines and waivers judge."""

    name: str  # as given
    commit: str  # the last commit that the branch and the tree share
    folder: Path  # a copy of its baselines
    changes: tuple[str, ...]  # where this tree's baselines and waivers differ: old -> new

    def lines(self) -> list[str]:
        """Return the branch that judges, and its first changes; empty without changes."""
        if not self.changes:
            return []
        judges = revision(self.name, self.commit)
        return [
            f"judged by the baselines and waivers of {judges}, and by waivers that this tree adds; "
            "its other edits do not judge; a person has to look at:",
            *first([f"  {line}" for line in self.changes], 20, "  "),
        ]


def base_of(root: Path, baselines: Path, rev: str, into: Path) -> BaseBranch:
    """Return the branch ``rev``, with its baselines copied to ``into``. Raises TreeError if git
    lacks it, FileError if a baseline file cannot be trusted.
    """
    main = main_branch(root, rev)
    for name, text in files_at(root, main.base, baselines).items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, errors="surrogateescape")
    return BaseBranch(rev, main.base, into, tuple(changes(into, baselines)))


def folders_alone(config: pytest.Config, arguments: Sequence[str]) -> bool:
    """Tell whether these paths, of pytest's arguments, are only whole folders of tests. A file is
    only a part, and so is a folder inside a folder of `testpaths`. If `testpaths` is empty or names
    the whole project, a folder inside any folder of the project is a part.
    """
    root = config.rootpath.resolve()
    folders = {(root / path).resolve() for path in config.getini("testpaths")}
    # `testpaths` that name the whole project do not say which of its folders has the tests.
    if not folders or folders & {root, *root.parents}:
        folders |= {*root.iterdir()}
        folders -= {root, *root.parents}
    paths = [Path(argument).resolve() for argument in arguments]
    return all(path.is_dir() and not folders & {*path.parents} for path in paths)


def whole_folders(config: pytest.Config) -> bool:
    """Tell whether pytest collects whole folders, with all that is in them."""
    option = config.option
    # `lf` belongs to pytest's cache plugin, which -p no:cacheprovider leaves out.
    if option.ignore or option.ignore_glob or option.deselect or getattr(option, "lf", False):
        return False
    return folders_alone(config, config.args)


def check_baselines(
    folder: Path, cases: Collection[str], whole: bool, commands: Commands
) -> tuple[Permission, ...]:
    """Read the whole folder and return its waivers. Raises FileError if a file cannot be trusted,
    or if a waiver's case is none of ``cases`` and these are the ``whole``: it may be misspelt.
    """
    # Also files of other machines: otherwise a mistake in this tree would show only there.
    for path in files(folder):
        load(path)
    waivers = load_waivers(folder, today())
    # If only a part was collected, it is unknown which cases exist. waiver_lines() then says that a
    # waiver was not used.
    if whole and (nowhere := unknown(folder, waivers, cases)):
        raise FileError(
            f"{folder / WAIVERS}: a waiver names {nowhere[0]!r}, which is no case of a baseline "
            "here or of a collected test; correct its name, or remove it: "
            f"{commands.unwaive(next(waiver for waiver in waivers if waiver.case == nowhere[0]))}"
        )
    return waivers


def former_lines(folder: Path, cases: Iterable[Case], machine: str) -> list[str]:
    """Return lines on former metrics that a case gates, or that the machine's files have."""
    gated: dict[str, list[str]] = {}
    for case in cases:
        for name in case.former_gates:
            gated.setdefault(name, []).append(case.id)
    instead = {**former.METRICS, **former.GATES}
    lines = [
        f"{name} is not gated any more, ignored in {listed(ids, 3)}: {instead[name]}"
        for name, ids in gated.items()
    ]
    texts = {path: contents(path) or b"" for path in (*files(folder), folder / WAIVERS)}
    known = {path: named for path, text in texts.items() if (named := former.named_in(text))}
    found = {path.name: named for path, named in known.items() if _is_of(path, machine)}
    if found:
        names = list(dict.fromkeys(name for named in found.values() for name in named))
        lines.append(f"ignored in {listed([*found], 3)}, no metrics any more: {', '.join(names)}")
    return lines


def _is_of(path: Path, machine: str) -> bool:
    content = None if path.name == WAIVERS else load(path)
    return content is None or content.machine == machine


def recorded_here(folder: Path, gpus: Sequence[Gpu]) -> dict[str, Entry]:
    """Return this machine's baselines by case, for at most as many GPUs. Raises FileError."""
    entries = recorded(folder).get(gpus[0].name if gpus else CPU_MACHINE, {})
    return {
        case_id: entry
        for case_id, entry in entries.items()
        # Cases on several nodes do not belong to this machine.
        if entry.case.get("nodes", 1) == 1 and (not gpus or entry.case["world_size"] <= len(gpus))
    }


def waiver_lines(
    waivers: Sequence[Permission], results: Sequence[Result], commands: Commands
) -> list[str]:
    """Return a line for each waiver: its effect, or that its case was not measured."""
    used = {result.case.id: of_waivers(result.verdict, commands) for result in results}
    lines = [f"{case_id}: {text}" for case_id, texts in used.items() for text in texts]
    return lines + [
        f"{waiver.case}: waiver not used, its case was not measured: {described(waiver)}"
        for waiver in waivers
        if waiver.case not in used
    ]


def stale_lines(cases: Collection[str], results: Sequence[Result], commands: Commands) -> list[str]:
    """Return a line for each baseline entry whose case is not among all ``cases``, with a new case
    of a similar name.
    """
    lines = []
    new = [result.case.id for result in results if result.verdict.status is Status.NO_BASELINE]
    for path in sorted({result.baseline_path for result in results}):
        content = load(path)
        for case_id in sorted(set(content.cases) - set(cases) if content else ()):
            renamed = meant(case_id, new, "was it renamed to")
            gone = f"{case_id} has a baseline but no case{renamed}: "
            gone += "if it is gone for good, take its entry out of the file"
            lines.append(f"{commands.relative(path)}: {gone}")
    return lines


FIGURES = 4  # shown for an entry; git's diff has all fields
NONE = "none"
Kept = TypeVar("Kept")


def changes(old: Path, new: Path) -> list[str]:
    """Return how the folder ``new`` differs from ``old``: a line for each waiver, then one for each
    case. Raises FileError.
    """
    lines: list[str] = []
    for name in sorted({path.name for folder in (old, new) for path in files(folder)}):
        was, now = load(old / name), load(new / name)
        lines += _lines(name, was.cases if was else {}, now.cases if now else {}, _entry)
    return [*_lines(WAIVERS, _waived(old), _waived(new), _waiver), *lines]


def _waiver(old: str | None, new: str | None) -> str:
    return f"declared here: {new}" if old is None else f"{old} -> {new or NONE}"


def _waived(folder: Path) -> dict[str, str]:
    waivers = load_waivers(folder, today())
    return {f"{waiver.case}, {waiver.metric}": described(waiver) for waiver in waivers}


def _lines(
    name: str,
    old: Mapping[str, Kept],
    new: Mapping[str, Kept],
    say: Callable[[Kept | None, Kept | None], str],
) -> Iterator[str]:
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
    first, second = (", ".join(sorted(metrics)) or NONE for metrics in (old - new, new - old))
    return first, second


def _figures(old: Entry, new: Entry) -> list[tuple[str, str, str]]:
    was, now = (entry.newest.values() for entry in (old, new))
    names = [name for name in GATEABLE if was.get(name) != now.get(name)]
    shown = [(n, format_value(n, was.get(n)), format_value(n, now.get(n))) for n in names[:FIGURES]]
    rest = len(names) - len(shown)
    return [*shown, ("other figures", "0", f"{rest} changed")] if rest else shown


def _level(entry: Entry | None) -> str:
    if entry is None:
        return NONE
    values = entry.newest.values()
    names = [name for name in GATEABLE if name in values][:2]
    return "recorded, " + ", ".join(f"{name} {format_value(name, values[name])}" for name in names)
