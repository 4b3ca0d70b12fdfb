"""--perf-against and --perf-budget: every case beside another revision, and what pytest says."""

import json
import os
import sys
import sysconfig

import pytest

import stepguard.machine.git.worktree
import stepguard.plugin.session
from stepguard.core.comparison import from_json
from stepguard.machine.packages import requirements

OTHER = "--perf-against=old"


def a_case(gate, h200, pct=0.0, **fields):
    """A GPU case in a repository with the tag "old", one commit behind; how it will compare."""
    gate.gpus = [h200]
    case = gate.cuda()
    gate.suite(case)
    gate.commit(tag="old")
    gate.commit()
    gate.will_compare(case, pct, **fields)
    return case


def trees(gate):
    """What is left of other revisions' trees, in the folder and in git."""
    folder = gate.path / ".stepguard" / "trees"
    left = [path.name for path in folder.iterdir()] if folder.exists() else []
    listed = gate.git("worktree", "list", "--porcelain").count("worktree ")
    return sorted(set(left) - {"lock"}), listed


def old(gate):
    """The other revision as it is shown."""
    return f"old ({gate.git('rev-parse', 'old')[:12]})"


# outcomes


def test_settings_serve_where_the_command_has_no_option(gate, h200):
    """The folder is beside the settings; minutes that are none are a usage error."""
    a_case(gate, h200)
    (gate.path / "kept").mkdir()
    settings = "[pytest]\nperf_against = old\nperf_baselines = kept\nperf_budget = "
    (gate.path / "pytest.ini").write_text(f"{settings}7\n")
    for typed, minutes in ((), 7.0), (("--perf-budget=9",), 9.0):
        gate.run("--perf-json=run.json", *typed, passed=1)
        told = json.loads((gate.path / "run.json").read_text())["options"]["perf"]
        assert (told["--perf-against"], told["--perf-baselines"]) == ("old", "kept")
        assert told["--perf-budget"] == minutes
    (gate.path / "pytest.ini").write_text(f"{settings}half\n")
    result = gate.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*perf-budget 'half': minutes, above 0*"])


def test_what_head_lacks_of_the_other_revision_is_said(gate, h200):
    """Main went on without it: what became slower there hides what did here."""
    a_case(gate, h200)
    both = gate.git("rev-parse", "HEAD").strip()
    gate.git("switch", "-q", "-c", "main-now")
    gate.git("commit", "-q", "--allow-empty", "-m", "meanwhile")
    gate.git("switch", "-q", "--detach", both)
    (gate.path / "new.py").write_text("")
    gate.commit()
    result = gate.run("--perf-against=main-now", passed=1)
    why = "main-now (????????????) has commits that HEAD lacks, and what they changed is compared"
    result.says(f"{why} as well; the last commit that both have: --perf-against={both[:12]}")
    gate.run(OTHER, passed=1).stdout.no_fnmatch_line("*has commits that HEAD lacks*")


def test_equal_trees_pass_without_a_baseline(gate, h200):
    """`same`, exit 0: no stored baseline has a say, and nothing is launched for one."""
    case = a_case(gate, h200)
    result = gate.run("-v", OTHER, passed=1)
    assert result.ret == 0 and gate.measured == []
    result.says("same *100%]", "linear?124m?*same", "1 same")
    ((case_id, commit, _),) = gate.paired
    assert (case_id, commit) == (case.id, gate.git("rev-parse", "old").strip())


def test_a_cpu_beside_another_revision(gate):
    """What pairs say of a `same` is said once."""
    case = gate.cpu()
    gate.suite(case)
    gate.commit(tag="old")
    gate.commit()
    gate.will_compare(case, 10.0, pairs=1)
    result = gate.run(OTHER, passed=1)
    assert str(result.stdout).count("not 1.5 times as long in each pair, on a CPU") == 1


