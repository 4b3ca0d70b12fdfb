"""In a project that is not ours, and beside plugins that are not ours."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WATCH = """
import sys

def pytest_sessionfinish(session):
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
    assert len(ours) <= 12
    assert len(cost - ours) <= 3, sorted(cost - ours)


def test_a_project_without_cases_is_not_told_of_any(gate):
    """No line of the header and no section of the summary."""
    gate.tests(UNIT)
    result = gate.run()
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*stepguard: *")
    result.stdout.no_fnmatch_line("*performance*")
