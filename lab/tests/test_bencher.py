"""A run in Bencher's format, by the rules that its pages give."""

import json

import pytest
from builders import CASE_ID, entry, evidence
from run_documents import measured, run_document

from stepguard.cli.main import main
from stepguard.core.metrics import METRICS
from stepguard.report.document_json import as_json

# What Bencher publishes of its format (Bencher Metric Format): figures by measure by benchmark.
FIGURE = {
    "type": "object",
    "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
    "required": ["value"],
}
FORMAT = {
    "type": "object",
    "patternProperties": {".+": {"type": "object", "patternProperties": {".+": FIGURE}}},
}


def test_every_figure_is_a_measure(tmp_path, capsys):
    """Under names that Bencher takes (64 characters of a measure, 1,024 of a case); a step time has
    the range of its launches.
    """
    jsonschema = pytest.importorskip("jsonschema_rs")
    launches = evidence((250.0, 240.0, 260.0)).launches
    (tmp_path / "perf.json").write_text(as_json(run_document(measured(entry(), launches=launches))))
    assert main(["bencher", str(tmp_path / "perf.json")]) == 0
    figures = json.loads(capsys.readouterr().out)
    jsonschema.validate(FORMAT, figures)
    (case,) = figures
    assert case == CASE_ID and len(case) <= 1024 and all(len(name) <= 64 for name in METRICS)
    step = figures[case]["step_ms"]
    assert (step["lower_value"], step["upper_value"]) == (240.0, 260.0)
    assert step["lower_value"] < step["value"] < step["upper_value"]
    assert figures[case]["graph_breaks"] == {"value": 1}


def test_a_run_without_figures_is_none(tmp_path, capsys):
    """An empty document would be taken for a run in which all is well."""
    (tmp_path / "perf.json").write_text(as_json(run_document(passed=False)))
    assert main(["bencher", str(tmp_path / "perf.json")]) == 1
    assert "nothing was measured" in capsys.readouterr().err
