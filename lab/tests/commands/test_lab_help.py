"""--help of the lab's commands, in a terminal of 80 columns."""

from importlib import metadata

import pytest
from lab_commands import LAB

from stepguard.cli.main import every_command


def test_help_fits_a_terminal(shell, monkeypatch):
    """Text is wrapped, and an example is short enough, since a shell reads none that is."""
    monkeypatch.setenv("COLUMNS", "80")
    for point in metadata.entry_points(group="stepguard.commands"):
        page = shell(point.name, "--help").out
        assert page.startswith(f"usage: python -m stepguard {point.name}"), point
        assert [line for line in page.splitlines() if len(line) > 80] == [], point


def test_every_command_is_an_entry_point():
    """A module that adds a command, and that pyproject.toml does not name, is never found."""
    adding = {path.stem for path in (LAB / "stepguard_lab").glob("*.py")
              if "\ndef add_command(" in path.read_text()}  # fmt: skip
    found = {module.__name__ for module in every_command()}
    assert adding == {name.partition(".")[2] for name in found if name.startswith("stepguard_lab.")}


@pytest.mark.parametrize("name", ["memory", "nsys"])
def test_parameters_may_be_left_out(shell, name):
    """What is missing of a workload is its factory: one without parameters has none."""
    found = shell(name)
    assert found.status == 2
    assert "error: name a workload: -- train.py, package.module:function, or a c" in found.err
