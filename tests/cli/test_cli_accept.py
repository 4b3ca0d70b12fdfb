"""python -m stepguard accept: kept evidence becomes a recording, or the refusal says why not."""

import json
import shutil

import pytest
from builders import replace
from git_repositories import commit, git

from stepguard.core.evidence import Counts, to_json
from stepguard.core.fingerprint import Fingerprint
from stepguard.machine.interpreter import as_typed


def entries(shell, folder="baselines"):
    """The cases of cpu.json."""
    return json.loads((shell.path / folder / "cpu.json").read_text())["cases"]


def test_the_last_run(shell):
    """Without arguments every case of the newest run is accepted, none of an older one."""
    shell.keep(shell.made("old"))
    shell.keep(shell.made("a"), shell.made("b"))
    done = shell("accept")
    assert done.status == 0
    assert set(entries(shell)) == {"linear[a]", "linear[b]"}
    assert [line for line in done.out.splitlines() if line[0] != " "] == [
        f"linear[{name}]: first recording in baselines/cpu.json" for name in "ab"
    ]


def test_a_command_that_leaves_no_evidence_hides_none(shell):
    """`memory`, say: the run before it is taken, and named; not if it measured another commit."""
    shell.commit()
    head = git(shell.path, "rev-parse", "HEAD")
    (kept,) = shell.keep(shell.made("a", commit=head))
    shell.keep()
    done = shell("accept")
    run = kept.parents[1].relative_to(shell.path)
    assert done.status == 0 and set(entries(shell)) == {"linear[a]"}
    assert done.out.startswith(f"the last run left no evidence; that of {run}:\n")
    shutil.rmtree(shell.path / "baselines")
    commit(shell.path, "change", model="1\n")
    refused = shell("accept")
    assert refused.status == 1 and f"is of commit {head[:12]}, HEAD is " in refused.err
    assert not (shell.path / "baselines").exists()


def test_one_case(shell):
    """A case by its id; its newest evidence counts, whichever run it is from."""
    shell.keep(shell.made("a", date="2030-01-01T00:00:01+00:00"), shell.made("b"))
    shell.keep(shell.made("b"))
    assert shell("accept", "linear[a]").status == 0
    assert set(entries(shell)) == {"linear[a]"}


def test_an_unknown_case(shell):
    """A case without evidence: status 1, one line with those that there are, nothing written."""
    shell.keep(shell.made("a"))
    done = shell("accept", "linear[b]")
    assert done.status == 1
    assert done.err.count("\n") == 1
    assert "no evidence of 'linear[b]'" in done.err and "linear[a]" in done.err
    assert not (shell.path / "baselines").exists()


def test_nothing_was_measured_yet(shell):
    """Without a run there is nothing to accept: status 1 and what to do first."""
    done = shell("accept")
    assert done.status == 1
    assert f"nothing is kept; measure: {as_typed('pytest perf_tests')}\n" in done.err
    assert shell("accept", "linear[a]").err == done.err


@pytest.mark.parametrize("command", [("accept",), ("judge",), ("accept", "linear[b]")])
def test_a_run_against_a_revision_left_nothing_to_accept(shell, command):
    """It is said, and not that there was no run: not even an older run's evidence is taken."""
    shell.keep(shell.made("a"))
    shell.keep_comparison(shell.made("b"), shell.made("b"))
    done = shell(*command)
    assert done.status == 1
    assert "the last run judged against main; such a run cannot be accepted. Measure: " in done.err
    again = shell("judge", "--evidence", done.err.rpartition("--evidence ")[2].strip())
    assert again.status == 0 and "linear[b]" in again.out
    assert not (shell.path / "baselines").exists()


def test_a_file_and_a_folder(shell):
    """--evidence takes one file, or a folder as CI kept it."""
    shell.commit()
    head = git(shell.path, "rev-parse", "HEAD")
    first, second = shell.keep(shell.made("a", commit=head), shell.made("b", commit=head))
    artifact = shell.path / "artifact"
    shutil.copytree(first.parents[1], artifact)
    shutil.rmtree(shell.path / ".stepguard")
    one = artifact / first.parent.name / "evidence.json"
    for name in ("one", "both"):
        (shell.path / name).mkdir()
    assert shell("accept", "--evidence", str(one), "--baselines", "one").status == 0
    assert set(entries(shell, "one")) == {"linear[a]"}
    assert shell("accept", "--evidence", str(artifact), "--baselines", "both").status == 0
    assert set(entries(shell, "both")) == {"linear[a]", "linear[b]"}


