"""A document of a run in which one case was `same`; a test changes what it is about."""

from pathlib import Path

from alarms import by_recordings
from builders import CASE, CASE_ID, evidence
from msgspec.structs import replace

from stepguard import Case
from stepguard.core.run_document import (
    SCHEMA,
    CaseState,
    End,
    GpuDocument,
    Options,
    RunDocument,
    State,
)
from stepguard.measure.suite import Result
from stepguard.report.document_json import result_document
from stepguard.report.next_steps import Commands

COMMIT = "a" * 40
OLD = '{"schema": 1, "results": [], "problems": []}'  # what a run before left, of some version
NAMED = Case("124m-bf16", CASE["workload"], CASE["params"])


def measured(entry, **changes):
    """The document of one case's result: evidence with these changes, judged by ``entry``."""
    found = evidence(**changes)
    paths = Path("runs/1/evidence.json"), Path("baselines/h200x1.json")
    result = Result(NAMED, found, by_recordings(found, entry), *paths, judged_by=entry.digest)
    return result_document(result, Commands())


def run_document(*results, **changes):
    """The document of a run on an H200 that came to these results."""
    made = RunDocument(
        schema=SCHEMA,
        date="2026-11-20T10:00:00+00:00",
        wall_s=200.0,
        end=End.FINISHED,
        passed=all(result.verdict.outcome == "passed" for result in results),
        strict=True,
        commit=COMMIT,
        dirty=[],
        against="",
        base_commit="",
        machine="NVIDIA H200",
        gpus=[GpuDocument(name="NVIDIA H200", uuid="GPU-1234", driver="580.159")],
        baselines="baselines",
        options=Options(arguments=["perf_tests", "--perf-json=perf.json"]),
        cases=[
            CaseState(
                state=State.MEASURED,
                case=CASE_ID,
                test="perf_tests/test_train_step.py::test_train_step[124m-bf16]",
                file="perf_tests/test_train_step.py",
                line=33,
                device="cuda",
                world_size=1,
            )
            for _ in results
        ],
        results=list(results),
        problems=[],
        notices=[],
        waivers=[],
    )
    return replace(made, **changes)
