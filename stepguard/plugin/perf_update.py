"""Record results of a pytest run with --perf-update, --perf-update-new or --perf-append.

A result is recorded as soon as it is measured.
"""

from dataclasses import replace
from typing import Any

from msgspec import structs

from stepguard.core.status import Status
from stepguard.core.verdict import Joins, Verdict
from stepguard.measure.suite import Result
from stepguard.report.metric_list import accepted_line, moves
from stepguard.report.next_steps import Commands
from stepguard.storage.accept_recording import Action, accept
from stepguard.storage.json_file import FileError, restore

DEFAULT_REASON = "accepted with --perf-update"


class Recorder:
    """Recordings of one run. ``option`` has the values of pytest's options.

    ``refused`` are sentences on what could not be recorded; they fail the run. ``notices`` are the
    same sentences, and lines on what was recorded.
    """

    def __init__(self, option: Any, commands: Commands) -> None:
        self.notices: list[str] = []
        self.refused: list[str] = []
        self._all, self._new = option.perf_update, option.perf_update_new
        self._append = option.perf_append
        self._reason, self._commands = option.perf_reason or "", commands
        self._recorded: set[str] = set()  # case ids

    def record(self, result: Result) -> None:
        """Record a result if that is wanted."""
        verdict, case_id = result.verdict, result.case.id
        first = self._new and _lacks_recordings(verdict)
        more = self._append and verdict.status is Status.SAME
        if not (self._all or first or more):
            return
        if more and not self._all and verdict.joins is Joins.UNPROVEN:
            self.notices.append(f"{case_id}: not recorded, {verdict.joins.value}")
            return
        level = f"to make it the level: {self._commands.accept(case_id)} --reason '...'"
        if until := verdict.waived_until:
            self._refuse(f"{case_id}: not recorded, waived until {until}; {level}")
        elif self._accept(result):
            self._recorded.add(case_id)

    def marked(self, result: Result) -> Result:
        """Return the result. Its verdict is marked if the result is recorded."""
        if result.case.id not in self._recorded:
            return result
        return replace(result, verdict=structs.replace(result.verdict, recorded=True))

    def _accept(self, result: Result) -> bool:
        """Record a result. Return whether it was recorded."""
        first = _lacks_recordings(result.verdict)
        appends = not (self._all or first)  # only adds to the level that exists
        # Without a reason accept() opens no level. A time that is not the code's is none by itself.
        unproven = result.verdict.joins is Joins.UNPROVEN
        unsaid = first or unproven or result.verdict.status is Status.INCONCLUSIVE
        reason = "" if appends else self._reason or ("" if unsaid else DEFAULT_REASON)
        try:
            done = accept(result.baseline_path, result.evidence, reason, verdict=result.verdict)
        except FileError as error:
            self._refuse(str(error))
            return False
        unexplained = done.action is Action.EPOCH_OPENED and not self._reason
        path, hint = result.baseline_path, ""
        if unexplained:
            undo = restore(path, self._commands.relative(path))
            hint = f"; to say why it is right, {undo}, then add --perf-reason='...'"
        self.notices += [accepted_line(done, self._commands) + hint, *moves(done)]
        return True

    def _refuse(self, notice: str) -> None:
        self.notices.append(notice)
        self.refused.append(notice)


def _lacks_recordings(verdict: Verdict) -> bool:
    """Tell whether the case has no recording: not one of its metrics alone."""
    return verdict.whole and verdict.status is Status.NO_BASELINE
