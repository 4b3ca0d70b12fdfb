"""Kept files, cases and commands that have a former name: it is ignored, or says what serves."""

import re

import pytest
from builders import CASE_ID, entry, replace
from inputs import failed, pairs

import stepguard.core.comparison
import stepguard.core.evidence
from stepguard import Case
from stepguard.cli.main import main
from stepguard.core import former
from stepguard.core.comparison import Question
from stepguard.core.evidence import to_json
from stepguard.core.reasons import Reason
from stepguard.core.recording import SCHEMA, BaselineFile
from stepguard.core.run_document import ProblemCode
from stepguard.judge import rule_book
from stepguard.judge.rule_book import judge
from stepguard.plugin.baseline_folder import former_lines
from stepguard.storage.baseline_files import save

KILLED = failed("KILLED", "rank 0 was killed by SIGKILL")
BASE_KILLED = pairs(head={"launches": ()}, base={"faults": KILLED.faults, "launches": ()})
EACH = pytest.mark.parametrize(
    ("kept", "read", "verdict_of"),
    [(KILLED, stepguard.core.evidence.from_json, lambda found: judge(Question(found, None))),
     (BASE_KILLED, stepguard.core.comparison.from_json,
      lambda found: rule_book.judge(Question(pairs=found)))],
    ids=["evidence", "comparison"])  # fmt: skip


def older(kept):
    """The file as a version wrote it in which KILLED was RANK_LOST."""
    return to_json(kept).replace(b'"KILLED"', b'"RANK_LOST"')


@EACH
def test_a_former_code_has_the_verdict_of_todays(kept, read, verdict_of, monkeypatch):
    """In evidence, and on either side of a comparison."""
    monkeypatch.setitem(former.REASONS, "RANK_LOST", "KILLED")
    assert read(older(kept), "file") == kept
    assert verdict_of(read(older(kept), "file")).reason is Reason.KILLED


@EACH
def test_an_unknown_code_is_refused(kept, read, verdict_of):
    """A code that no version had is no evidence of this project's."""
    with pytest.raises(ValueError, match="Invalid enum value 'RANK_LOST'"):
        read(older(kept), "file")


def test_former_codes_are_none_of_todays():
    """Each stands for a reason of today, by its own name, and hides none."""
    assert not former.REASONS.keys() & Reason.__members__.keys()
    assert {*former.REASONS.values()} <= Reason.__members__.keys()
    assert not former.PROBLEMS.keys() & ProblemCode.__members__.keys()
    assert {*former.PROBLEMS.values()} <= ProblemCode.__members__.keys()


GONE = "a_former_pct"


@pytest.fixture
def gone(monkeypatch):
    """A metric, an option and a command that are gone."""
    monkeypatch.setitem(former.METRICS, GONE, "the profile shows it")
    monkeypatch.setitem(former.OPTIONS["pytest"], "--perf-former", "leave it out")
    monkeypatch.setitem(former.COMMANDS, "former", "git diff baselines/")
    monkeypatch.setattr(former, "FIELDS", frozenset({("permission", "commit")}))


def test_a_document_is_read_without_its_former_metrics(gone):
    """As a key, as a gate, as a row of its own; and without a former field where it stood. What
    is beside it stays.
    """
    verdict = {"metric": GONE, "status": "SLOWER"}
    raw = {
        "gates": ["step_ms", GONE],
        "differences_pct": {GONE: {"mean": 1.0}, "sync_overhead_pct": {"mean": 2.0}},
        "differences": [{"name": "a_former"}, {"name": "sync_overhead"}],
        "metrics": [verdict, verdict | {"metric": "step_ms"}],
        "permissions": [{"permission": {"commit": "", "metric": "step_ms"}}],
        "figures": {"type": "TooFewLaunches", "launch": "", "launches": 2, "planned": 3},
        "commit": "c" * 40,
    }
    said = "launches are missing: launches 2, planned 3"
    assert former.without(raw) == {
        "figures": {"type": "Said", "message": said, "launch": ""},
        "gates": ["step_ms"],
        "differences_pct": {"sync_overhead_pct": {"mean": 2.0}},
        "differences": [{"name": "sync_overhead"}],
        "metrics": [verdict | {"metric": "step_ms"}],
        "permissions": [{"permission": {"metric": "step_ms"}}],
        "commit": "c" * 40,
    }


def test_a_gate_that_is_gone_is_ignored_with_a_note(gone, tmp_path):
    """In a case a line says what serves instead; of files one line has all names."""
    case = Case("a", "m:f", gates=("step_ms", GONE))
    assert case.gates == ("step_ms",)
    gates = ["step_ms"]
    for name, machine in (("h100x1.json", "NVIDIA H100"), ("h200x1.json", "NVIDIA H200")):
        known = replace(entry(), gates=gates)
        save(tmp_path / name, BaselineFile(schema=SCHEMA, machine=machine, cases={CASE_ID: known}))
        text = (tmp_path / name).read_text()
        assert re.search(r'"gates": \[\s*"', text)
        (tmp_path / name).write_text(re.sub(r'("gates": \[\s*)"', rf'\1"{GONE}", "', text))
    assert former_lines(tmp_path, [case], "NVIDIA H200") == [
        f"{GONE} is not gated any more, ignored in f[a]: the profile shows it",
        f"ignored in h200x1.json, no metrics any more: {GONE}",
    ]
    assert former_lines(tmp_path / "none", [], "CPU") == []


def test_a_command_that_is_gone_says_what_serves(gone, capsys):
    """With the status of bad usage."""
    assert main(["former", "list"]) == 2
    assert "former is no command any more: git diff baselines/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option"),
    [(one, name) for one in former.OPTIONS if one != "pytest" for name in former.OPTIONS[one]],
)
def test_a_commands_option_that_is_gone_says_what_serves(command, option, capsys):
    """With or without a value, and it is in no help."""
    for given in ([option], [f"{option}=x"], [option, "x"]):
        with pytest.raises(SystemExit, match="2"):
            main([command, *given])
        said = f"{option} is no option any more: {former.OPTIONS[command][option]}"
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert option not in capsys.readouterr().out


def test_a_scripts_own_option_is_not_looked_at(capsys):
    """Behind -- it may have any name."""
    assert main(["run", "--", "none.py", "--trace"]) == 2
    assert "--trace is no option" not in capsys.readouterr().err


def test_an_option_that_is_gone_says_what_serves(gone, pytester):
    """With or without a value, and it is in no help."""
    plugin = "-p", "stepguard.plugin"
    for given in ("--perf-former", "--perf-former=x"):
        result = pytester.runpytest_inprocess(*plugin, given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*--perf-former is no option any more: leave it out*"])
    assert "--perf-former" not in pytester.runpytest_inprocess(*plugin, "--help").stdout.str()
