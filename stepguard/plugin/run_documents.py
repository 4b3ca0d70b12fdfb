"""Make and write the document of one pytest run, however the run ended."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stepguard.core.margins import BUDGET_MIN
from stepguard.core.permission import Permission
from stepguard.core.run_document import (
    PAGE_MARK,
    SCHEMA,
    End,
    GpuDocument,
    Options,
    Problem,
    ProblemCode,
    RunDocument,
)
from stepguard.machine.git.revision import Revision
from stepguard.machine.gpu import Gpu
from stepguard.measure.suite import Result
from stepguard.report import document_json
from stepguard.report.markdown_page import page
from stepguard.report.next_steps import Commands
from stepguard.storage import run_document_file
from stepguard.storage.baseline_files import CPU_MACHINE

_ENDS = {
    pytest.ExitCode.USAGE_ERROR: End.REFUSED,
    pytest.ExitCode.INTERRUPTED: End.INTERRUPTED,
    pytest.ExitCode.INTERNAL_ERROR: End.FAILED,
}
_UNSET = (None, False, "", 0, BUDGET_MIN)


def _end_of(exitstatus: int) -> End:
    return _ENDS.get(pytest.ExitCode(exitstatus), End.FINISHED)


def problems_of(exitstatus: int, unrecorded: Sequence[str], nothing: bool) -> list[Problem]:
    """Return why a run does not pass, apart from its verdicts. These reasons hold whether the run
    is strict or not. It did not end well; it should have recorded what ``unrecorded`` names; or
    ``nothing`` that was selected has a result.
    """
    problems = [Problem(ProblemCode.NOT_RECORDED, text) for text in unrecorded]
    end = _end_of(exitstatus)
    if end is End.REFUSED:
        problems.append(Problem(ProblemCode.REFUSED, "pytest refused its arguments"))
    elif end is not End.FINISHED:
        why = f"the run did not finish: {end.value}"
        problems.append(Problem(ProblemCode.NOT_FINISHED, why))
    elif nothing:
        why = "no selected case came to a result"
        problems.append(Problem(ProblemCode.NOTHING_MEASURED, why))
    return problems


def run_document(
    config: pytest.Config,
    exitstatus: int,
    commands: Commands,
    *,
    began: datetime,
    revision: Revision,
    gpus: tuple[Gpu, ...] | None,
    baselines: Path,
    problems: list[Problem],
    results: Sequence[Result],
    waivers: Sequence[Permission],
    **others: Any,
) -> RunDocument:
    """Return the document of a run. ``gpus`` is None if the machine cannot be read."""
    inside = Commands(config.rootpath, baselines=commands.baselines)
    machine = gpus[0].name if gpus else CPU_MACHINE
    # A reader may have another interpreter and another folder: paths are relative to the project.
    return RunDocument(
        schema=SCHEMA,
        date=began.isoformat(timespec="seconds"),
        wall_s=round((datetime.now(UTC) - began).total_seconds(), 3),
        end=_end_of(exitstatus),
        passed=exitstatus == pytest.ExitCode.OK and not problems,
        commit=revision.commit,
        dirty=list(revision.dirty),
        machine="" if gpus is None else machine,
        gpus=[GpuDocument(name=gpu.name, uuid=gpu.uuid, driver=gpu.driver) for gpu in gpus or ()],
        baselines=inside.relative(baselines),
        options=_options(config),
        results=[document_json.result_document(result, inside) for result in results],
        problems=problems,
        waivers=document_json.waiver_documents(waivers, results),
        **others,
    )


def _options(config: pytest.Config) -> Options:
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
