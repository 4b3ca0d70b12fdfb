"""--perf-update of one pytest run: what is recorded at once, what when the run is over, what never.

Counters are recorded as they come. Times wait for the last case: when all cases moved together it
was the machine, which a case alone cannot tell.
"""

import shlex
from dataclasses import replace
from typing import Protocol

from stepguard.judge.acceptance import moved_together
from stepguard.measure.suite import Result, Suite
from stepguard.metrics import METRICS
from stepguard.report.words import in_folder
from stepguard.storage.json_file import FileError
from stepguard.verdict import Reason

REASON = "accepted with --perf-update"


class Named(Protocol):
    """What a refusal wants to know of a run."""

    @property
    def python(self) -> str:
        """How this interpreter is called."""

    @property
    def reason(self) -> str:
        """Why what is recorded is right; empty where nobody said."""

    @property
    def folder(self) -> str:
        """That of the baselines, where it is not the usual one."""


class Update:
    """What was recorded in a run; ``refused`` when something could not be, which fails the run."""

    def __init__(self, run: Named) -> None:
        self.notices: list[str] = []
        self.refused = False
        self._run = run
        self._waiting: list[int] = []  # results, by their place in the run

    def record(self, suite: Suite, result: Result) -> Result:
        """Record the run's newest result, or see to it that it can be when the run is over.

        The result with its verdict marked as recorded; as it was, and a notice, when refused.
        """
        where = in_folder(self._run.folder)
        accept = f"{self._run.python} -m stepguard accept {shlex.quote(result.case.id)}{where}"
        if until := result.verdict.waived_until:
            self._refuse(
                f"{result.case.id}: not recorded, waived until {until}; to make it the level: "
                f"{accept} --reason '...'"
            )
            return result
        if result.verdict.machine_moved:
            self._refuse(
                f"{result.case.id}: not recorded, the machine's speed changed and not the code's; "
                f"if it is to be the level: {accept} --reason '...'"
            )
            return result
        timed = any(METRICS[name].kind == "time" for name in result.case.gates)
        try:
            done = self._accept(suite, result, dry=timed)
        except FileError as error:
            self._refuse(str(error))
            return result
        if timed:
            self._waiting.append(len(suite.results) - 1)
        else:
            self.notices.append(done)
        return _mark(suite, len(suite.results) - 1, recorded=True)

    def word(self, suite: Suite | None, result: Result) -> str:
        """The verdict's word, which does not call recorded what still has to wait."""
        waiting = [suite.results[index].case.id for index in self._waiting] if suite else []
        word = result.verdict.word
        return word.replace("recorded", "to be recorded") if result.case.id in waiting else word

    def record_waiting(self, suite: Suite) -> None:
        """Record what had to wait, or none of it when all cases moved together."""
        waiting, self._waiting = self._waiting, []
        verdicts = [result.verdict for result in suite.results]
        together = moved_together(verdicts, in_folder(self._run.folder))
        if waiting and together:
            names = ", ".join(suite.results[index].case.id for index in waiting)
            self._refuse(f"not recorded, {together} ({names})")
        for index in waiting:
            try:
                if not together:
                    self.notices.append(self._accept(suite, suite.results[index]))
                    continue
            except FileError as error:
                self._refuse(str(error))
            _mark(suite, index, recorded=False)

    def _accept(self, suite: Suite, result: Result, dry: bool = False) -> str:
        """Record it; what was done, and how to say why a new level is right, where nobody did."""
        first = result.verdict.reason is Reason.NOT_RECORDED
        done = suite.accept(result, self._run.reason or ("" if first else REASON), dry)
        hint = "; to say why it is right: --perf-reason='...'"
        return done + (hint if f"opened ({REASON})" in done else "")

    def _refuse(self, why: str) -> None:
        self.notices.append(why)
        self.refused = True


def _mark(suite: Suite, index: int, *, recorded: bool) -> Result:
    result = suite.results[index]
    verdict = replace(result.verdict, recorded=recorded)
    suite.results[index] = replace(result, verdict=verdict)
    return suite.results[index]