def test_evidence_of_a_tree_with_changes_is_not_offered_by_its_path(shell):
    """It is refused either way: that it was measured before the commit is all there is to say."""
    shell.commit()
    old = git(shell.path, "rev-parse", "HEAD")
    shell.keep(shell.made("a", commit=old, dirty=("model.py",)))
    commit(shell.path, "change", model="1\n")
    done = shell("accept", "linear[a]", "--reason", "I insist")
    assert done.status == 1 and "--evidence" not in done.err
    assert "uncommitted changes (model.py): commit them, or add outputs to .gitignore" in done.err


def test_evidence_from_elsewhere_has_to_be_of_the_main_branch(shell):
    """A level is confirmed by its commit: one that git does not know, that only a branch has, or
    that is a name and no hash, is refused, and nothing is written.
    """
    shell.commit()
    main = git(shell.path, "rev-parse", "HEAD")
    git(shell.path, "switch", "-q", "-c", "change")
    branch = commit(shell.path, "slow", model="1\n")
    artifact = shell.path / "artifact" / "evidence.json"
    artifact.parent.mkdir()
    for bad, why in (
        ("b" * 40, "is not in this repository: git fetch origin"),
        ("HEAD", "its commit HEAD is not in this repository"),
        (branch, "is not on ma"),
    ):
        artifact.write_bytes(to_json(shell.made("a", commit=bad)))
        done = shell("accept", "--evidence", "artifact", "--reason", "I insist")
        assert done.status == 1 and why in done.err
    assert not (shell.path / "baselines").exists()
    artifact.write_bytes(to_json(shell.made("a", commit=main)))
    assert shell("accept", "--evidence", "artifact").status == 0


def test_evidence_of_this_checkout_may_be_of_its_branch(shell):
    """What was measured here is named by its path, too, when it is not HEAD's."""
    shell.commit()
    git(shell.path, "switch", "-q", "-c", "change")
    branch = commit(shell.path, "slow", model="1\n")
    (kept,) = shell.keep(shell.made("a", commit=branch))
    assert shell("accept", "--evidence", str(kept)).status == 0


@pytest.mark.parametrize(("git", "told"), [
    (True, "is in no git repository: git init && git add -A && git commit -m 'Begin'"),
    (False, "git is not on PATH: install it"),
])  # fmt: skip
def test_evidence_of_no_commit_says_which_of_all_reasons_it_is(shell, monkeypatch, git, told):
    """And the command that mends it, as every other refusal."""
    shell.keep(shell.made("a", commit=""))
    if not git:
        monkeypatch.setenv("PATH", "/nowhere")
    done = shell("accept")
    assert done.status == 1
    assert f"{told}; then measure again" in done.err and "its commit is not known" not in done.err


def test_a_waiver_of_what_is_now_the_level_is_stale(shell):
    """It would excuse the next rise: who accepts is told, with the command that removes it."""
    shell.record(shell.made("a"))
    worse = shell.made("a", counters={"graph_breaks": 1}, date="2030-01-02T00:00:00+00:00")
    shell.keep(worse)
    given = ("--value", "2", "--reason", "r s t", "--days", "3", "--who", "A")
    assert shell("waive", "linear[a]", "graph_breaks", *given).status == 0
    done = shell("accept", "--reason", "it is meant")
    assert "linear[a]: waiver stale, graph_breaks is same (remove it: " in done.out
    assert "python -m stepguard waive 'linear[a]' graph_breaks --remove)" in done.out
    (shell.path / "other").mkdir()
    assert "stale" not in shell("accept", "linear[a]", "--baselines", "other").out


@pytest.mark.parametrize("command", ["accept", "waive"])
def test_a_misspelt_folder_is_refused(shell, command):
    """It is not made, and the answer says how a new one is; the usual one may be missing."""
    shell.keep(shell.made("a"))
    done = shell(command, "linear[a]", "--baselines", "no folder")
    assert done.status == 2 and not (shell.path / "no folder").exists()
    told = "no folder: no such folder; to record into a new one: mkdir -p 'no folder'\n"
    assert done.err.endswith(told)
    assert shell("accept").status == 0 and set(entries(shell)) == {"linear[a]"}


