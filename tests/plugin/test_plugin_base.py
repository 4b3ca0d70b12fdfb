"""--perf-base: who edits baselines or waivers is judged by those of the branch it goes to."""

import json
from datetime import date

import pytest

from stepguard.plugin.options import CI_BASES

RISEN = {"generated_kernels": 8}


def branch(gate):
    """A case whose baseline on main is what it measures, and a branch beside main."""
    case = gate.guarded()
    gate.commit()
    gate.git("checkout", "-q", "-b", "change")
    return case


def accept_more(gate, case):
    """On the branch: the case costs more, and its baseline is edited so that this is equal."""
    gate.will_measure(case, counters=RISEN)
    path = gate.baselines / "cpu.json"
    path.write_text(path.read_text().replace('"generated_kernels": 7', '"generated_kernels": 8'))
    gate.commit()


def test_an_edited_baseline_does_not_judge_the_tree_that_edits_it(gate):
    """Green by its own baseline; by main's it is CHANGED, and what was edited is said first."""
    case = branch(gate)
    accept_more(gate, case)
    gate.run(passed=1)
    result = gate.run("--perf-base=main", "--perf-json=run.json", "--perf-report=run.md", failed=1)
    edit = "cpu.json: linear?nano?: generated_kernels 7 -> 8"
    said = "judged by the baselines and waivers of main (????????????), and by waivers that*"
    result.says("stepguard: no GPU*", f"stepguard: {said}", f"stepguard:   {edit}",
                "linear?nano?: CHANGED: generated_kernels 7 -> 8*", "*= performance =*", said,
                f"  {edit}", "case *")  # fmt: skip
    document = json.loads((gate.path / "run.json").read_text())
    assert document["results"][0]["text"]["steps"][0].startswith(
        "this tree's baseline accepts it: review"
    )
    assert document["base"] == "main"
    assert document["base_changes"] == ["cpu.json: linear[nano]: generated_kernels 7 -> 8"]
    assert document["results"][0]["baseline"] == "baselines/cpu.json"
    _, *page = (gate.path / "run.md").read_text().splitlines()
    assert page[2].startswith("**This change edits baselines or waivers.** Those of main judged")
    assert page[4] == "* cpu.json: linear[nano]: generated_kernels 7 -> 8"


def test_a_waiver_that_the_tree_adds_waives_and_is_shown_first(gate):
    """Declared here: in the first lines, in the document, and to the gate, which reads the commit.
    An edit of the base's waiver is one, too.
    """
    case = branch(gate)
    gate.will_measure(case, counters=RISEN)
    waiver = {"case": case.id, "metric": "generated_kernels", "value": 8, "reason": "for now"}
    waiver |= {"expires": "2030-01-05", "who": "A. Author"}
    path = gate.baselines / "waivers.json"
    path.write_text(json.dumps({"schema": 1, "waivers": [waiver]}))
    with pytest.MonkeyPatch.context() as patch:
        _on_2030_01_01(patch)
        gate.commit()
        result = gate.run("--perf-base=main", "--perf-json=run.json", passed=1)
        said = "waivers.json: linear?nano?, generated_kernels: declared here: *up to 8 until*"
        result.says(f"stepguard:   {said}", "*declared here, waived: generated_kernels *")
        (found,) = json.loads((gate.path / "run.json").read_text())["results"]
        (one,) = found["verdict"]["permissions"]
        assert one["permission"]["commit"] == gate.git("rev-parse", "HEAD").strip()
        gate.git("branch", "-f", "main", "change")
        gate.run("--perf-base=main", passed=1)


def _on_2030_01_01(patch):
    for name in ("plugin.baseline_folder", "plugin.session", "measure.suite"):
        patch.setattr(f"stepguard.{name}.today", lambda: date(2030, 1, 1))


def test_a_case_that_main_has_no_baseline_of_is_not_judged_by_its_own(gate):
    """NO BASELINE, an error: nobody has looked at the level that the tree brings along."""
    case = branch(gate)
    new = gate.cpu("new")
    gate.suite(case, new)
    gate.record(new)
    gate.commit()
    result = gate.run("--perf-base=main", passed=1, errors=1)
    result.says("*cpu.json: linear?new?: none -> recorded, sync_candidates_per_step 10*")


