"""What a pytest run leaves: recordings of its cases, and its documents, however it ended."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stepguard.core.margins import BUDGET_MIN
from stepguard.core.run_document import (
    PAGE_MARK,
    End,
    Options,
    Problem,
    ProblemCode,
    RunDocument,
)
from stepguard.core.status import Status
from stepguard.core.verdict import Joins
from stepguard.measure.suite import Result
from stepguard.report import document_json
from stepguard.report.markdown_page import page
from stepguard.report.metric_list import accepted_line, moves
from stepguard.report.next_steps import Commands
from stepguard.storage import run_document_file
from stepguard.storage.accept_recording import accept
from stepguard.storage.json_file import FileError

_ENDS = {
    pytest.ExitCode.USAGE_ERROR: End.REFUSED,
    pytest.ExitCode.INTERRUPTED: End.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR: End.FAILED,
}
_UNSET = (None, False, "", 0, BUDGET_MIN)


class Recorder:
    """Recordings of one run, by pytest's options. ``refused`` are what could not be recorded, which
    fails the run; ``notices`` also say what was.
    """

    def __init__(self, option: Any, commands: Commands) -> None:
        self.notices: list[str] = []
        self.refused: list[str] = []
        self._adds = option.perf_update
        self.records = bool(option.perf_update or option.perf_update_new)
        self._commands = commands

    def record(self, result: Result) -> Result:
        """Record a result if that is wanted, and return it, marked if it is recorded.
        What moved opens a level, which ``accept`` does.
        """
        verdict = result.verdict
        # A case that lacks only one of its metrics has recordings.
        first = self.records and verdict.whole and verdict.status is Status.NO_BASELINE
        more = self._adds and verdict.status is Status.SAME
        if more and verdict.joins is Joins.UNPROVEN:
            self.notices.append(f"{result.case.id}: not recorded, {verdict.joins.value}")
        elif (first or more) and self._accept(result):
            return replace(result, verdict=structs.replace(verdict, recorded=True))
        return result

    def _accept(self, result: Result) -> bool:
        try:
            pairs = result.comparison if result.verdict.against else None
            done = accept(
                result.baseline_path,
                result.evidence,
                "",
                verdict=result.verdict,
                beside=pairs.base if pairs else None,
            )
        except FileError as error:
            self.notices.append(str(error))
            self.refused.append(str(error))
            return False
        self.notices += [accepted_line(done, self._commands), *moves(done)]
        return True


def end_of(exitstatus: int) -> End:
    """Return how pytest says that a run ended."""
    return _ENDS.get(pytest.ExitCode(exitstatus), End.FINISHED)


def problems_of(exitstatus: int, unrecorded: Sequence[str], nothing: bool) -> list[Problem]:
    """Return why a run does not pass, apart from its verdicts. These reasons hold whether the run
    is strict or not. It did not end well; it should have recorded what ``unrecorded`` names; or
    ``nothing`` that was selected has a result.
    """
    problems = [Problem(ProblemCode.NOT_RECORDED, text) for text in unrecorded]
    end = end_of(exitstatus)
    if end is End.REFUSED:
        problems.append(Problem(ProblemCode.REFUSED, "pytest refused its arguments"))
    elif end is not End.FINISHED:
        why = f"the run did not finish: {end.value}"
        problems.append(Problem(ProblemCode.NOT_FINISHED, why))
    elif nothing:
        why = "no selected case came to a result"
        problems.append(Problem(ProblemCode.NOTHING_MEASURED, why))
    return problems


def options_of(config: pytest.Config) -> Options:
    """Return how pytest was called, for the document."""
    option = vars(config.option)
    return Options(
        arguments=[str(argument) for argument in config.invocation_params.args],
        environment=os.environ.get("PYTEST_ADDOPTS", ""),
        settings=[str(argument) for argument in config.getini("addopts")],
        keyword=config.option.keyword,
        markers=config.option.markexpr,
        perf={
            f"--{name.replace('_', '-')}": value
            for name, value in sorted(option.items())
            if name.startswith("perf_") and value not in _UNSET
        },
    )


def forget_documents(folder: Path, paths: Iterable[str]) -> None:
    """Remove the documents of the run before: nobody can take them for this run's."""
    for path in (folder / path for path in paths):
        with contextlib.suppress(OSError):  # a path that will be refused
            if not run_document_file.kept_from(path):
                path.unlink(missing_ok=True)


def write(targets: Mapping[str, str], folder: Path, document: RunDocument) -> list[str]:
    """Write the documents that these options name; return why one could not be, a sentence each."""
    problems = []
    for option, target in targets.items():
        path, is_json = folder / target, option == "--perf-json"
        text = document_json.as_json(document) if is_json else f"{PAGE_MARK}\n{page(document)}"
        # A path that was refused, such as a folder, is no reason to lose the other document.
        if problem := run_document_file.unwritable(path) or run_document_file.put(path, text):
            problems.append(f"{option}={target}: {problem}")
    return problems
