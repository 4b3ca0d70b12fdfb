"""--perf-json and --perf-report: whole, from failed runs too, refused before measuring."""

import json

import pytest

from stepguard.evidence import Fault


@pytest.fixture
def mixed(gate):
    """A gate with a same, a changed, a broken and a new case."""
    cases = [gate.cpu(name) for name in ("same", "changed", "broken", "new")]
    gate.suite(*cases)
    gate.record(*cases[:3])
    gate.will_measure(cases[1], counters={"flops_per_step": 2000})
    gate.will_measure(cases[2], faults=(Fault("RAISED", "planted <b>"),), launches=())
    return gate


def strict(text):
    """Parsed JSON; NaN and Infinity are refused."""

    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_json_holds_every_case(mixed):
    """Every measured case with parameters, metrics, verdict, reason and where its evidence is."""
    assert mixed.run("--perf-json=out/run.json").ret == 1
    document = strict((mixed.path / "out/run.json").read_text())
    by_case = {case["case"]: case for case in document["cases"]}
    words = {name: (c["verdict"]["status"], c["verdict"]["reason"]) for name, c in by_case.items()}
    assert words == {
        "linear[same]": ("same", "EQUAL"),
        "linear[changed]": ("CHANGED", "WORK_MOVED"),
        "linear[broken]": ("BROKEN", "RAISED"),
        "linear[new]": ("NO BASELINE", "NOT_RECORDED"),
    }
    changed = by_case["linear[changed]"]
    assert changed["metrics"]["flops_per_step"] == 2000
    moved = {m["metric"]: m for m in changed["verdict"]["metrics"] if m["status"] != "same"}
    assert (moved["flops_per_step"]["old"], moved["flops_per_step"]["new"]) == (1000, 2000)
    assert changed["parameters"]["workload"] == "factories:linear"
    for case in by_case.values():
        assert strict(open(case["evidence"]).read())["case_id"] == case["case"]


def test_markdown_tells_the_worst_first(mixed):
    """A table of all cases, worst first, and a folded block for each that did not pass."""
    mixed.run("--perf-report=report.md")
    text = (mixed.path / "report.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| linear[")]
    assert [row.split("[")[1].split("]")[0] for row in rows] == ["broken", "changed", "new", "same"]
    assert "1 BROKEN, 1 CHANGED, 1 NO BASELINE, 1 same" in text
    assert text.count("<details>") == text.count("</details>") == 3
    assert "flops_per_step 1,000 -> 2,000" in text


def test_a_run_that_measured_nothing_still_writes_them(gate):
    """Every case skipped: both documents are written, hold no case, and say so."""
    gate.suite(gate.cuda())
    assert gate.run("--perf-json=run.json", "--perf-report=report.md").ret == 1
    assert strict((gate.path / "run.json").read_text())["cases"] == []
    assert "nothing was measured" in (gate.path / "report.md").read_text()


def test_an_old_document_is_replaced(mixed):
    """A document of an earlier run does not survive this one."""
    (mixed.path / "run.json").write_text("old")
    mixed.run("--perf-json=run.json", "-k", "same")
    cases = strict((mixed.path / "run.json").read_text())["cases"]
    assert [case["case"] for case in cases] == ["linear[same]"]


@pytest.mark.parametrize("option", ["--perf-json", "--perf-report"])
@pytest.mark.parametrize("path", ["baselines", "test_perf.py/run.json"])
def test_a_path_that_cannot_be_written_is_refused_at_once(mixed, option, path):
    """A folder, or a path below a file: exit 4 before an hour of measuring is lost to it."""
    result = mixed.run(f"{option}={path}")
    assert result.ret == 4
    assert mixed.measured == []
    result.stderr.fnmatch_lines([f"*{option}={path}: *"])


def test_they_are_not_written_by_collecting(mixed):
    """--co writes no document over an earlier one."""
    (mixed.path / "run.json").write_text("old")
    assert mixed.run("--co", "--perf-json=run.json").ret == 0
    assert (mixed.path / "run.json").read_text() == "old"
