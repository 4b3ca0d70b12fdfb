"""What a stored baseline calls SLOWER or FASTER is judged on the spot."""

import json

import stepguard.measure.suite
from stepguard.core.comparison import from_json

MOVED = ["linear?124m?: same: step_ms 10.000 -> 11.000 *", "    not the code: *"]  # fmt: skip


def test_slower_code_is_confirmed(gate, h200):
    """The recording's own commit runs beside HEAD and is faster: SLOWER, and it says so."""
    case = gate.recorded(h200)
    gate.will_compare(case, 10.0)
    result = gate.run("-v", failed=1)
    (commit,) = {commit for _, commit, _ in gate.paired}
    assert commit == gate.git("rev-parse", "HEAD~1").strip()
    how = f"the recording's own commit, {commit[:12]} beside it"
    result.says(
        "SLOWER *100%]",
        f"    confirmed, the code is SLOWER: {how}: [[]+*over 6 pairs*",
        "  compared with 1 recording",
        "  accept: *",
        "1 SLOWER",
        "linear?124m?: SLOWER: step_ms 10.000 -> 11.000 (+10.0 %, limit 0.7 %)",
    )


def test_a_machine_that_moved_passes_and_is_reported(gate, h200):
    """Both codes are as fast here: exit 0, and the summary and both documents tell it."""
    case = gate.recorded(h200)
    result = gate.run("-v", "--perf-json=run.json", "--perf-report=run.md", passed=1)
    assert result.ret == 0 and [one[0] for one in gate.paired] == [case.id]
    result.says("same *100%]", "1 same", *MOVED)
    result.stdout.no_fnmatch_line("*accept:*")
    (found,) = json.loads((gate.path / "run.json").read_text())["results"]
    assert (found["verdict"]["status"], found["verdict"]["reason"]) == ("same", "WITHIN_MARGINS")
    assert "not the code" in (gate.path / "run.md").read_text()


def test_the_recordings_own_code_needs_no_second_look(gate, h200):
    """HEAD is the commit that was recorded: only the machine can have moved."""
    gate.recorded(h200, ahead=False)
    result = gate.run(passed=1)
    assert gate.paired == []
    result.says(*MOVED)


def test_an_edited_tree_is_not_the_recordings_code(gate, h200):
    """On the recorded commit, but edited: it is measured."""
    case = gate.recorded(h200, ahead=False)
    gate.will_compare(case, 10.0)
    (gate.path / "factories.py").write_text("# edited\n")
    gate.run(failed=1)
    assert len(gate.paired) == 1


def test_a_module_that_git_ignores_is_not_the_recordings_code(gate, h200):
    """Its commit is the recording's, and a library that was built anew is no part of that."""
    case = gate.recorded(h200, ahead=False, untracked=("model/_C.so",))
    gate.will_compare(case, 10.0)
    result = gate.run(failed=1)
    result.says("    confirmed, the code is SLOWER*")


def test_a_tree_edited_meanwhile_is_not_confirmed(gate, h200, monkeypatch):
    """HEAD was the recording's commit when the run began: what was slow is not that code."""
    case = gate.recorded(h200, ahead=False, step_ms=15.0)
    measure = stepguard.measure.suite.measure

    def edited(*arguments):
        (gate.path / "factories.py").write_text("# slow\n")
        return measure(*arguments)

    monkeypatch.setattr(stepguard.measure.suite, "measure", edited)
    result = gate.run(errors=1)
    assert not gate.paired and case
    result.says("    unconfirmed: the tree changed while it was measured")


def test_an_edited_hash_does_not_blame_the_machine(gate, h200):
    """A recording that names the slow commit itself: its pairs see no change, and clear nobody."""
    case = gate.recorded(h200)
    own = gate.git("rev-parse", "HEAD~1").strip()
    gate.git("checkout", "-q", "-b", "change")
    gate.commit()
    slow = gate.git("rev-parse", "HEAD").strip()
    path = gate.baselines / "h200x1.json"
    path.write_text(path.read_text().replace(own, slow))
    gate.commit()
    gate.will_compare(case, 0.0)
    result = gate.run(errors=1)
    result.says("    unconfirmed: the pairs used another commit, *is not on main; in its place*")


def test_the_epochs_first_recording_is_what_is_confirmed_against(gate, h200):
    """One that joined it since was `same` by the limit alone, and may have crept."""
    case = gate.recorded(h200)
    first = gate.git("rev-parse", "HEAD~1").strip()
    gate.will_measure(case, step_ms=10.06, commit=gate.git("rev-parse", "HEAD").strip())
    gate.record(case)
    gate.commit()
    gate.will_measure(case, step_ms=11.0)
    gate.run()
    assert {commit for _, commit, _ in gate.paired} == {first}


def test_a_tree_that_changes_while_pairs_run_clears_nobody(gate, h200):
    """Pairs of which nobody knows the code are no evidence for a slow step, now or in a retry."""
    case = gate.recorded(h200)
    gate.will_compare(case, does=lambda benches: (gate.path / ".gitignore").touch())
    result = gate.run(errors=1)
    result.says(
        "    unconfirmed: the tree changed while it was measured",
        "*files changed while it was measured*",
        "linear?124m?: INCONCLUSIVE: step_ms 10.000 -> 11.000 *",
    )
    (kept,) = gate.path.glob(".stepguard/runs/*/*/comparison.json")
    assert from_json(kept.read_bytes(), str(kept)).head.tree_changed
