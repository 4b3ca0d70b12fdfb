"""baselines/waivers.json in a run: what passes, what is shown, what stops it."""

import json
from datetime import timedelta

import pytest

from stepguard.storage.baseline_files import today


@pytest.fixture
def slower(gate):
    """A committed CPU case whose step has two graph breaks more than its baseline."""
    case = gate.guarded()
    gate.commit()
    gate.will_measure(case, counters={"graph_breaks": 2})
    return gate


def waive(gate, days=10, **changes):
    """Write a waiver of the graph breaks by hand."""
    one = {"case": "linear[nano]", "metric": "graph_breaks", "value": 2,
           "reason": "waits for torch", "who": "A. Author",
           "expires": (today() + timedelta(days)).isoformat()}  # fmt: skip
    plain = {name: value for name, value in (one | changes).items() if value is not None}
    text = json.dumps({"schema": 1, "waivers": [plain]})
    (gate.baselines / "waivers.json").write_text(text)
    return (one | changes)["expires"]


def test_a_waived_case_passes_visibly(slower):
    """Exit 0; table, counts, headline, -v, JSON, Markdown and JUnit all say that it is waived."""
    assert slower.run().ret == 1
    until = waive(slower)
    result = slower.run("-v", "--perf-json=o.json", "--perf-report=o.md", "--junit-xml=o.xml")
    assert result.ret == 0
    word = f"CHANGED (waived until {until})"
    result.says(
        f"linear?nano? * {word}",
        f"1 {word}",
        "linear?nano?: waived: graph_breaks up to 2 until *, by A. Author: waits for*",
        "linear?nano?: CHANGED (waived): graph_breaks 0 -> 2 (+2 breaks)",
    )
    (case,) = json.loads((slower.path / "o.json").read_text())["results"]
    verdict = case["verdict"]
    assert (verdict["status"], verdict["waived_until"]) == ("CHANGED", until)
    assert "waits for torch" in verdict["permissions"][0]["permission"]["reason"]
    assert any("waits for torch" in line for line in case["text"]["lines"])
    report = (slower.path / "o.md").read_text()
    assert f"**Performance passed:** 1 {word}" in report and "waits for torch" in report
    assert word in (slower.path / "o.xml").read_text()


def test_a_waiver_is_printed_though_its_case_is_not_run(gate):
    """Every waiver, on every run."""
    cases = [gate.cpu("nano"), gate.cpu("other")]
    gate.suite(*cases)
    gate.record(*cases)
    waive(gate)
    result = gate.run("-k", "other")
    assert result.ret == 0
    result.says("linear?nano?: waiver not used, its case was not measured: graph_breaks up*")


def test_a_misspelt_case_stops_a_run_of_whole_folders(slower):
    """Exit 4; where only a part was collected it is told as not used."""
    waive(slower, case="linear[typo]")
    for arguments in ((), (".",), (".", "-k", "nano")):
        result = slower.run(*arguments)
        assert result.ret == 4 and slower.measured == []
        result.stderr.fnmatch_lines(["*waivers.json: a waiver names 'linear?typo?', *"])
    result = slower.run("test_perf.py")
    assert result.ret == 1 and slower.measured
    result.says("linear?typo?: waiver not used, its case was not measured: *")
