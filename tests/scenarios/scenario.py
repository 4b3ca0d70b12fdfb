"""A scenario: what a run keeps, or the nearest pure call, and the verdict that comes of it.

Inputs are built by code, or are files of ``kept/``. They go through ``python -m stepguard judge``
in this process, which reads files alone. What comes out is compared by its words, not by its types.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from stepguard.cli import judge
from stepguard.cli.common import verdict_of_run
from stepguard.cli.main import main
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence, to_json
from stepguard.core.metrics import METRICS
from stepguard.core.recording import SCHEMA, BaselineFile, Entry
from stepguard.core.status import Status
from stepguard.core.verdict import Verdict
from stepguard.report import verdict_text
from stepguard.report.document_json import as_json, judged_document
from stepguard.report.next_steps import Commands, next_steps
from stepguard.storage import baseline_files
from stepguard.storage.baseline_files import WaiverRow

HERE = Path(__file__).parent
GOLDEN, KEPT = HERE / "golden", HERE / "kept"
RUN, BASELINES, DOCUMENT = Path("run"), Path("baselines"), Path("verdicts.json")


@dataclass(frozen=True)
class Run:
    """What a run left: files of evidence, of pairs or of both, and what they are judged by."""

    evidence: Evidence | None = None
    pairs: Comparison | None = None
    baseline: Entry | None = None
    waivers: tuple[WaiverRow, ...] = ()

    def write(self) -> None:
        """Write the files into the working directory, as a run and people do."""
        folder, head = RUN / "case", self.evidence or self.pairs.head
        folder.mkdir(parents=True)
        BASELINES.mkdir()
        if self.evidence:
            (folder / "evidence.json").write_bytes(to_json(self.evidence))
        if self.pairs:
            (folder / "comparison.json").write_bytes(to_json(self.pairs))
        if self.baseline:
            machine = baseline_files.machine_of(head)
            content = BaselineFile(
                schema=SCHEMA, machine=machine, cases={head.case_id: self.baseline}
            )
            baseline_files.save(baseline_files.path_of(BASELINES, head), content)
        if self.waivers:
            content = {"schema": 1, "waivers": msgspec.to_builtins(self.waivers)}
            (BASELINES / baseline_files.WAIVERS).write_text(json.dumps(content))


@dataclass(frozen=True)
class Files:
    """A folder of ``kept/``: files in the layout of 2026-11-25, as users have them.

    They are not written anew when the layout moves: they have to stay readable. Those of a CPU are
    of real runs.
    """

    folder: str

    def write(self) -> None:
        """Copy the files into the working directory."""
        BASELINES.mkdir()
        shutil.copytree(KEPT / self.folder, ".", dirs_exist_ok=True)


@dataclass(frozen=True)
class Scenario:
    """One case's inputs and the verdict that they have."""

    name: str
    shows: str
    status: str  # as documents and tables have it
    reason: str  # its code
    inputs: Run | Files | Callable[[], Verdict]  # a call where no kept file can say it


@dataclass(frozen=True)
class Shown:
    """A verdict as users and machines read it."""

    document: dict[str, Any]  # of judge --json
    text: str  # the block of the terminal, and notes of the document
    printed: str  # by judge; "" where it was not judge

    def projection(self) -> dict[str, Any]:
        """Return what must not change while types do."""
        verdict = self.document["verdict"]
        # What is new is in no golden file until it is in the project's own recordings, too.
        rows = ((one, METRICS[one["metric"]]) for one in verdict["metrics"])
        gated = [one for one, row in rows if one["gated"] and not row.new]
        waived = verdict["waived_until"]
        return {
            "status": verdict["status"],
            "reason": verdict["reason"],
            "outcome": "passed" if waived else Status(verdict["status"]).outcome,
            "waived": sorted(one["metric"] for one in gated if one["waived_until"]),
            "metrics": {one["metric"]: [one["status"], one["reason"]] for one in gated},
            "headline": self.document["text"]["headline"],
        }


def shown(scenario: Scenario) -> Shown:
    """Judge a scenario in the working directory, which must be empty."""
    Path("pytest.ini").touch()  # what judge takes for the root of a project
    if callable(scenario.inputs):
        verdict = scenario.inputs()
        document = json.loads(as_json(judged_document(verdict)))
        return Shown(document, _text(verdict, document), "")
    scenario.inputs.write()
    options = ["--evidence", str(RUN), "--baselines", str(BASELINES), "--json", str(DOCUMENT)]
    verdicts = []  # the terminal's block needs it whole

    def noted(*given):
        verdicts.append(verdict_of_run(*given))
        return verdicts[-1]

    printed = io.StringIO()
    with mock.patch.object(judge, "verdict_of_run", noted), contextlib.redirect_stdout(printed):
        status = main(["judge", *options])
    (document,), (verdict,) = json.loads(DOCUMENT.read_bytes()), verdicts
    found = Shown(document, _text(verdict, document), printed.getvalue())
    assert status == (0 if found.projection()["outcome"] == "passed" else 1)
    return found


def _text(verdict: Verdict, document: dict[str, Any]) -> str:
    """Return the terminal's block, and the notes of gated metrics, which it has not always."""
    steps = next_steps(verdict, "run/case/evidence.json", Commands())
    block = verdict_text.block(verdict_text.page_of(verdict, steps))
    gated = {one["metric"] for one in document["verdict"]["metrics"] if one["gated"]}
    told = document["text"]["notes"].items()
    notes = [f"{metric}: {note}" for metric, note in told if metric in gated]
    return "\n".join([block, *(["notes in the document:", *notes] if notes else [])]) + "\n"
