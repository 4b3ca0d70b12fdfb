"""The folder of baselines in one pytest run: read, and refused, before anything is measured; and
what of it the run had no use for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepguard.measure.suite import Result
from stepguard.report.waivers import described, sentences
from stepguard.storage import calibrations
from stepguard.storage.baselines import WAIVERS, files, load
from stepguard.storage.json_file import FileError
from stepguard.storage.waivers import load_waivers, today, unknown
from stepguard.waiver import Waiver


@dataclass(frozen=True)
class Collected:
    """The cases that pytest collected, before any was deselected."""

    cases: frozenset[str] = frozenset()  # their ids
    whole: bool = False  # of whole folders, so that a case that is not there is nowhere


def whole_folders(option: Any, arguments: Sequence[str]) -> bool:
    """Tell whether pytest, called with these, collects whole folders."""
    # `lf` is of pytest's cache plugin, which -p no:cacheprovider leaves out.
    if option.ignore or option.ignore_glob or option.deselect or getattr(option, "lf", False):
        return False
    return all(Path(argument).is_dir() for argument in arguments)


def check_baselines(folder: Path, collected: Collected) -> tuple[Waiver, ...]:
    """Read all of the folder and return its waivers. Raises FileError for what cannot be
    trusted, and for a waiver of a case that is nowhere: a misspelt one must not wait unseen.
    """
    # Those of other machines, too: they will be read next, and the mistake is in this tree.
    for path in files(folder):
        load(path)
    calibrations.check_all(folder)
    waivers = load_waivers(folder, today())
    # Where a part was collected nobody knows which cases there are: waiver_lines() says then that
    # a waiver was not used.
    if collected.whole and (nowhere := unknown(folder, waivers, collected.cases)):
        raise FileError(
            f"{folder / WAIVERS}: a waiver names {nowhere[0]!r}, which is no case of a baseline "
            "here or of a collected test; correct its name, or remove the waiver"
        )
    return waivers


def waiver_lines(waivers: Sequence[Waiver], results: Sequence[Result]) -> list[str]:
    """Return a line for every waiver: what it did, or that its case was not measured."""
    used = {result.case.id: sentences(result.verdict) for result in results}
    lines = [f"{case_id}: waiver {text}" for case_id, texts in used.items() for text in texts]
    return lines + [
        f"{waiver.case}: waiver not used, its case was not measured: {described(waiver)}"
        for waiver in waivers
        if waiver.case not in used
    ]


def stale_lines(
    collected: Collected, results: Sequence[Result], relative: Callable[[Path], str]
) -> list[str]:
    """Return a line for every baseline entry that no case claims, if whole folders were collected.
    ``relative`` turns a path into what the user would type.
    """
    if not collected.whole:
        return []
    lines = []
    for path in sorted({result.baseline_path for result in results}):
        content = load(path)
        for case_id in sorted(set(content.cases) - collected.cases if content else ()):
            lines.append(f"{relative(path)}: {case_id} has a baseline but no case")
    return lines
