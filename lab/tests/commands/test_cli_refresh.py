"""python -m stepguard refresh: one command a machine after a new torch or driver."""

import json
from dataclasses import replace

import pytest
from git_repositories import git

from stepguard.core.fingerprint import Fingerprint
from stepguard_lab import refresh

REASON = "torch 2.14"
NEW = {
    "fingerprint": Fingerprint("x86_64", "", torch="2.14.0"),
    "date": "2030-02-01T00:00:00+00:00",
}


@pytest.fixture
def machine(shell, monkeypatch):
    """Two cases that are recorded and committed; pytest leaves the evidence that a test says."""
    shell.record(shell.made("a"), shell.made("b"))
    shell.commit()
    shell.ran, shell.leaves, shell.ends = [], [], 1

    def run_pytest(command):
        shell.ran.append(command)
        if shell.leaves:
            shell.keep(*shell.leaves)
        return shell.ends

    monkeypatch.setattr(refresh, "_run", run_pytest)
    return shell


def software(shell, name):
    """The versions that a case has recordings of."""
    content = json.loads((shell.path / "baselines/cpu.json").read_text())
    level = content["cases"][f"linear[{name}]"]["epochs"][-1]
    return [one["software"]["torch"] for one in level["recordings"]]


def test_one_command_measures_shows_and_records(machine):
    """Old -> new of what moved, the software first, and the commands that commit it or take it
    back; nothing is committed.
    """
    counts = machine.made("a").counts
    moved = replace(counts, values=counts.values | {"operator_calls_per_step": 120})
    machine.leaves = [machine.made("a", counts=moved, **NEW)]
    machine.leaves += [machine.made("b", **NEW)]
    head = git(machine.path, "rev-parse", "HEAD")
    done = machine("refresh", "--reason", REASON)
    assert done.status == 0, done.err
    assert machine.ran[0][1:4] == ["-m", "pytest", "perf_tests"]
    assert [software(machine, name) for name in "ab"] == [["2.13.0", "2.14.0"]] * 2
    lines = done.out.splitlines()
    assert "linear[a]: first under this software in baselines/cpu.json" in lines
    assert any(line.split() == ["torch", "2.13.0", "2.14.0"] for line in lines), done.out
    (line,) = (line for line in lines if line.startswith("  cpu.json: linear[a]: "))
    assert "operator_calls_per_step 100 -> 120" in line and "recordings 1 -> 2" in line
    assert lines[-3] == "  git add baselines/cpu.json && git commit -m 'Baselines: torch 2.14'"
    assert lines[-1] == "  git restore baselines/cpu.json"
    assert git(machine.path, "rev-parse", "HEAD") == head


@pytest.mark.parametrize(("status", "leaves"), [(4, True), (2, True), (1, False), (5, False)])
def test_a_run_that_measured_nothing_records_nothing(machine, status, leaves):
    """Refused, interrupted, or without a result: evidence of an earlier run is not meant."""
    machine.ends = status
    machine.leaves = [machine.made("a", **NEW)] if leaves else []
    done = machine("refresh", "--reason", REASON)
    assert done.status == 1 and "nothing is recorded" in done.err
    assert software(machine, "a") == ["2.13.0"]


def test_what_cannot_be_recorded_is_not_measured(machine):
    """A tree that differs from its commit, and a reason without words."""
    assert machine("refresh", "--reason", "...").status == 2
    (machine.path / "model.py").write_text("x = 1\n")
    done = machine("refresh", "--reason", REASON)
    assert done.status == 1 and "nothing can be recorded" in done.err and not machine.ran


def test_the_folder_and_the_tests_are_passed_on(machine):
    """Of some cases alone; a folder that is not the usual one."""
    machine.leaves = [machine.made("a", **NEW)]
    (machine.path / "baselines").rename(machine.path / "mine")
    machine.commit()
    done = machine("refresh", "--reason", REASON, "--baselines", "mine", "perf_tests/test_a.py")
    assert done.status == 0, done.err
    assert machine.ran[0][3:] == [
        "perf_tests/test_a.py",
        "--perf-no-strict",
        "--perf-baselines=mine",
    ]
    assert "git restore mine/cpu.json" in done.out
