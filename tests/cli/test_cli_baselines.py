"""python -m stepguard baselines list, show; and the arguments that argparse refuses."""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepguard.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def recorded(shell):
    """A folder with two recorded cases."""
    shell.record(shell.made("a"), shell.made("b"))
    return shell


def test_list(recorded):
    """By file a line a case: id, level, recordings, the newest's date, its step; of those that gate
    counters alone, too.
    """
    done = recorded("baselines", "list")
    assert done.status == 0
    assert done.out.splitlines() == [
        "cpu.json",
        "  case       level  recordings      newest",
        "  linear[a]      1           1  2030-01-01",
        "  linear[b]      1           1  2030-01-01",
    ]


@pytest.mark.parametrize("action", ["list", "show"])
def test_the_projects_own_fit_a_terminal(action, capsys):
    """All that is recorded, in 80 columns, but for the reasons that people wrote."""
    assert main(["baselines", action, "--baselines", str(ROOT / "baselines")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("train_step[124m-bf16]" in line for line in lines)
    assert not [one for one in lines if len(one) > 80 and not one.startswith("  level ")]


def test_prune_removes_a_case_and_nothing_else(recorded):
    """The case that is named; one that is not there, or none named, is refused."""
    path = recorded.path / "baselines" / "cpu.json"
    before = json.loads(path.read_text())
    assert recorded("baselines", "prune").status == 2
    assert recorded("baselines", "prune", "linear[c]").status == 1
    assert json.loads(path.read_text()) == before
    done = recorded("baselines", "prune", "linear[a]")
    assert done.status == 0 and "linear[a]: 1 recording removed from " in done.out
    assert "; commit it, or " in done.out  # what brings the file back
    del before["cases"]["linear[a]"]
    assert json.loads(path.read_text()) == before
    recorded("baselines", "prune", "linear[b]")
    assert recorded("baselines", "list").out.split("\n") == ["cpu.json", "no case", ""]


def test_show_as_one_document(recorded):
    """By file and case, and nothing beside it."""
    document = json.loads(recorded("baselines", "show", "linear[a]", "--json").out)
    assert set(document) == {"cpu.json"} and set(document["cpu.json"]) == {"linear[a]"}
    entry = document["cpu.json"]["linear[a]"]
    assert entry["epochs"][0]["recordings"][0]["counters"]["flops_per_step"] == 1000
    assert set(json.loads(recorded("baselines", "show", "--json").out)["cpu.json"]) == {
        "linear[a]",
        "linear[b]",
    }


def test_a_reader_that_has_seen_enough_is_no_crash():
    """As with `| head -1`: no trace is printed, and the status is not 0."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "stepguard", "baselines", "list"]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_show_is_a_table(recorded):
    """Epochs with their reasons, a row a recording without empty columns, the newest's counters."""
    recorded.keep(recorded.made("a", counters={"graph_breaks": 2}, date="2030-01-02T03:04:05Z"))
    assert recorded("accept", "--reason", "a break, on purpose").status == 0
    lines = recorded("baselines", "show", "linear[a]").out.splitlines()
    assert lines[0] == "cpu.json  linear[a]"
    assert lines[1:7] == [
        "  level 1: first recording",
        "  recorded    commit   torch",
        "  2030-01-01  aaaaaaa  2.13.0",
        "  level 2: a break, on purpose",
        "  recorded    commit   torch",
        "  2030-01-02  aaaaaaa  2.13.0",
    ]
    counted = [line.split() for line in lines[8:]]
    assert ["graph_breaks", "2", "breaks"] in counted and [
        "peak_allocated_bytes",
        "1,048,576",
        "B",
    ] in counted


def test_list_has_no_document(recorded):
    """--json with list is bad usage, not a list that is passed off as one."""
    assert recorded("baselines", "list", "--json").status == 2


def test_an_option_between_the_words(recorded):
    """--baselines may stand between what is done and the case."""
    done = recorded("baselines", "show", "--baselines", "baselines", "linear[a]")
    assert done.status == 0, done.err
    assert done.out == recorded("baselines", "show", "linear[a]").out


@pytest.mark.parametrize("action", ["list", "show"])
def test_an_unknown_case(recorded, action):
    """An unknown case: status 1 and one line."""
    done = recorded("baselines", action, "linaer[a]")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("stepguard: baselines has no baseline of 'linaer[a]' (did you mean ")


def test_no_file(shell):
    """No baseline file: status 1 and the command that records one."""
    done = shell("baselines", "list")
    assert done.status == 1
    assert "pytest perf_tests --perf-update" in done.err


def test_a_broken_file(recorded):
    """A file that cannot be trusted is not listed in part: status 1, the file named."""
    (recorded.path / "baselines/h200x1.json").write_text("{")
    done = recorded("baselines", "list")
    assert done.status == 1
    assert "h200x1.json" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [(), ("unknown",), ("run",), ("baselines",), ("baselines", "drop"), ("--nope",)]
)
def test_bad_usage_is_2(shell, arguments):
    """What argparse does not know has status 2 and a usage line."""
    done = shell(*arguments)
    assert done.status == 2
    assert "usage: python -m stepguard" in done.err


def names(root=Path(".")):
    """Every command by name."""
    commands = argparse.ArgumentParser().add_subparsers()
    for module in COMMANDS:
        module.add_command(commands, root)
    return list(commands.choices)


@pytest.mark.parametrize("name", names())
def test_the_help_of_a_command_says_what_it_does_and_gives_an_example(shell, name):
    """A sentence, and a line that can be typed."""
    done = shell(name, "--help")
    assert done.status == 0
    text = done.out.partition("\n\n")[2]
    assert re.match(r"[a-z].{20}", text)
    assert re.search(rf"^ *python -m stepguard {name}\b", text, re.MULTILINE)
