"""--perf-update-new: records the cases that have no baseline and judges all others."""

import json


def test_only_new_cases_are_recorded(gate):
    """The new case is recorded and passes; a changed one fails and its baseline stays."""
    old, new = gate.cpu("old"), gate.cpu("new")
    gate.suite(old, new)
    path = gate.record(old)
    gate.commit()
    gate.will_measure(old, counters={"flops_per_step": 2000})
    result = gate.run("--perf-update-new", "-v", "--perf-report=report.md", passed=1, failed=1)
    assert result.ret == 1
    result.says("recorded *", "1 CHANGED, 1 recorded")
    _, report = (gate.path / "report.md").read_text().split("\n", 1)  # below the page's mark
    assert report.startswith("**Performance failed:** linear[old]: CHANGED: flops_per_step ")
    assert "; 1 CHANGED, 1 recorded\n" in report
    assert "linear[new]: NO BASELINE" not in report, "nothing is left to do there"
    entries = json.loads(path.read_text())["cases"]
    assert set(entries) == {"linear[new]", "linear[old]"}
    (epoch,) = entries["linear[old]"]["epochs"]
    assert epoch["recordings"][0]["counters"]["flops_per_step"] == 1000


def test_a_new_metric_does_not_let_a_regression_in(gate, h200):
    """A slower case whose baseline lacks a newly gated metric is not recorded as if it were new."""
    gate.gpus = [h200]
    narrow = gate.cuda(gates=("step_ms",))
    counts = gate.evidence(narrow).counts
    few = {k: v for k, v in counts.values.items() if k != "graph_breaks"}
    gate.will_measure(narrow, counts=type(counts)(few))
    path = gate.record(narrow)
    before = path.read_bytes()
    gate.will_measure(narrow, step_ms=20.0)
    gate.suite(gate.cuda(gates=("step_ms", "graph_breaks")))
    gate.commit()
    result = gate.run("--perf-update-new")
    assert result.ret == 1
    assert path.read_bytes() == before
