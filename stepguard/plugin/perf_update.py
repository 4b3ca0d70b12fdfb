"""Record results of a pytest run with --perf-update, --perf-update-new or --perf-append.

A case that gates only counters is recorded as soon as it is measured. A case that gates a time
waits for the end of the run: if the times of all cases moved together, the machine is the cause,
and a single case cannot show that.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.status import Status
from stepguard.core.verdict import Joins, Verdict
from stepguard.judge.refuse_recording import moved_together
from stepguard.measure.suite import Result
from stepguard.report.metric_list import accepted_line, moves
from stepguard.report.next_steps import Commands
from stepguard.storage.accept_recording import Action, Declined, accept
from stepguard.storage.json_file import FileError, restore

DEFAULT_REASON = "accepted with --perf-update"


class Recorder:
    """Recordings of one run, and the results that still wait. ``option`` has the values of pytest's
    options.

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
        self._waiting: list[Result] = []

    def record(self, result: Result) -> None:
        """Record a result if that is wanted, or keep it until the end of the run."""
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
        elif JUDGED_TIME in result.case.gates:
            # Tried now: if the recording is refused, the word beside the test already shows that,
            # and not only the run's summary.
            if self._accept(result, dry=True):
                self._waiting.append(result)
                self._recorded.add(case_id)
        elif self._accept(result):
            self._recorded.add(case_id)

    def record_waiting(self, verdicts: Sequence[Verdict]) -> None:
        """Record the results that waited. Record none of them if all ``verdicts`` of the run moved
        together.
        """
        waiting, self._waiting = self._waiting, []
        accept = self._commands.called(f"stepguard accept{self._commands.in_folder()}")
        together = moved_together(verdicts, accept)
        if waiting and together:
            names = ", ".join(result.case.id for result in waiting)
            self._refuse(f"not recorded, {together} ({names})")
        for result in waiting:
            if together or not self._accept(result):
                self._recorded.discard(result.case.id)

    def marked(self, result: Result) -> Result:
        """Return the result. Its verdict is marked if the result is recorded, or waits for that."""
        if result.case.id not in self._recorded:
            return result
        return replace(result, verdict=structs.replace(result.verdict, recorded=True))

    def word(self, result: Result) -> str:
        """Return the verdict's word for pytest's output. While a result waits, its word does not
        say that it is recorded.
        """
        verdict = result.verdict
        if all(waiting.case.id != result.case.id for waiting in self._waiting):
            return verdict.word
        if verdict.status is Status.SAME:
            return verdict.label
        first = verdict.status is Status.NO_BASELINE
        return "to be recorded" if first else f"{verdict.status.value} (to be recorded)"

    def _accept(self, result: Result, dry: bool = False) -> bool:
        """Record a result; with ``dry`` only find out whether that is possible. Return whether it
        was, or could be, recorded.
        """
        first, joins = _lacks_recordings(result.verdict), result.verdict.joins
        moved = joins is Joins.MACHINE
        appends = not (self._all or first)  # only adds to the level that exists
        # Without a reason accept() opens no level. If only the machine moved, another card may join
        # the code's level, and a bad day of a recorded card is refused.
        reason = "" if moved or appends else self._reason or ("" if first else DEFAULT_REASON)
        try:
            done = accept(result.baseline_path, result.evidence, reason, dry, joins=joins)
        except FileError as error:
            why = "not recorded, the machine changed, not the code: " if moved else ""
            if appends and isinstance(error, Declined) and moved:
                # The case passes, but this result does not belong to the recorded level.
                self.notices.append(f"{why}{error}")
            else:
                self._refuse(f"{why}{error}")
            return False
        if not dry:
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
