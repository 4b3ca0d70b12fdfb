"""The schema of the run document: generated, and what a validator says of real documents."""

import json
import re
from pathlib import Path

import pytest
from builders import entry, launch, replace
from run_documents import measured, run_document

from stepguard.core.run_document import RunDocument
from stepguard.core.status import Status
from stepguard.core.verdict import Verdict
from stepguard.report.document_json import as_json
from stepguard_lab.run_schema import schema

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "run-document.md").read_text()


def rows(heading):
    """The names in the first column of a table of the page."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_file_is_the_schema():
    """python -m stepguard_lab.run_schema > docs/run-document.schema.json"""
    assert (ROOT / "docs" / "run-document.schema.json").read_text() == as_json(schema()) + "\n"


def test_the_page_has_every_field_of_the_document():
    """None missing, none invented, in their order; and those of a verdict that it names are."""
    assert sorted(rows("field")) == sorted(RunDocument.__struct_fields__)
    assert {*rows("field of `verdict`")} <= {*Verdict.__struct_fields__, "figures"}
    statuses = PAGE.partition("| `status` |")[2].partition("\n")[0]
    assert set(re.findall(r"`([^`]+)`", statuses)) == {status.value for status in Status}


@pytest.fixture(scope="module")
def validator():
    """A validator of the dialect that the schema names."""
    jsonschema = pytest.importorskip("jsonschema_rs")
    jsonschema.meta.validate(schema())
    return jsonschema.validator_for(schema())


def test_what_the_reader_refuses_is_refused(validator):
    """Another schema, a field that nobody knows, a status that is none, a missing part."""
    whole = run_document(measured(entry()))
    assert validator.is_valid(json.loads(as_json(whole)))
    for broken in (replace(whole, schema=4), replace(whole, date="")):
        assert not validator.is_valid(json.loads(as_json(broken)))
    plain = json.loads(as_json(whole))
    assert not validator.is_valid(plain | {"unknown": 1})
    assert not validator.is_valid({k: v for k, v in plain.items() if k != "results"})
    plain["results"][0]["verdict"]["status"] = "fine"
    assert not validator.is_valid(plain)


def test_the_query_over_many_documents(tmp_path, monkeypatch):
    """The page's own, by duckdb, over a folder of documents; a CPU's are in it, too."""
    duckdb = pytest.importorskip("duckdb")
    page = (ROOT / "lab" / "docs" / "history.md").read_text()
    (query,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for number, ms in enumerate((250.0, 260.0)):
        date = f"2026-11-2{number}T10:00:00+00:00"
        result = measured(entry(), launches=launches_at(ms), date=date)
        run = run_document(result, date=date, **({"gpus": [], "machine": "CPU"} if number else {}))
        (tmp_path / "runs" / f"{number}.json").write_text(as_json(run))
    found = duckdb.sql(query)
    assert found.columns[:3] == ["machine", "case_id", "card"]
    figures = {machine: (card, ms) for machine, _, card, *_, ms in found.fetchall()}
    assert figures["NVIDIA H200"] == ("GPU-1234", pytest.approx(250.0))
    assert figures["CPU"] == (None, pytest.approx(260.0))


def launches_at(ms):
    """Three launches at so many milliseconds a step."""
    return tuple(launch(ms, number) for number in (1, 2, 3))
