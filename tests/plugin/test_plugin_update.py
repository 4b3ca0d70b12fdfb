"""--perf-update: records every sound result on a clean commit, and nothing else, ever."""

import json
import os
from pathlib import Path

import pytest

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.storage.waiver_file import today


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


def test_a_changed_level_opens_an_epoch(committed):
    """A CHANGED case is recorded as a new epoch and passes; the old epoch stays in the file."""
    committed.run("--perf-update")
    committed.will_measure(committed.cpu(), counters={"flops_per_step": 2000})
    result = committed.run("--perf-update")
    assert result.ret == 0
    result.says(
        "linear?nano? * CHANGED (recorded)",
        "1 CHANGED (recorded)",
        "linear?nano?: a new level begins (accepted with --perf-update)*",
    )
    flops = [
        epoch["recordings"][-1]["counters"]["flops_per_step"]
        for epoch in recorded(committed)["linear[nano]"]["epochs"]
    ]
    assert flops == [1000, 2000]
    assert committed.run().ret == 0


@pytest.mark.parametrize("option", ["--perf-update", "--perf-update-new", "--perf-append"])
def test_a_run_that_records_measures_all(committed, option):
    """Also what is certain before. Other runs may end once it is; not without a baseline."""
    committed.run("--perf-update")
    assert not committed.may_be_enough
    committed.run()
    assert committed.may_be_enough
    committed.run(option)
    assert not committed.may_be_enough


def test_same_on_a_gpu_appends(committed, h200):
    """A `same` GPU result becomes one more recording of its epoch, with its times."""
    committed.gpus = [h200]
    committed.suite(committed.cuda())
    committed.git("commit", "-qam", "gpu")
    for count in (1, 2, 3):
        assert committed.run("--perf-update").ret == 0
        (epoch,) = recorded(committed, "h200x1.json")["linear[124m]"]["epochs"]
        assert len(epoch["recordings"]) == count
    assert epoch["recordings"][0]["times_ms"]["step_ms"] == [10.0, 10.0]


@pytest.mark.parametrize("option", ["--perf-update", "--perf-update-new", "--perf-append"])
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
    committed.will_measure(committed.cpu(), counters={"flops_per_step": 2000})

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


def test_an_earlier_update_does_not_make_the_tree_dirty(gate):
    """Writing the first case's baseline does not get the second one refused, nor the next run."""
    gate.suite(gate.cpu("a"), gate.cpu("b"))
    gate.commit()
    assert gate.run("--perf-update").ret == 0
    gate.will_measure(gate.cpu("a"), counters={"flops_per_step": 2})
    assert gate.run("--perf-update").ret == 0
    assert set(recorded(gate)) == {"linear[a]", "linear[b]"}


def test_a_file_that_a_script_writes_into_the_tree_is_named(gate, monkeypatch):
    """With what mends it: a script may write its settings or checkpoints beside its source."""
    gate.suite(gate.cpu())
    gate.commit()
    measure = gate.measure

    def writing(*arguments):
        (gate.path / "config.yaml").write_text("lr: 1\n")
        return measure(*arguments)

    monkeypatch.setattr("stepguard.measure.suite.measure_launches", writing)
    result = gate.run("--perf-update")
    assert result.ret == 1
    result.says("*different code (config.yaml)*")
    result.says("*uncommitted changes (config.yaml): commit them, or add outputs*")
    assert not (gate.baselines / "cpu.json").exists()


def test_a_baselines_folder_does_not_excuse_the_tree(gate):
    """--perf-baselines=. excuses the baseline files in it, not the code beside them."""
    gate.suite(gate.cpu())
    gate.commit()
    (gate.path / "extra.py").write_text("x = 1\n")
    result = gate.run("--perf-baselines=.", "--perf-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*uncommitted changes (extra.py)*"])


def test_refusals_name_the_folder(committed):
    """With --perf-baselines what is refused has to be accepted there, and so says the hint."""
    (committed.path / "mine").mkdir()
    other = ("--perf-baselines=mine", "--perf-update")
    assert committed.run(*other).ret == 0
    committed.will_measure(committed.cpu(), counters={"graph_breaks": 2})
    result = committed.run(other[0])
    result.says("  accept: *accept 'linear?nano?' --baselines mine --reason*")
    waived = {"case": "linear[nano]", "metric": "graph_breaks", "value": 2, "reason": "why"}
    waived |= {"who": "A. Author", "expires": today().isoformat()}
    text = json.dumps({"schema": 1, "waivers": [waived]})
    (committed.path / "mine" / "waivers.json").write_text(text)
    result = committed.run(*other)
    result.says("*not recorded, waived until *accept * --baselines mine --re*")


# Several cases


@pytest.fixture
def three(gate, h200):
    """Three committed GPU cases with a baseline of 10 ms, and a new one."""
    gate.gpus = [h200]
    known = [gate.cuda(name) for name in "abc"]
    gate.suite(*known, gate.cuda("new"))
    gate.record(*known)
    gate.commit()
    gate.known = known
    return gate


def move(gate, *step_ms):
    """What the known cases take from now on."""
    for case, ms in zip(gate.known, step_ms, strict=True):
        gate.will_measure(case, step_ms=ms)


def test_each_case_is_recorded_by_itself(three):
    """Those that moved have a new level; the third one has another recording of its own."""
    move(three, 10.5, 10.55, 10.0)
    result = three.run("--perf-update", "--perf-reason=a new power limit", "-v")
    assert result.ret == 0
    result.says("linear?a? * (recorded)", "linear?c? * same")
    entries = recorded(three, "h200x1.json")
    assert [len(entries[f"linear[{name}]"]["epochs"]) for name in "abc"] == [2, 2, 1]
    assert "linear[new]" in entries


def test_an_interrupted_run_records_what_it_has(three):
    """A run that ends before its last test: that one is recorded, as it always was."""
    body = (three.path / "test_perf.py").read_text()
    more = '\n\ndef test_z(perf):\n    pytest.exit("stop")\n'
    (three.path / "test_perf.py").write_text(body + more)
    three.git("commit", "-qam", "interrupted")
    three.run("--perf-update")
    assert "linear[new]" in recorded(three, "h200x1.json")