@pytest.mark.parametrize(("options", "why"), [
    (["--perf-base="], "*--perf-base: empty*"),
    (["--perf-base=mian"], "*--perf-base=mian: 'mian' is no revision of *did you mean main?*"),
    (["--perf-base=main", "--perf-update"],
     "*a run that records is judged by its own baselines: *"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused(gate, options, why):
    """Before anything is measured."""
    branch(gate)
    result = gate.run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR and not gate.measured
    result.stderr.fnmatch_lines([why])


@pytest.fixture
def in_ci(gate, monkeypatch):
    """A branch that edits its baseline, in the run of a pull request, which names main."""
    case = branch(gate)
    gate.git("update-ref", "refs/remotes/origin/main", "main")
    accept_more(gate, case)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    return gate


def test_a_pull_request_does_not_judge_itself(in_ci):
    """Recorded and green in one request: a strict run takes the base that CI names."""
    result = in_ci.run(failed=1)
    result.says(
        "stepguard: judged by the baselines and waivers of origin/main (*",
        "stepguard:   cpu.json: linear?nano?: generated_kernels 7 -> 8",
        "linear?nano?: CHANGED: generated_kernels 7 -> 8*",
    )
    in_ci.run("--perf-no-strict", passed=1)
    in_ci.run("--perf-base=change", passed=1)


@pytest.mark.parametrize("variable", CI_BASES)
def test_every_ci_names_the_base_in_its_way(in_ci, monkeypatch, variable):
    """GitHub, GitLab, Bitbucket, Buildkite, Jenkins, Azure, which writes refs/heads/ before it."""
    monkeypatch.delenv("GITHUB_BASE_REF")
    in_ci.run(passed=1)
    monkeypatch.setenv(variable, "refs/heads/main" if variable.startswith("SYSTEM") else "main")
    in_ci.run(failed=1)


def test_a_base_that_is_not_here_is_no_pass(in_ci):
    """A shallow clone cannot say what the branch changes in its baselines."""
    in_ci.git("update-ref", "-d", "refs/remotes/origin/main")
    result = in_ci.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR and not in_ci.measured
    result.stderr.fnmatch_lines(["*GITHUB_BASE_REF=main: 'origin/main' is no revision*git fetch*"])


@pytest.mark.parametrize("option", ["--perf-update", "--perf-update-new"])
def test_what_records_is_no_way_around_the_base(in_ci, option):
    """A run that records is judged by the files that it records into."""
    in_ci.pytester.makeini(f"[pytest]\naddopts = {option}\n")
    in_ci.commit()
    result = in_ci.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR and not in_ci.measured
    result.stderr.fnmatch_lines(["*a run that records is judged by its own baselines: *"])


def test_no_conftest_takes_ci_back(in_ci, monkeypatch):
    """A strict run is what the command was started as."""
    text = "import os\n\npytest_plugins = ['stepguard.plugin']\nos.environ['CI'] = ''\n"
    (in_ci.path / "conftest.py").write_text(text)
    in_ci.commit()
    result = in_ci.run("--perf-base=change")
    assert result.ret == 1
    result.says('*CI true -> "" since pytest was started*')


def test_a_case_that_is_dropped_with_its_recording_is_missed(gate):
    """Strict: main's recording says which cases there are, and not the one that the tree brings."""
    kept, dropped = gate.cpu("a"), gate.cpu("b")
    gate.suite(kept, dropped)
    gate.record(kept, dropped)
    gate.commit()
    gate.git("checkout", "-q", "-b", "change")
    gate.suite(kept)
    path = gate.baselines / "cpu.json"
    content = json.loads(path.read_text())
    del content["cases"]["linear[b]"]
    path.write_text(json.dumps(content))
    gate.commit()
    gate.run("--perf-strict", passed=1)
    result = gate.run("--perf-strict", "--perf-base=main")
    assert result.ret == 1
    missing = "*linear?b?: guarded, but not measured: no test of it was collected; "
    result.says(missing + "*remove it from baselines of main*")