def test_a_refused_case_does_not_stop_the_others(shell):
    """Of two cases one is refused: the other is recorded, the status is 1."""
    shell.keep(shell.made("a", dirty=("x.py",)), shell.made("b"))
    assert shell("accept").status == 1
    assert set(entries(shell)) == {"linear[b]"}


def test_judge_reads_pairs_alone(shell):
    """A file of any name, and a folder of runs."""
    shell.commit()
    base = git(shell.path, "rev-parse", "HEAD")
    head = commit(shell.path, "slow", model="1\n")
    slow = shell.made("a", counters={"graph_breaks": 9}, commit=head)
    shell.keep_comparison(slow, shell.made("a", commit=base))
    kept = next((shell.path / ".stepguard/runs").rglob("comparison.json"))
    alone = shell.path / "pairs_of_a.json"
    alone.write_bytes(kept.read_bytes())
    for path in (alone, kept.parents[2]):
        done = shell("judge", "--evidence", str(path))
        assert done.status == 1 and "linear[a]: CHANGED: graph_breaks" in done.out


def test_judge_leaves_out_no_pairs_beside_other_evidence(shell):
    """A night's artifact has two runs, the second one beside an anchor: what that found is told,
    and not only what the first one left.
    """
    shell.record(shell.made("a"))
    shell.keep_comparison(shell.made("a", counters={"graph_breaks": 2}), shell.made("a"))
    for case in ((), ("linear[a]",)):
        done = shell("judge", *case, "--evidence", ".stepguard/runs", "--json", "-")
        assert done.status == 1
        verdicts = json.loads(done.out.splitlines()[-1])
        assert [one["verdict"]["status"] for one in verdicts] == ["same", "CHANGED"]


def test_judge_judges_all_that_it_is_asked_for(shell):
    """A case of pairs alone beside one that has evidence is; one that has neither is no pass."""
    pairs = shell.keep_comparison(shell.made("a"), shell.made("a"))
    folder, from_there = str(pairs.parents[1]), ("--evidence", str(pairs.parents[1]))
    assert shell("judge", "linear[a]", *from_there).status == 0
    done = shell("judge", "linear[a]", "linear[c]", *from_there)
    assert done.status == 1
    assert f"no evidence of 'linear[c]' in {folder}; it has: linear[a]\n" in done.err
    shell.record(shell.made("b"))
    done = shell("judge", "linear[a]", "linear[b]", "--evidence", ".stepguard/runs")
    assert done.status == 0 and {"linear[a]:", "linear[b]:"} <= {*done.out.split()}, done.err


def test_the_evidence_that_is_judged_stays(shell):
    """It is no document of a command, and measured once: --json names another file."""
    shell.record(shell.made("a"))
    (kept,) = (shell.path / ".stepguard").rglob("evidence.json")
    before = kept.read_bytes()
    done = shell("judge", "--evidence", str(kept), "--json", str(kept))
    assert (done.status, kept.read_bytes()) == (2, before) and "no earlier document" in done.err


def test_judge_with_evidence_of_several_machines(shell):
    """One case measured on two kinds of machine is compared with each one's own file."""
    gpu = {"device_name": "NVIDIA H200", "device_uuid": "GPU-1", "torch": "2.13.0"}
    cpu_evidence = shell.made("a")
    case = cpu_evidence.case | {"device": "cuda"}
    gates = ("flops_per_step",)
    gpu_evidence = replace(cpu_evidence, case=case, gates=gates, fingerprint=Fingerprint(**gpu))
    shell.keep(cpu_evidence, gpu_evidence)
    assert shell("accept", "--evidence", str(shell.path / ".stepguard/runs")).status == 0
    assert (shell.path / "baselines/cpu.json").is_file()
    assert (shell.path / "baselines/h200x1.json").is_file()
    slower = replace(
        gpu_evidence, counts=Counts(gpu_evidence.counts.values | {"flops_per_step": 2})
    )
    shell.keep(cpu_evidence, slower)
    done = shell("judge", "--json", "-")
    assert done.status == 1
    verdicts = json.loads(done.out.splitlines()[-1])
    assert [one["verdict"]["status"] for one in verdicts] == ["same", "CHANGED"]
