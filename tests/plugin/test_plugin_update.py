"""--perf-update: records new cases and what is `same`, of a clean commit, and nothing else."""

import json
import os
import re
from pathlib import Path

import pytest

from stepguard.cli.main import main
from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason


@pytest.fixture
def committed(gate):
    """A committed suite of one case without a baseline."""
    gate.suite(gate.cpu())
    gate.commit()
    return gate


def recorded(gate, name="cpu.json"):
    """The baseline file's cases; empty without a file."""
    path = gate.baselines / name
    return json.loads(path.read_text())["cases"] if path.exists() else {}


def test_the_first_recording(committed):
    """Without a baseline the case is recorded and passes; the next run is `same`."""
    result = committed.run("--perf-update")
    assert result.ret == 0
    result.says(
        "linear?nano? * recorded",
        "1 recorded",
        "linear?nano?: first recording in *baselines/cpu.json",
    )
    result.stdout.no_fnmatch_line("*NO BASELINE*")
    head = committed.git("rev-parse", "HEAD").strip()
    (epoch,) = recorded(committed)["linear[nano]"]["epochs"]
    assert [r["commit"] for r in epoch["recordings"]] == [head]
    again = committed.run()
    assert again.ret == 0
    again.says("1 same")


MOVED = {"SLOWER": {"step_ms": 20.0}, "FASTER": {"step_ms": 5.0},
         "CHANGED": {"counters": {"flops_per_step": 2000}},
         "NOT COMPARABLE": {"torch": "2.14.0"}}  # fmt: skip


@pytest.mark.parametrize(("verdict", "now"), MOVED.items(), ids=MOVED)
def test_what_moved_is_not_recorded(gate, h200, monkeypatch, verdict, now):
    """It stays what it is, and names the command that opens a level, which then takes it."""
    monkeypatch.chdir(gate.path)
    case = gate.recorded(h200, step_ms=10.0)
    pct = 100 * (now.get("step_ms", 10.0) / 10.0 - 1)
    gate.will_measure(case, **now)
    gate.will_compare(case, pct)
    before = recorded(gate, "h200x1.json")
    result = gate.run("--perf-update")
    assert result.ret == (0 if verdict == "FASTER" else 1)
    result.says(f"1 {verdict}")
    text = result.stdout.str()
    assert re.search(r"python\S* -m stepguard accept 'linear\[124m\]' --reason '...'", text), text
    assert recorded(gate, "h200x1.json") == before
    assert main(["accept", case.id, "--reason", "it is meant"]) == 0
    assert recorded(gate, "h200x1.json") != before


@pytest.mark.parametrize("ms", [9.8, 10.2])
def test_a_time_that_pairs_cleared_joins_no_level_of_its_own_card(gate, h200, ms):
    """The level's first commit is as fast on this machine, today: `same`, and no fault."""
    case = gate.recorded(h200, step_ms=ms)
    result = gate.run("--perf-update", "--perf-strict")
    (epoch,) = recorded(gate, "h200x1.json")[case.id]["epochs"]
    assert result.ret == 0 and len(epoch["recordings"]) == 1
    result.says("linear?124m?: not recorded, it passes, but *", "*1 passed*")


def test_a_gate_passes_what_is_same_and_no_case_that_it_recorded(gate, h200):
    """In a strict run nothing passes by --perf-update that would not pass without it."""
    gate.gpus, known = [h200], gate.cuda("known")
    gate.suite(known)
    gate.record(known)
    gate.commit()
    assert gate.run("--perf-update", "--perf-strict").ret == 0
    gate.suite(known, gate.cuda("new"))
    gate.commit()
    result = gate.run("--perf-update", "--perf-strict")
    assert result.ret == 1
    result.says("linear?new?: it had no recording, and passes because this run made one; commit*")
    epochs = [entry["epochs"] for entry in recorded(gate, "h200x1.json").values()]
    assert [len(epoch["recordings"]) for (epoch,) in epochs] == [3, 1]


@pytest.mark.parametrize("option", ["--perf-update", "--perf-update-new"])
def test_of_a_dirty_tree_nothing_is_measured_to_be_recorded(committed, option):
    """It is said at once, not after a suite of half an hour, and the file is named."""
    (committed.path / "new.py").write_text("")
    result = committed.run(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and committed.measured == []
    assert recorded(committed) == {}
    result.stderr.fnmatch_lines(["*nothing can be recorded: uncommitted changes (new.py): commit*"])


def test_without_a_commit_nothing_is_measured_to_be_recorded(gate, monkeypatch):
    """Outside of git, without git and before the first commit it is said at once, with the remedy,
    and each for what it is.
    """
    gate.suite(gate.cpu())
    outside = "*nothing can be recorded: * is in no git repository: git init && git add -A && *"
    empty = "*nothing can be recorded: the repository has no commit yet: git add -A && *"
    for told in (outside, empty):
        result = gate.run("--perf-update")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([told])
        gate.git("init", "-q")
    monkeypatch.setenv("PATH", "")
    result = gate.run("--perf-update-new")
    result.stderr.fnmatch_lines(["*nothing can be recorded: git is not on PATH: install it"])
    assert gate.measured == [] and recorded(gate) == {}


def test_one_unsound_case_does_not_stop_the_others(gate):
    """Of three cases one is BROKEN: two are recorded, the run fails."""
    cases = [gate.cpu(name) for name in "abc"]
    gate.suite(*cases)
    gate.commit()
    gate.will_measure(cases[1], faults=(Fault(Reason.KILLED, "planted"),))
    result = gate.run("--perf-update", passed=2, errors=1)
    assert result.ret == 1
    assert set(recorded(gate)) == {"linear[a]", "linear[c]"}


def test_a_file_that_cannot_be_written_loses_nothing(committed, monkeypatch):
    """When the file cannot be replaced, the old one stays whole and the run says so."""
    committed.run("--perf-update")
    before = (committed.baselines / "cpu.json").read_bytes()
    committed.suite(committed.cpu(), committed.cpu("new"))
    committed.commit()

    plain = os.replace

    def full(source, target):
        if Path(target).parent == committed.baselines:
            raise OSError(28, "No space left on device")
        plain(source, target)

    monkeypatch.setattr("stepguard.storage.baseline_files.os.replace", full)
    result = committed.run("--perf-update")
    assert result.ret == 1
    assert (committed.baselines / "cpu.json").read_bytes() == before
    assert [path.name for path in committed.baselines.iterdir()] == ["cpu.json"]
    result.says("*cannot be written: No space left on device; the old file is*")


def test_a_file_that_a_script_writes_into_the_tree_is_named(gate, monkeypatch):
    """With what mends it: a script may write its settings or checkpoints beside its source."""
    gate.suite(gate.cpu())
    gate.commit()
    measure = gate.measure

    def writing(*arguments):
        (gate.path / "config.yaml").write_text("lr: 1\n")
        return measure(*arguments)

    monkeypatch.setattr("stepguard.measure.suite.measure", writing)
    result = gate.run("--perf-update")
    assert result.ret == 1
    result.says("*different code (config.yaml)*")
    result.says("*uncommitted changes (config.yaml): commit them, or add outputs*")
    assert not (gate.baselines / "cpu.json").exists()


# Several cases
