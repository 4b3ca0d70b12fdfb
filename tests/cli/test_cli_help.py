"""--help of every command, in a terminal of 80 columns; and the arguments that are refused."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepguard.cli import main as cli
from stepguard.cli.main import COMMANDS, every_command

ROOT = Path(__file__).resolve().parents[2]
OTHERS = """
from stepguard.cli.common import say


def add_command(commands, root):
    for name in ("first", "judge-more"):
        command = commands.add_parser(name, help="of another package")
        command.set_defaults(call=lambda options, name=name: say(f"<{name}>") or 0)
"""


def test_help_fits_a_terminal(shell, monkeypatch):
    """Text is wrapped, and an example is short enough, since a shell reads none that is."""
    monkeypatch.setenv("COLUMNS", "80")
    pages = {"": shell("--help").out}
    names = re.findall(r"^    ([a-z-]+)", pages[""], re.MULTILINE)
    assert len(names) >= len([*every_command()])  # a module may have several
    pages |= {name: shell(name, "--help").out for name in names}
    for name, page in pages.items():
        assert page.startswith("usage: python -m stepguard"), name
        assert [line for line in page.splitlines() if len(line) > 80] == [], name
    for module in COMMANDS:  # what the command does, and a line that can be typed
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        assert re.match(r"[a-z].{20}", pages[name].partition("\n\n")[2]), name
        assert re.search(rf"^ *python -m stepguard {name}\b", pages[name], re.MULTILINE), name


def test_no_command_lists_them_all(shell):
    """Who does not know any asks for them so; it is bad usage all the same."""
    done = shell()
    assert done.status == 2 and not done.out
    assert "\n    doctor " in done.err and "\n    waive " in done.err


@pytest.mark.parametrize("arguments", [("unknown",), ("run",), ("waive",), ("--nope",)])
def test_bad_usage_is_2(shell, arguments):
    """What argparse does not know has status 2 and a usage line."""
    done = shell(*arguments)
    assert done.status == 2
    assert "usage: python -m stepguard" in done.err


def test_a_reader_that_has_seen_enough_is_no_crash():
    """As with `| head -1`: no trace is printed, and the status is not 0."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "stepguard", "explain-code"]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_parameters_may_be_left_out(shell):
    """What is missing of a workload is its factory: one without parameters has none."""
    found = shell("run")
    assert found.status == 2
    assert "error: name a workload: -- train.py, package.module:function, or a c" in found.err


def test_a_package_adds_commands_by_entry_points(shell, monkeypatch):
    """One module may have several; none takes the place of a command that the gate has or had."""
    installed = shell.path / "others-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    names = "first", "judge-more", "gate", "schema"
    points = [f"{name} = commands_of_others" for name in names]
    (installed / "entry_points.txt").write_text("\n".join(["[stepguard.commands]", *points]))
    (shell.path / "commands_of_others.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(shell.path)
    assert "\n    judge-more " in shell("--help").out
    assert shell("judge-more").out == "<judge-more>\n" and shell("first").out == "<first>\n"
    assert "the base branch" in shell("gate", "--help").out


@pytest.mark.parametrize("clone", [True, False])
def test_a_command_of_the_lab_names_the_package(shell, monkeypatch, tmp_path, clone):
    """Where it is not installed, with what installs it: of this clone, or by its name."""
    monkeypatch.setattr(cli, "commands_of_packages", dict)
    if not clone:
        monkeypatch.setattr("stepguard.machine.packages._SOURCES", tmp_path)
    done = shell("trace", "rank0.json.gz")
    assert done.status == 2 and "error: no command 'trace'; traces, memory, " in done.err
    (named,) = re.findall(r"-m pip install (.*)", " ".join(done.err.split()))
    assert named == (f"-e {ROOT} -e {ROOT / 'lab'}" if clone else "stepguard-lab")
    assert "package stepguard-lab" in " ".join(shell("--help").out.split())
    assert "no command" not in shell("judge", "--help").out
