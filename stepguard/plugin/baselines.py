"""The folder of baselines in one pytest run: read, and refused, before anything is measured; and
what of it the run had no use for.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepguard.measure.suite import Result
from stepguard.report.waivers import described, sentences
from stepguard.storage import calibrations
from stepguard.storage.baselines import WAIVERS, files, load
from stepguard.storage.json_file import FileError
from stepguard.storage.waivers import load_waivers, today, unknown
from stepguard.waiver import Waiver


class Baselines:
    """Its files, and the cases that the collected tests ``declared``. ``option`` and ``arguments``
    are what pytest was called with.
    """

    def __init__(self, option: Any, arguments: Sequence[str], folder: Path) -> None:
        self.option, self.arguments, self.folder = option, arguments, folder
        self.declared: set[str] = set()
        self.collected_well = True  # no file failed to be collected
        self.waivers: tuple[Waiver, ...] = ()

    def check(self) -> None:
        """Read all of it. Raises FileError for what cannot be trusted, or is not there."""
        named = self.option.perf_baselines
        if not self.folder.is_dir() and named:
            raise FileError(f"--perf-baselines={named}: no such folder")
        for path in files(self.folder):
            load(path)
        calibrations.check_all(self.folder)
        self.waivers = load_waivers(self.folder, today())
        self._refuse_unknown_waivers()

    def _refuse_unknown_waivers(self) -> None:
        """A misspelt case must not wait unseen. Where a part was collected nobody knows whether
        one is: waiver_lines() says then that it was not used.
        """
        if not self._collected_whole():
            return
        if nowhere := unknown(self.folder, self.waivers, self.declared):
            raise FileError(
                f"{self.folder / WAIVERS}: neither a baseline here nor a collected test has the "
                f"case {nowhere[0]!r} of a waiver; mend its name, or take it out"
            )

    def _collected_whole(self) -> bool:
        """Whether whole folders were collected, so that a case that is not there is nowhere."""
        option = self.option
        if option.ignore or option.ignore_glob or option.deselect or getattr(option, "lf", False):
            return False
        return self.collected_well and all(Path(one).is_dir() for one in self.arguments)

    def waiver_lines(self, results: Sequence[Result]) -> list[str]:
        """Every waiver, on every run: what it did, or that its case was not measured."""
        said = {result.case.id: sentences(result.verdict) for result in results}
        lines = [f"{case_id}: waiver {text}" for case_id, texts in said.items() for text in texts]
        rest = [waiver for waiver in self.waivers if waiver.case not in said]
        return lines + [
            f"{w.case}: waiver not used, its case was not measured: {described(w)}" for w in rest
        ]

    def stale(self, results: Sequence[Result], relative: Callable[[Path], str]) -> list[str]:
        """Baseline entries that no case claims; said only when whole folders were collected.
        ``relative``: a path as the user would type it.
        """
        if not self._collected_whole():
            return []
        lines = []
        for path in sorted({result.baseline_path for result in results}):
            content = load(path)
            for case_id in sorted(set(content.cases) - self.declared if content else ()):
                lines.append(f"{relative(path)}: {case_id} has a baseline but no case")
        return lines
