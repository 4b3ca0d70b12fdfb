"""python -m stepguard gate: status 0 for a pass that is seen, else a sentence for each problem."""

import pytest
from builders import baseline_file, entry
from run_documents import COMMIT, measured, run_document

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.machine.interpreter import as_typed
from stepguard.report.document_json import as_json
from stepguard.storage import baseline_files

SOUND = run_document(measured(entry()))
FOR = ("--commit", COMMIT, "--gpus", "1")


@pytest.fixture
def base(shell, tmp_path):
    """A clone of the base branch: one baseline."""
    baseline_files.save(tmp_path / "baselines/h200x1.json", baseline_file())
    return shell


def gate(shell, tmp_path, document, *arguments):
    """What the gate says of a document, or of bytes in its place."""
    data = document if isinstance(document, bytes) else as_json(document).encode()
    (tmp_path / "perf.json").write_bytes(data)
    return shell("gate", "perf.json", *(arguments or FOR))


def test_a_sound_run_passes(base, tmp_path):
    """It says of what it is sure."""
    told = gate(base, tmp_path, SOUND)
    assert (told.status, told.err) == (0, "")
    assert told.out == (
        "the gate passes: 1 case, all that NVIDIA H200 has to measure, "
        "measured at aaaaaaaaaaaa: 1 same\n"
    )


def test_a_copy_of_a_baseline_guards_nothing(base, tmp_path):
    """Its cases are none of the base's: a copy could have fewer gates, or others."""
    baseline_files.save(
        tmp_path / "baselines/h200x1_copy.json", baseline_file(cases={"a[x]": entry()})
    )
    assert gate(base, tmp_path, SOUND).status == 0


def test_each_problem_is_a_line(base, tmp_path):
    """With its code; the log shows nothing that a document puts into it as a command."""
    slower = measured(entry(), launch_ms=(275.0,) * 3)
    told = gate(base, tmp_path, run_document(slower, dirty=["\n::error::x\x1b[2J"]))
    assert told.status == 1 and told.err == "stepguard: the gate fails, 3 problems:\n"
    dirty, moved, failed, last = told.out.splitlines()
    assert dirty.startswith("DIRTY: \\n: :error::x\\x1b[2J differs from the commit; commit it")
    assert moved.startswith("TREE_CHANGED: train_step[124m-bf16]: ")  # its result has no such file
    assert failed.startswith(
        "FAILED: train_step[124m-bf16]: SLOWER: step_ms 250.000 -> 275.000 (+10.0 %, "
    )
    assert told.out.count("SLOWER") == 1
    assert last == f"what a code means: {as_typed('stepguard explain-code CODE')}"


def test_no_verdict_has_a_status_of_its_own(base, tmp_path):
    """3 if a case could not be decided and nothing else is wrong; a file that differs is 1."""
    fault = Fault(Reason.THROTTLED, "heat", "", "launch 1, block")
    unfit = measured(entry(), faults=(fault,), launches=())
    told = gate(base, tmp_path, run_document(unfit))
    assert told.status == 3 and told.out.startswith("FAILED: train_step[124m-bf16]: UNFIT")
    slower = measured(entry(), launch_ms=(275.0,) * 3)
    for wrong in (run_document(unfit, slower), run_document(unfit, dirty=["model/gpt.py"])):
        assert gate(base, tmp_path, wrong).status == 1


def test_github_gets_annotations(base, tmp_path, monkeypatch):
    """There alone, and of a document that cannot be read, too."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    slower = run_document(measured(entry(), launch_ms=(275.0,) * 3))
    assert "::error" not in gate(base, tmp_path, slower).out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    line = gate(base, tmp_path, slower).out.splitlines()[-1]
    assert line.startswith("::error file=perf_tests/test_train_step.py,line=33,title=train_step")
    assert gate(base, tmp_path, b"{}").out.startswith("::error title=no document::perf.json: ")


@pytest.mark.parametrize("content", [
    b"", b"{}", as_json(SOUND).encode()[:-9], b"[" * 10**5, b"\xff", b'{"schema": 1, "cases": []}',
], ids=["empty", "no schema", "truncated", "nested", "no text", "an older schema"])  # fmt: skip
def test_what_is_no_document_fails(base, tmp_path, content):
    """With what is wrong, and how a document is made; never a traceback."""
    told = gate(base, tmp_path, content)
    assert (told.status, told.out) == (1, "")
    assert told.err.startswith("stepguard: perf.json: ") and "--perf-json=PATH" in told.err


def test_a_baseline_that_cannot_be_read_fails(base, tmp_path):
    """Of the base: then nobody knows what to expect."""
    (tmp_path / "baselines/h200x1.json").write_text("{")
    told = gate(base, tmp_path, SOUND)
    assert told.status == 1 and "h200x1.json" in told.err


@pytest.mark.parametrize(("arguments", "says"), [
    ((), "the following arguments are required"),
    (("--commit", ""), "a commit's hash in full"),
    (("--commit", "aaaa"), "a commit's hash in full"),
    (("--commit", COMMIT, "--gpus", "-1"), "0 or more"),
])  # fmt: skip
def test_a_call_that_means_nothing_is_refused(base, tmp_path, arguments, says):
    """A variable that is not set must not turn the gate off."""
    (tmp_path / "perf.json").write_text(as_json(SOUND))
    told = base("gate", "perf.json", *arguments)
    assert told.status == 2 and says in told.err
