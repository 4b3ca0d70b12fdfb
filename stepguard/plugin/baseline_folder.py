"""The folder of baselines in one pytest run: read, and refused if needed, before anything is
measured; and the entries that the run did not use.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepguard.core.baseline import Entry
from stepguard.core.permission import Permission
from stepguard.core.status import Status
from stepguard.core.text import first, meant, revision
from stepguard.machine.git.resolve import files_at, main_branch
from stepguard.machine.gpu.nvml import Gpu
from stepguard.measure.suite import Result
from stepguard.report.baseline_changes import changes
from stepguard.report.next_steps import Commands
from stepguard.report.permission_text import described, of_waivers
from stepguard.storage.baseline_files import CPU_MACHINE, WAIVERS, files, judged_by, load
from stepguard.storage.json_file import FileError
from stepguard.storage.waiver_file import load_waivers, today, unknown


@dataclass(frozen=True)
class BaseBranch:
    """The branch that a tree is merged into, if its baselines and waivers judge."""

    name: str  # as given
    commit: str  # the last commit that both have
    folder: Path  # a copy of its baselines
    changes: tuple[str, ...]  # old -> new, where this tree's differ

    def lines(self, most: int = 20) -> list[str]:
        """Return what a reader must know first; empty if the tree changes no baseline."""
        if not self.changes:
            return []
        judges = revision(self.name, self.commit)
        return [
            f"judged by the baselines and waivers of {judges}, not by this tree's, which differ; "
            "a person has to look at:",
            *first([f"  {line}" for line in self.changes], most, "  "),
        ]


def base_of(root: Path, baselines: Path, rev: str, into: Path) -> BaseBranch:
    """Return the branch ``rev``, with its baselines copied to the folder ``into``.

    Raises TreeError if git cannot tell, FileError if one of its files or of this tree's cannot be
    trusted.
    """
    main = main_branch(root, rev)
    for name, text in files_at(root, main.base, baselines).items():
        path = into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, errors="surrogateescape")
    return BaseBranch(rev, main.base, into, tuple(changes(into, baselines)))


def folders_alone(config: pytest.Config, arguments: Sequence[str] | None = None) -> bool:
    """Tell whether pytest was asked only for whole folders of tests. Each path must be below
    `testpaths`, or, without them or if they are the whole project, below a folder of the project.
    ``arguments`` are some of the paths that pytest got, instead of all.
    """
    root = config.rootpath.resolve()
    folders = {(root / path).resolve() for path in config.getini("testpaths")}
    # A path of the whole project does not say which of its folders was meant.
    if not folders or folders & {root, *root.parents}:
        folders |= {*root.iterdir()}
        folders -= {root, *root.parents}
    paths = [
        Path(argument).resolve() for argument in (config.args if arguments is None else arguments)
    ]
    return all(path.is_dir() and not folders & {*path.parents} for path in paths)


def whole_folders(config: pytest.Config) -> bool:
    """Tell whether pytest collects whole folders, with all that is in them."""
    option = config.option
    # `lf` belongs to pytest's cache plugin, which -p no:cacheprovider leaves out.
    if option.ignore or option.ignore_glob or option.deselect or getattr(option, "lf", False):
        return False
    return folders_alone(config)


def check_baselines(
    folder: Path, cases: Collection[str], whole: bool, commands: Commands
) -> tuple[Permission, ...]:
    """Read the whole folder and return its waivers. Raises FileError if something cannot be
    trusted, or if a waiver's case does not exist: a misspelt one must not stay unseen. ``cases``
    are the collected ones, and ``whole`` says that they are all there are.
    """
    # Files of other machines, too: they will be read next, and the mistake is in this tree.
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


@dataclass(frozen=True)
class Recorded:
    """A case's baseline, and the file that it is in."""

    path: Path
    entry: Entry


def recorded_here(folder: Path, gpus: Sequence[Gpu]) -> dict[str, Recorded]:
    """Return the baselines, by case, for this machine and the number of its GPUs.

    Raises FileError if a file cannot be trusted.
    """
    machine = gpus[0].name if gpus else CPU_MACHINE
    by_case: dict[str, Recorded] = {}
    for path in files(folder):
        content = load(path)
        if content is None or content.machine != machine:
            continue
        for case_id, entry in judged_by(path, content).items():
            # Cases on several nodes do not belong to this machine.
            fits = not gpus or entry.case["world_size"] <= len(gpus)
            if fits and entry.case.get("nodes", 1) == 1:
                by_case[case_id] = Recorded(path, entry)
    return by_case


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
    """Return a line for each baseline entry that none of all ``cases`` has. A case without a
    baseline and with a similar name may be its successor.
    """
    lines = []
    new = [result.case.id for result in results if result.verdict.status is Status.NO_BASELINE]
    for path in sorted({result.baseline_path for result in results}):
        content = load(path)
        for case_id in sorted(set(content.cases) - set(cases) if content else ()):
            gone = (
                f"{case_id} has a baseline but no case{meant(case_id, new, 'was it renamed to')}: "
            )
            gone += f"if it is gone for good, {commands.prune(case_id)}"
            lines.append(f"{commands.relative(path)}: {gone}")
    return lines
