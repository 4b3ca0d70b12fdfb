"""--help of every command, in a terminal of 80 columns."""

import re

from stepguard.cli.main import every_command


def test_help_fits_a_terminal(shell, monkeypatch):
    """Text is wrapped, and an example is short enough, since a shell reads none that is."""
    monkeypatch.setenv("COLUMNS", "80")
    pages = {"": shell("--help").out}
    names = re.findall(r"^    ([a-z-]+)", pages[""], re.MULTILINE)
    assert len(names) > len([*every_command()])  # one module has two
    pages |= {name: shell(name, "--help").out for name in names}
    for name, page in pages.items():
        assert page.startswith("usage: python -m stepguard"), name
        assert [line for line in page.splitlines() if len(line) > 80] == [], name


def test_no_command_lists_them_all(shell):
    """Who does not know any asks for them so; it is bad usage all the same."""
    done = shell()
    assert done.status == 2 and not done.out
    assert "\n    doctor " in done.err and "\n    sweep " in done.err


def test_parameters_may_be_left_out(shell):
    """What is missing of a workload is its factory: one without parameters has none."""
    for name in ("run", "memory", "nsys"):
        found = shell(name)
        assert found.status == 2, name
        assert "error: name a workload: -- train.py, package.module:function, or a c" in found.err
