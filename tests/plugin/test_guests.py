"""In a project that is not ours, and beside plugins that are not ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WATCH = """
import sys

def pytest_unconfigure(config):
    print("LOADED", *sorted(sys.modules))
"""
UNIT = "def test_unit():\n    pass\n"


def test_a_project_without_cases_pays_for_nothing(tmp_path):
    """There the plugin imports the nouns of a case and its own entry: no engine, no numpy."""
    (tmp_path / "watch.py").write_text(WATCH)
    (tmp_path / "test_unit.py").write_text(UNIT)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "watch"]
    autoload = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    loaded = {}
    for name, options in (("without", []), ("with", ["-p", "stepguard.plugin"])):
        done = subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            env=os.environ | autoload,
            capture_output=True,
            text=True,
            check=True,
        )
        (line,) = [line for line in done.stdout.splitlines() if "LOADED" in line]
        loaded[name] = set(line.partition("LOADED")[2].split())
    cost = loaded["with"] - loaded["without"]
    ours = {module for module in cost if module.partition(".")[0] == "stepguard"}
    assert len(ours) <= 15  # with the folders core/ and machine/
    assert len(cost - ours) <= 3, sorted(cost - ours)


def test_a_pytest_of_an_environment_without_the_engines_packages(gate, monkeypatch):
    """It is told so, and which to use, instead of an internal error: PATH had another pytest."""
    gate.guarded()
    for name in [name for name in sys.modules if name.startswith("stepguard.plugin.hooks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stepguard.plugin.hooks", None)  # an import of it raises
    monkeypatch.delattr("stepguard.plugin.hooks", raising=False)
    result = gate.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*stepguard needs * not installed for *: source .venv/bin/activate*"]
    )


def test_a_project_without_cases_is_not_told_of_any(gate):
    """No line of the header and no section of the summary."""
    gate.tests(UNIT)
    result = gate.run()
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*stepguard: *")
    result.stdout.no_fnmatch_line("*performance*")


def test_a_project_has_markers_of_its_own_with_common_names(gate):
    """Declared there, with arguments, under --strict-markers: its tests run as ever."""
    (gate.path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu(memory): runs on a card\n")
    marked = "@pytest.mark.gpu(memory=8)\n@pytest.mark.smoke\n@pytest.mark.extended\n"
    gate.tests(f"import pytest\n\n\n{marked}{UNIT}")
    gate.run("--strict-markers", "-m", "gpu(memory=8)").assert_outcomes(passed=1)


RERUNS = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    for again in (True, False):
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failed = any(report.failed for report in reports)
        if not (failed and again):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""


@pytest.mark.parametrize(
    ("counters", "outcome"),
    [({"flops_per_step": 2}, {"failed": 1}), ({}, {"passed": 1})],
)
def test_a_rerun_is_not_another_try(gate, counters, outcome):
    """A plugin that runs failed tests again gets the first verdict, and a sentence says so."""
    case = gate.cpu()
    gate.record(case)
    gate.will_measure(case, counters=counters)
    gate.suite(case)
    (gate.path / "rerunning.py").write_text(RERUNS)
    gate.pytester.syspathinsert(gate.path)
    result = gate.run("-p", "rerunning")
    assert gate.measured == ["linear[nano]"]
    result.assert_outcomes(**outcome)
    told = "linear?nano?: its test was run again (--reruns?): the verdict stands, nothing *"
    if "failed" in outcome:
        result.says(told)
    else:
        result.stdout.no_fnmatch_line(told)


@pytest.mark.parametrize("body", ["pass", "pytest.skip('later')", "1 / 0", "perf(case)"])
def test_no_warning_that_a_benchmark_was_not_used(gate, body):
    """However a test ends that measured nothing: its outcome says it all."""
    gate.record(gate.cpu())
    body = f"def test_step(perf, case):\n    {body}\n"
    gate.tests(f'@cases(Case("nano", "factories:linear", device="cpu", launches=1))\n{body}')
    gate.run("-W", "always").stdout.no_fnmatch_line("*PytestBenchmarkWarning*")