def test_a_case_among_many_has_its_level_beforehand(gate, h200):
    """0.9 % in pairs that scatter by 0.24 % is SLOWER alone, at p = 0.0006; among twenty cases that
    is not enough, and says at which level it is undecided.
    """
    gate.gpus = [h200]
    cases = [gate.cuda(f"c{number}") for number in range(20)]
    gate.suite(*cases)
    gate.commit(tag="old")
    gate.commit()
    gate.will_compare(cases[7], 0.9, wider=18)
    result = gate.run(OTHER, "--perf-json=run.json")
    assert result.ret == 1
    result.says("1 INCONCLUSIVE, 19 same", "*level 0.05 % among the cases of its run*")
    document = json.loads((gate.path / "run.json").read_text())["results"]
    verdicts = {one["case"]: one["verdict"] for one in document}
    assert verdicts[cases[7].id]["reason"] == "UNDECIDED"
    gate.run(OTHER, "-k", "c7", "--perf-json=run.json", failed=1, deselected=19)
    (found,) = json.loads((gate.path / "run.json").read_text())["results"]
    assert 0.01 / 20 < found["verdict"]["p_value"] <= 0.001


def test_a_tree_edited_meanwhile_is_broken(gate, h200):
    """Pairs may be of two trees: nobody knows what was judged. A second edit of a file that was
    dirty before is one, too.
    """
    case = a_case(gate, h200)
    for edits in ("# first\n", "# and again, while it is dirty\n"):
        gate.will_compare(case, does=lambda _, text=edits: (gate.path / "x.py").write_text(text))
        result = gate.run(OTHER, errors=1)
        result.says("*BROKEN: *the tree changed while it was measured*")


# options


def test_an_unknown_revision_is_a_usage_error(gate, h200):
    """It names what comes close, and nothing is measured."""
    a_case(gate, h200)
    result = gate.run("--perf-against=olb")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and gate.paired == []
    result.stderr.fnmatch_lines(["ERROR: --perf-against=olb: 'olb' is no revision*mean old?*"])


def python_saying(gate, prefix="/opt/other", version=(3, 12, 1), torch="2.9.0", **packages):
    """The path of a program that answers as a Python with these packages does."""
    needed = {one.name: "999" for one in requirements()} | {"pip": "25.0"}
    needed |= {"torch": torch} | {name.replace("_", "-"): v for name, v in packages.items()}
    said = {"prefix": prefix, "version": version, "torch": bool(torch), "modules": {}}
    said["packages"] = {name: version for name, version in needed.items() if version}
    path = gate.path.parent / f"{gate.path.name}-python"
    path.write_text(f"#!/bin/sh\necho '{json.dumps(said)}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda gate: "/nowhere/python", "no program is there; make an environment*venv*"),
        (lambda gate: gate.path, "no program is there; make an environment*venv*"),
        (lambda gate: "/bin/true", "it does not run as a Python: it says nothing; try: /bin/true*"),
        (
            lambda gate: sys.executable,
            "this is the running environment, *: name the python of another one",
        ),
        (
            lambda gate: python_saying(gate, version=(3, 9, 2)),
            "it is Python 3.9.2, 3.11 is needed*",
        ),
        (
            lambda gate: python_saying(gate, torch="2.7.1"),
            "torch 2.7.1 is installed, torch>=2.8 is needed; install with: *-python -m pip "
            "install 'torch>=2.8'",
        ),
        (
            lambda gate: python_saying(gate, torch="", msgspec="", pip=""),
            "msgspec is not installed; torch is not installed; install with: uv pip install "
            "--python *-python 'msgspec>=0.18.6' 'torch>=2.8'",
        ),
    ],
    ids=["nowhere", "a-folder", "no-python", "itself", "old-python", "old-torch", "lacks"],
)
def test_an_interpreter_that_cannot_run_is_a_usage_error(gate, h200, made, told):
    """It says what is wrong and what mends it, and nothing is measured."""
    a_case(gate, h200)
    python = made(gate)
    result = gate.run(f"--perf-against-python={python}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and gate.paired == gate.measured == []
    result.stderr.fnmatch_lines([f"ERROR: --perf-against-python={python}: {told}"])


def test_the_running_packages_on_the_path_of_both(gate, h200, monkeypatch):
    """The other interpreter would import them in place of its own."""
    a_case(gate, h200)
    packages = sysconfig.get_path("purelib")
    monkeypatch.setenv("PYTHONPATH", f"{packages}:{os.environ['PYTHONPATH']}")
    result = gate.run(f"--perf-against-python={python_saying(gate)}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *: PYTHONPATH has {packages}, *take that folder off *"])


