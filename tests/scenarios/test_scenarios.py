"""The verdicts of kept evidence stay what they are, whatever happens to the code between.

A verdict that differs from its golden file is a changed verdict: the code is wrong, or the change
says why. A text that differs is written anew (see conftest.py) and reviewed as a diff.
"""

import json
from pathlib import Path

import msgspec
import pytest
from confirmed_scenarios import CONFIRMED
from counted_scenarios import COUNTED
from fault_scenarios import FAULTS
from html_pages import Page, what_runs_or_loads
from lab_commands import add_lab
from number_scenarios import NUMBERED
from paired_scenarios import PAIRED
from paired_work_scenarios import PAIRED_ENVIRONMENTS, PAIRED_WORK
from recorded_scenarios import RECORDED
from scenario import BASELINES, GOLDEN, KEPT, RUN, Files
from unsound_scenarios import UNSOUND
from waived_scenarios import WAIVED

from stepguard.cli.main import main
from stepguard.core.reasons import Reason
from stepguard.core.run_document import JudgedDocument
from stepguard.core.status import Status

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "run-document.schema.json"

TABLES = RECORDED, COUNTED, UNSOUND, FAULTS, PAIRED, PAIRED_WORK, CONFIRMED, WAIVED, NUMBERED
TABLES += (PAIRED_ENVIRONMENTS,)
SCENARIOS = tuple(scenario for table in TABLES for scenario in table)
FILES = [one for one in SCENARIOS if not callable(one.inputs)]
EACH = pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.name for one in SCENARIOS])
# Reasons that no verdict and no gated metric has.
WITHOUT_SCENARIO = {
    "NOT_JUDGED": "it is of information, and of numbers that launches disagree on",
}


@pytest.fixture(scope="module")
def validator():
    """A validator of the part of the schema that is a verdict."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    schema = json.loads(SCHEMA.read_text())
    return jsonschema.Draft202012Validator({"$ref": "#/$defs/Verdict", "$defs": schema["$defs"]})


def golden(name):
    """What a scenario's golden file holds."""
    path = GOLDEN / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def put_golden(name, found):
    """Write a golden file, a metric a line."""
    metrics = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in found["metrics"].items())
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items() if k != "metrics"]
    table = f'"metrics": {{\n{metrics}\n }}' if metrics else '"metrics": {}'
    (GOLDEN / f"{name}.json").write_text("{\n " + ",\n ".join([*lines, table]) + "\n}\n")


@EACH
def test_verdicts(scenario, found, write):
    """Status, reason, outcome, and of each gated metric status and reason: as ever."""
    now = found.projection()
    assert (now["status"], now["reason"]) == (scenario.status, scenario.reason)
    if write == "verdicts":
        put_golden(scenario.name, now)
    assert {**now, "headline": ""} == {**golden(scenario.name), "headline": ""}


@EACH
def test_texts(scenario, found, write):
    """The first line, the terminal's whole block and metrics' notes are as they were reviewed."""
    path, headline = GOLDEN / f"{scenario.name}.txt", found.document["text"]["headline"]
    if write:
        put_golden(scenario.name, golden(scenario.name) | {"headline": headline})
        path.write_text(found.text)
    assert headline == golden(scenario.name)["headline"]
    assert found.text == path.read_text()


@EACH
def test_documents(scenario, found, validator):
    """What judge --json writes is read by the types that the gate reads, and is the same again; and
    what judge prints says the same. Figures and statuses are those of the reason's row. Other
    programs read a verdict by the published schema.
    """
    problems = [error.message for error in validator.iter_errors(found.document["verdict"])]
    assert problems == []
    read = msgspec.convert(found.document, JudgedDocument)
    assert json.loads(msgspec.json.encode(read)) == found.document
    verdict, headline = read.verdict, read.text.headline
    if verdict.figures:
        assert isinstance(verdict.figures, verdict.reason.figures)
    assert verdict.status in verdict.reason.statuses
    assert all(one.status in one.reason.statuses for one in verdict.metrics if not verdict.whole)
    if found.printed:
        assert verdict.status.value in found.printed
        assert verdict.status is Status.SAME or headline in found.printed


@pytest.mark.parametrize("scenario", FILES, ids=[one.name for one in FILES])
def test_pages(scenario, found, monkeypatch, tmp_path_factory):
    """Of what judge reads, the lab's report makes a page of HTML: whole, with the headline of judge
    and the status beside it; all evidence has a part.
    """
    add_lab(monkeypatch, tmp_path_factory.mktemp("installed"))
    assert main(["report", str(RUN), "--baselines", str(BASELINES)]) == 0
    page = Page(Path("report.html").read_text())
    assert page.problems == [] and what_runs_or_loads(page) == []
    status = found.document["verdict"]["status"]
    case, _, cause = found.document["text"]["headline"].partition(f": {status}")
    cause = cause.removeprefix(" (waived)")
    assert f"{case}{' '.join(cause.split())}" in page.text
    assert status in page.text and "Environment" in page.text


def test_every_status_and_reason_has_a_scenario():
    """Of a verdict or of a gated metric; exceptions are those of WITHOUT_SCENARIO alone."""
    found = [golden(one.name) for one in SCENARIOS]
    metrics = [pair for one in found for pair in one["metrics"].values()]
    reasons = {one["reason"] for one in found} | {reason for _, reason in metrics}
    assert set(Reason.__members__) - reasons == set(WITHOUT_SCENARIO)
    assert {one["status"] for one in found} == {one.value for one in Status}


def test_there_is_one_golden_pair_for_each_scenario():
    """No file is left of a scenario that is gone, and no two scenarios share one."""
    names = [one.name for one in SCENARIOS]
    wanted = sorted(f"{name}.{kind}" for name in names for kind in ("json", "txt"))
    assert sorted(path.name for path in GOLDEN.iterdir()) == wanted
    used = {one.inputs.folder for one in SCENARIOS if isinstance(one.inputs, Files)}
    assert {path.name for path in KEPT.iterdir()} == used
