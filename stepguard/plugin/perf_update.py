"""Record results of a pytest run with --perf-update or --perf-update-new.

A result is recorded as soon as it is measured.
"""

from dataclasses import replace
from typing import Any

from msgspec import structs

from stepguard.core.status import Status
from stepguard.core.verdict import Joins
from stepguard.measure.suite import Result
from stepguard.report.metric_list import accepted_line, moves
from stepguard.report.next_steps import Commands
from stepguard.storage.accept_recording import accept
from stepguard.storage.json_file import FileError


class Recorder:
    """Recordings of one run. ``option`` has the values of pytest's options.

    ``refused`` are sentences on what could not be recorded; they fail the run. ``notices`` are the
    same sentences, and lines on what was recorded.
    """

    def __init__(self, option: Any, commands: Commands) -> None:
        self.notices: list[str] = []
        self.refused: list[str] = []
        self._adds = option.perf_update
        self.records = bool(option.perf_update or option.perf_update_new)
        self._commands = commands
        self._recorded: set[str] = set()  # case ids

    def record(self, result: Result) -> None:
        """Record a result if that is wanted: the first one of its case, or one that is `same`. What
        moved opens a level, which only ``accept`` does.
        """
        verdict = result.verdict
        # A case that lacks only one of its metrics has recordings.
        first = self.records and verdict.whole and verdict.status is Status.NO_BASELINE
        more = self._adds and verdict.status is Status.SAME
        if more and verdict.joins is Joins.UNPROVEN:
            self.notices.append(f"{result.case.id}: not recorded, {verdict.joins.value}")
        elif (first or more) and self._accept(result):
            self._recorded.add(result.case.id)

    def marked(self, result: Result) -> Result:
        """Return the result. Its verdict is marked if the result is recorded."""
        if result.case.id not in self._recorded:
            return result
        return replace(result, verdict=structs.replace(result.verdict, recorded=True))

    def _accept(self, result: Result) -> bool:
        """Record a result. Return whether it was recorded."""
        try:
            done = accept(result.baseline_path, result.evidence, "", verdict=result.verdict)
        except FileError as error:
            self.notices.append(str(error))
            self.refused.append(str(error))
            return False
        self.notices += [accepted_line(done, self._commands), *moves(done)]
        return True