@pytest.mark.parametrize("rev", [(), (OTHER,)], ids=["this-tree", "another-tree"])
def test_another_interpreter_beside_this_one(gate, h200, rev):
    """It runs the base's side alone, of this tree or of the other revision's, with compile caches
    of its own. A strict run says that it is no gate.
    """

    def look(benches):
        head, base = benches
        assert (head.python.asked, base.python.asked) == (sys.executable, str(python))
        assert head.cache != base.cache and (head.root == base.root) is not bool(rev)

    python = python_saying(gate)
    a_case(gate, h200, does=look)
    result = gate.run("--perf-strict", f"--perf-against-python={python}", *rev, passed=1)
    assert result.ret == 1 and gate.measured == [] and len(gate.paired) == 1
    tree = "old" if rev else "this tree"
    result.says(
        f"*judged against {tree} under {python}, *",
        f"*--perf-against-python={python} compares two environments, *",
    )


# the tree


def test_both_trees_are_there_while_it_is_measured(gate, h200):
    """HEAD's own, and the other one with what git knows, in a folder of this one; each is forbidden
    to the other. All cases share it, and it is gone at the end.
    """
    seen = []

    def look(benches):
        head, base = benches
        assert head.root == gate.path and base.root.parent == gate.path / ".stepguard" / "trees"
        assert (base.root / "test_perf.py").exists()
        assert head.forbidden == (base.own,) and base.forbidden == (head.own,)
        assert head.cache == base.cache and head.folder != base.folder
        seen.append(base.root)

    gate.gpus = [h200]
    both = [gate.cuda("a"), gate.cuda("b")]
    gate.suite(*both)
    gate.commit()
    for case in both:
        gate.will_compare(case, does=look)
    assert gate.run("--perf-against=HEAD").ret == 0
    assert len(seen) == 2 and len(set(seen)) == 1
    assert trees(gate) == ([], 1)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_the_tree_is_given_up_however_it_ends(gate, h200, raised):
    """Ctrl-C, an error of the engine's: not green, and no tree, lock or entry of git's is left."""

    def fail(benches):
        assert trees(gate)[1] == 2
        raise raised

    a_case(gate, h200, does=fail)
    result = gate.run(OTHER)
    assert result.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    assert trees(gate) == ([], 1)


def test_a_tree_that_cannot_be_had_fails_every_case(gate, h200, monkeypatch, no_tree):
    """A full disk, say: no case passes for want of the other tree."""
    a_case(gate, h200)
    monkeypatch.setattr(stepguard.plugin.session, "tree_of", no_tree)
    result = gate.run(OTHER, errors=1)
    assert result.ret == 1 and gate.paired == []
    result.says(
        "linear?124m?: BROKEN: --perf-against=old: cannot be made: no space left; free some"
    )
    result.stdout.no_fnmatch_line("*Traceback*")


# documents


def test_what_was_measured_is_kept_and_cannot_be_accepted(gate, h200):
    """Both sides, raw; no evidence.json stands beside it, which `accept` would take for launches of
    the protocol.
    """
    case = a_case(gate, h200, 2.0)
    gate.run(OTHER)
    (run,) = (gate.path / ".stepguard" / "runs").iterdir()
    (path,) = run.glob("*/*.json")
    assert path == run / case.slug / "comparison.json"
    found = from_json(path.read_bytes(), str(path))
    assert found.pairs == 6 and found.base.commit == gate.git("rev-parse", "old").strip()


@pytest.mark.parametrize("option", ["against", "baselines", "json", "report", "base"])
def test_an_empty_value_is_a_usage_error(gate, h200, option):
    """A variable that CI did not set must not choose another gate."""
    gate.gpus = [h200]
    gate.suite(gate.cuda())
    gate.commit()
    result = gate.run(f"--perf-{option}=")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and not gate.measured and not gate.paired
    result.stderr.fnmatch_lines([f"*error: argument --perf-{option}: *"])
