"""A strict run fails for whatever leaves a case unguarded; by hand the same run is as it was.

Each way is one in which a run was green although a case that has a recording was not guarded.
"""

import json
import shutil
import signal
from dataclasses import dataclass
from typing import Any

import pytest
from run_documents import OLD

from stepguard.cli.main import main
from stepguard.core.run_document import ProblemCode, State
from stepguard.storage.run_document_file import load_document

DECLARED = (
    "@cases(\n"
    '    Case("a", "factories:linear", device="cpu", launches=1),\n'
    '    Case("b", "factories:linear", device="cpu", launches=1{b}),\n'
    ")\n"
    "{marks}def test_step(perf, case):\n"
    "{body}"
)
BODY = "    perf(case)\n"
PLUGIN = 'import pytest\n\npytest_plugins = ["stepguard.plugin"]\n\n\n'
HOOK = (
    PLUGIN
    + "@pytest.hookimpl({order})\ndef pytest_collection_modifyitems(items):\n    del items[1]\n"
)


@pytest.fixture
def project(gate):
    """A clean repository with two recorded cases, a and b."""
    suite(gate)
    gate.record(gate.cpu("a"), gate.cpu("b"))
    gate.commit()
    return gate


def suite(gate, b="", marks="", body=BODY, front=""):
    """The two cases as a test file declares them."""
    gate.tests(front + DECLARED.format(b=b, marks=marks, body=body))


def fixture(text):
    """Do something in a fixture of the run, once its tests are collected."""
    head = PLUGIN + "from pathlib import Path\n\n\n"
    return conftest(
        f"{head}@pytest.fixture(scope='session', autouse=True)\ndef early():\n    {text}\n"
    )


def loosened(gate):
    """Let a fixture put another baseline, as if nothing were slower, in place of the committed."""
    committed = (gate.baselines / "cpu.json").read_bytes()
    looser(gate)
    (gate.baselines / "cpu.json").rename(gate.path / "looser.json")
    (gate.baselines / "cpu.json").write_bytes(committed)
    fixture("Path('baselines/cpu.json').write_bytes(Path('looser.json').read_bytes())")(gate)


@dataclass(frozen=True)
class Way:
    """A change that leaves case b unguarded, and what a strict run says of it."""

    does: Any = lambda gate: None
    options: tuple[str, ...] = ()
    code: ProblemCode = ProblemCode.CASE_MISSING
    says: str = ""
    commits: bool = True
    was: int = 0  # the exit status of the same run without --perf-strict


def declares(**changes):
    """Change the test file."""
    return lambda gate: suite(gate, **changes)


def conftest(text):
    """Change the conftest."""
    return lambda gate: (gate.path / "conftest.py").write_text(text)


def settings(text):
    """Write settings of pytest's."""
    return lambda gate: (gate.path / "pytest.ini").write_text(f"[pytest]\n{text}\n")


def only_a(gate):
    """Delete case b."""
    gate.suite(gate.cpu("a"))


def moved_away(gate):
    """Move the tests where this run does not look."""
    (gate.path / "more").mkdir()
    (gate.path / "test_perf.py").rename(gate.path / "more/test_perf.py")
    (gate.path / "perf_tests").mkdir()
    (gate.path / "perf_tests/test_unit.py").write_text("def test_it():\n    pass\n")


def hidden(gate):
    """Change the source where git was told not to look."""
    gate.git("update-index", "--skip-worktree", "test_perf.py")
    (gate.path / "test_perf.py").write_text((gate.path / "test_perf.py").read_text() + "\n# x\n")


def assumed(gate):
    """The same with the other flag."""
    gate.git("update-index", "--assume-unchanged", "test_perf.py")
    (gate.path / "test_perf.py").write_text((gate.path / "test_perf.py").read_text() + "\n# x\n")


def looser(gate):
    """Record what is slower, and do not commit it."""
    gate.will_measure(gate.cpu("b"), counters={"flops_per_step": 2000})
    gate.record_anew(gate.cpu("a"), gate.cpu("b"))


def exclude(gate, pattern):
    """Let git ignore files, by what is no file of the tree."""
    (gate.path / ".git/info").mkdir()
    (gate.path / ".git/info/exclude").write_text(pattern)


def ignored(gate):
    """The same, in a file that git ignores."""
    gate.git("rm", "-q", "--cached", "baselines/cpu.json")
    exclude(gate, "*.json")
    gate.git("commit", "-qam", "no baseline")


def linked(gate):
    """The same, in a file that git has a link to."""
    looser(gate)
    (gate.baselines / "cpu.json").rename(gate.path.parent / "looser.json")
    (gate.baselines / "cpu.json").symlink_to(gate.path.parent / "looser.json")
    gate.git("commit", "-qam", "link")


def waived(gate):
    """Waive what case b fails for, in a file that git ignores."""
    changed(gate)
    exclude(gate, "waivers.json")
    waiver = "linear[b] flops_per_step --value 2000 --days 9 --who A --reason planted".split()
    assert main(["waive", *waiver]) == 0


def copied(gate):
    """Leave a copy of the baseline, by which case b has one gate, and drop the others."""
    document = json.loads((gate.baselines / "cpu.json").read_text())
    document["cases"]["linear[b]"]["gates"] = ["graph_breaks"]
    (gate.baselines / "cpu_copy.json").write_text(json.dumps(document))
    suite(gate, b=ONE_GATE)


def changed(gate):
    """Make case b do other work."""
    gate.will_measure(gate.cpu("b"), counters={"flops_per_step": 2000})


def edited(gate):
    """Edit a source file while case b is measured."""
    measure = gate.measure

    def edit(case, *arguments, **options):
        if case.name == "b":
            (gate.path / "model.py").write_text("x = 1\n")
        return measure(case, *arguments, **options)

    gate.pytester._monkeypatch.setattr("stepguard.measure.suite.measure_launches", edit)


FEWER = "from dataclasses import replace\n\n\n"
WIDER = ", margins_pct=(6.0, 20.0)"
ONE_GATE = ', gates=("graph_breaks",)'
REPLACED = '    perf(replace(case, gates=("graph_breaks",)))\n'
OTHER = "    perf(replace(case, params={'n': 1}) if case.name == 'b' else case)\n"
GONE = "*linear?b?: guarded, but not measured: no test of it was collected*from baselines/cpu.json*"
DESELECTED = "*linear?b?: guarded, but not measured: deselected by {}; to leave cases out*"


def differs(does, path):
    """The way of a file that is not the commit's."""
    says = f"*{path} differs from the commit*"
    return Way(does, code=ProblemCode.DIRTY, says=says, commits=False)


WAYS = {
    "a case was deleted": Way(only_a, says=GONE),
    "its module is skipped": Way(
        declares(front='pytest.importorskip("no_such_module")\n\n\n'),
        code=ProblemCode.NO_CASES,
        says="*there is no performance test*test_perf.py was skipped: *no_such_module*",
        was=5,
    ),
    "its module is ignored": Way(
        lambda gate: (only_a(gate), (gate.path / "test_b.py").write_text("")),
        ("--ignore=test_b.py",),
        says=GONE,
    ),
    "-k": Way(options=("-k", "step[a]"), says=DESELECTED.format("-k 'step?a?'")),
    "-m": Way(
        options=("-m", "not smoke or gpu"), says="*linear?a?: *-m 'not smoke or gpu'*", was=5
    ),
    "--deselect": Way(
        options=("--deselect=test_perf.py::test_step[b]",), says=DESELECTED.format("--deselect")
    ),
    "settings": Way(
        settings("addopts = -k step[a]"), says=DESELECTED.format("-k 'step?a?' of addopts")
    ),
    "moved to extended": Way(
        lambda gate: (
            declares(b=", extended=True")(gate),
            settings("addopts = -m 'not extended'")(gate),
        ),
        says=DESELECTED.format("-m 'not extended' of addopts"),
    ),
    "skip mark": Way(
        declares(marks="@pytest.mark.skip(reason='later')\n"),
        says="linear?a?, linear?b?: guarded, but not measured: *later; let it run, or *",
        was=1,
    ),
    "skip in the test": Way(
        declares(body="    if case.name == 'b':\n        pytest.skip('later')\n    perf(case)\n"),
        says="linear?b?: guarded, but not measured: later; let it run, or remove it *",
    ),
    "xfail mark": Way(
        lambda gate: (declares(marks="@pytest.mark.xfail\n")(gate), changed(gate)),
        code=ProblemCode.EXPECTED_TO_FAIL,
        says="*linear?b?: its mark xfail would let it fail*waive 'linear?b?' METRIC",
    ),
    "xfail of the module": Way(
        lambda gate: (declares(front="pytestmark = pytest.mark.xfail\n")(gate), changed(gate)),
        code=ProblemCode.EXPECTED_TO_FAIL,
        says="*linear?a?: its mark xfail would let it fail*",
    ),
    "xfail in the test": Way(
        lambda gate: declares(
            body="    pytest.xfail('flaky') if case.name == 'b' else perf(case)\n"
        )(gate),
        says="linear?b?: guarded, but not measured: *expected to fail (xfail); let it run*",
    ),
    "fewer gates": Way(
        declares(b=ONE_GATE),
        code=ProblemCode.FEWER_GATES,
        says="*linear?b?: gates less than its recording in cpu.json has, no *flops_per_step, *",
    ),
    "fewer gates in a copy of the baseline": Way(
        copied,
        code=ProblemCode.FEWER_GATES,
        says="*linear?b?: gates less than its recording in cpu.json has, no *flops_per_step, *",
    ),
    "fewer gates in the test": Way(
        declares(front=FEWER, body=REPLACED),
        code=ProblemCode.FEWER_GATES,
        says="linear?b?: gates less than its recording in cpu.json has, no *flops_*",
    ),
    "wider margins": Way(
        declares(b=WIDER),
        code=ProblemCode.FEWER_GATES,
        says="*linear?b?: has margins 6 and 20 %, wider than the 5 and 20 % of its recording in "
        "cpu.json; narrow them again, or record *pytest * --perf-update --perf-select='linear?b?'",
    ),
    "wider margins in the test": Way(
        declares(front=FEWER, body="    perf(replace(case, margins_pct=(5.0, 25.0)))\n"),
        code=ProblemCode.FEWER_GATES,
        says="linear?b?: has margins 5 and 25 %, wider than the 5 and 20 % of its recording in *",
    ),
    "a plugin drops it": Way(
        conftest(HOOK.format(order="trylast=True")),
        says=DESELECTED.format("*").replace(
            "deselected by *", "a conftest or a plugin took it out"
        ),
    ),
    "a plugin drops it first": Way(
        conftest(HOOK.format(order="tryfirst=True")),
        says=DESELECTED.format("*").replace(
            "deselected by *", "a conftest or a plugin took it out"
        ),
    ),
    "a plugin runs no test": Way(
        conftest(PLUGIN + "def pytest_runtestloop():\n    return True\n"),
        says="linear?a?, linear?b?: guarded, but not measured: the run ended before its turn; *",
        was=1,
    ),
    "a plugin runs it itself": Way(
        conftest(
            PLUGIN + "def pytest_runtest_protocol(item):\n    return '[b]' in item.name or None\n"
        ),
        says="linear?b?: guarded, but not measured: the run ended before its turn; *",
    ),
    "--collect-only": Way(
        options=("--collect-only", "-q"),
        code=ProblemCode.NOTHING_MEASURED,
        says="*--collect-only measures nothing*",
    ),
    "no performance test": Way(
        moved_away,
        ("perf_tests",),
        code=ProblemCode.NO_CASES,
        says="*there is no performance test*",
    ),
    "an empty folder": Way(
        lambda gate: (gate.path / "empty").mkdir(),
        ("empty",),
        code=ProblemCode.NO_CASES,
        says="*there is no performance test*",
        was=5,
    ),
    "--perf-update": Way(
        changed,
        ("--perf-update",),
        code=ProblemCode.RECORDS,
        says="*--perf-update passes what it records: record in a run of its own",
        commits=False,
    ),
    "judged against itself": Way(
        options=("--perf-against=HEAD",),
        code=ProblemCode.OTHER_BASELINE,
        says="*--perf-against=HEAD judges the tree against itself*",
    ),
    "a dirty tree": Way(
        lambda gate: (gate.path / "model.py").write_text("x = 1\n"),
        code=ProblemCode.DIRTY,
        says="*model.py differs from the commit: commit it, or *",
        commits=False,
    ),
    "a baseline that is no commit's": differs(looser, "baselines/cpu.json"),
    "a baseline that git ignores": differs(ignored, "baselines/cpu.json"),
    "a baseline that is a link": differs(linked, "baselines/cpu.json"),
    "waivers that git ignores": differs(waived, "baselines/waivers.json"),
    "skip-worktree": differs(hidden, "test_perf.py"),
    "assume-unchanged": differs(assumed, "test_perf.py"),
    "a tree that changes": Way(
        edited,
        code=ProblemCode.TREE_CHANGED,
        says="linear?b?: files changed while it was measured*",
    ),
    "a tree that a fixture changes": Way(
        fixture("Path('test_perf.py').open('a').write('# x')"),
        code=ProblemCode.TREE_CHANGED,
        says="linear?a?, linear?b?: files changed while it was measured*",
    ),
    "a commit that a fixture makes": Way(
        fixture(
            "import subprocess; subprocess.run(['git', '-c', 'user.name=t', '-c', 'user.email=t', "
            "'commit', '--allow-empty', '-m', 'x'], check=True)"
        ),
        code=ProblemCode.TREE_CHANGED,
        says="linear?a?, linear?b?: files changed while it was measured*",
    ),
    "a baseline that a fixture changes": Way(
        loosened,
        code=ProblemCode.OTHER_BASELINE,
        says="linear?a?, linear?b?: was judged by another recording than the run began with*",
    ),
    "no commit": Way(
        lambda gate: gate.git("update-ref", "-d", "HEAD"),
        code=ProblemCode.DIRTY,
        says="*the measured code has no commit: the repository has no commit yet: git add*",
        commits=False,
    ),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_case_that_is_left_unguarded_fails_a_strict_run(project, way):
    """It is red, says why in a sentence, and its document has the reason as data; by hand it is as
    friendly as it was.
    """
    way.does(project)
    if way.commits:
        project.commit()
    result = project.run("--perf-json=.stepguard/run.json", "--perf-strict", *way.options)
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.USAGE_ERROR)
    lines = [*result.outlines, *result.errlines]
    pytest.LineMatcher([line.removeprefix("ERROR: ") for line in lines]).fnmatch_lines([way.says])
    document = load_document(project.path / ".stepguard/run.json")
    assert document.strict and not document.passed
    assert way.code in {problem.code for problem in document.problems}
    if result.ret == pytest.ExitCode.USAGE_ERROR:  # before an hour was spent
        assert project.measured == []
    assert project.run(*way.options).ret == way.was


def test_a_strict_run_of_all_cases_passes(project):
    """Nothing is in its way: no problem, and every case is guarded."""
    result = project.run("--perf-strict", "--perf-json=run.json")
    assert result.ret == 0
    document = load_document(project.path / "run.json")
    assert document.passed and document.strict and document.problems == []
    assert all(case.guarded and case.state is State.MEASURED for case in document.cases)
    # The document of the run before is no change of the tree.
    assert project.run("--perf-strict", "--perf-json=run.json").ret == 0


@pytest.mark.parametrize(
    ("ci", "options", "ret"),
    [
        ("true", (), 4),
        ("1", (), 4),
        ("true", ("--perf-no-strict",), 0),
        ("", (), 0),
        ("false", (), 0),
        ("0", (), 0),
    ],
)
def test_ci_is_strict_unless_it_says_otherwise(project, monkeypatch, ci, options, ret):
    """As GitHub sets it, or as 1; the refusal names the way out for a run that is no gate."""
    monkeypatch.setenv("CI", ci)
    result = project.run("-k", "step[a]", *options)
    assert result.ret == ret
    if ret:
        result.stderr.fnmatch_lines(["*strict since CI is set*--perf-no-strict*"])


@pytest.mark.parametrize("option", ["--perf-no-strict", "--perf-select=linear[a]"])
def test_what_a_run_leaves_out_is_said_by_the_command(project, monkeypatch, option):
    """Left in PYTEST_ADDOPTS, it would turn the gate off for all that follows."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PYTEST_ADDOPTS", option)
    result = project.run() if "select" in option else project.run("-k", "step[a]")
    assert result.ret == 4 and project.paired == []
    monkeypatch.delenv("PYTEST_ADDOPTS")
    assert project.run(option).ret == 0


def test_strict_and_no_strict_are_no_command(project, monkeypatch):
    """Typed together they are refused; what settings say beside the command is no contradiction."""
    result = project.run("--perf-strict", "--perf-no-strict")
    assert result.ret == 4 and project.paired == []
    result.stderr.fnmatch_lines(["*--perf-strict with --perf-no-strict: *; give one of the two"])
    monkeypatch.setenv("PYTEST_ADDOPTS", "--perf-no-strict")
    assert project.run("--perf-strict").ret == 0


def test_where_an_option_comes_from_is_said(project, monkeypatch):
    """PYTEST_ADDOPTS is easily forgotten."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'step[a]'")
    result = project.run("--perf-strict")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*deselected by -k 'step?a?' of PYTEST_ADDOPTS; *"])


@pytest.mark.parametrize("strict", [(), ("--perf-strict",)])
@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("linear[a]", "linear[a]"),
        ("*[a]", "*[a]"),
        ("linear[a],linear[a*", "linear[a] and 1 more"),
    ],
)
def test_a_selection_that_is_meant_passes(project, names, told, strict):
    """Strict or not, its cases alone are measured, and a line says what was left out."""
    result = project.run(*strict, f"--perf-select={names}", "--perf-json=run.json")
    assert result.ret == 0 and project.measured == ["linear[a]"]
    assert f"left out by --perf-select={told}: 1 of 2 cases (linear[b])" in result.outlines
    states = {one.case: one.state for one in load_document(project.path / "run.json").cases}
    assert states == {"linear[a]": State.MEASURED, "linear[b]": State.LEFT_OUT}


@pytest.mark.parametrize("names", [",", "linear[a],", "linear[a], ,linear[b]"])
def test_a_selection_with_an_empty_name_is_refused(project, names):
    """Beside a test of another kind that passes, a run of no case would be green."""
    suite(project, body=BODY + "\n\ndef test_plain():\n    pass\n")
    project.commit()
    result = project.run("--perf-strict", f"--perf-select={names}")
    assert (result.ret, project.measured) == (4, [])
    result.stderr.fnmatch_lines(["*: a name is empty; is a variable not set[?]"])


def test_a_path_is_a_selection_that_is_meant(project):
    """Naming a file, or a test."""
    result = project.run("--perf-strict", "test_perf.py::test_step[a]")
    assert result.ret == 0 and project.measured == ["linear[a]"]
    result.says("left out by the arguments *test_step[[]a]: 1 of 2 cases (*")


@pytest.mark.parametrize(
    ("arguments", "ret"),
    [
        (("perf",), 4),
        (("perf", "unit/test_it.py"), 4),
        (("unit", "perf/test_a.py"), 0),
        (("unit/test_it.py", "perf/test_a.py"), 0),
    ],
)
def test_a_folder_should_have_all_cases_beside_any_file(gate, arguments, ret):
    """A file of other tests makes no selection of the folder that is named with it."""
    for name in ("perf", "unit"):
        (gate.path / name).mkdir()
    (gate.path / "unit/test_it.py").write_text("def test_it():\n    pass\n")
    gate.suite(gate.cpu("a"))
    (gate.path / "test_perf.py").rename(gate.path / "perf/test_a.py")
    gate.record(gate.cpu("a"), gate.cpu("b"))
    gate.commit()
    result = gate.run("--perf-strict", *arguments)
    assert (result.ret, gate.measured) == (ret, [] if ret else ["linear[a]"])
    if ret:
        result.stderr.fnmatch_lines(["*linear?b?: guarded, but not measured: no test of it was *"])
        assert "PYTEST_ADDOPTS" not in result.stderr.str()


def test_many_paths_are_not_all_repeated(gate):
    """Who named them knows them: the first and their number say which selection is meant. An
    extended case is not left out of anything.
    """
    more = [gate.cpu(name, extended=True) for name in "de"]
    gate.suite(*(gate.cpu(name) for name in "abc"), more[0])
    gate.record(gate.cpu("a"), gate.cpu("b"), gate.cpu("c"), *more)
    gate.commit()
    result = gate.run("test_perf.py::test_step[a]", "test_perf.py::test_step[b]")
    result.says("left out by the arguments *test_step[[]a] and 1 more: 1 of 3 cases (linear[[]c])")


@pytest.mark.parametrize("setting", ["testpaths", "addopts", "PYTEST_ADDOPTS"])
def test_a_path_of_the_settings_is_meant_by_nobody(gate, monkeypatch, setting):
    """It would leave the cases of other files unmeasured in every run, and none would be red."""
    (gate.path / "perf").mkdir()
    for name in "ab":
        gate.suite(gate.cpu(name))
        (gate.path / "test_perf.py").rename(gate.path / f"perf/test_{name}.py")
    gate.record(gate.cpu("a"), gate.cpu("b"))
    if setting == "PYTEST_ADDOPTS":
        monkeypatch.setenv(setting, "perf/test_a.py")
    else:
        gate.pytester.makeini(f"[pytest]\n{setting} = perf/test_a.py\n")
    gate.commit()
    result = gate.run("--perf-strict")
    assert result.ret == 4 and gate.measured == []
    text = "*linear[[]b]: guarded, but not measured: *PYTEST_ADDOPTS name perf/test_a.py, the *"
    result.stderr.fnmatch_lines([text])
    # Before pytest 9 a path that the settings name, too, is collected twice.
    twice = setting != "testpaths" and pytest.version_tuple < (9,)
    assert gate.run("--perf-strict", "perf/test_a.py").ret == (4 if twice else 0)


def test_what_a_selection_names_has_to_be_measured(project):
    """Also an extended case; and a name that is none is refused, with what may have been meant."""
    result = project.run("--perf-strict", "--perf-select=linear*", "-k", "step[a]")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*linear?b?: guarded, but not measured: deselected by -k*"])
    result = project.run("--perf-select=linear[c]")
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["*--perf-select=linear?c?: no such case (did you mean linear?b? or linear?a??)"]
    )
    result = project.run("--perf-select=nothing*")
    result.stderr.fnmatch_lines(["*nothing?: no such case; there is: linear?a?, linear?b?"])


def test_the_smoke_cases_do_not_stand_in_for_a_gpus(gate, h200):
    """-m smoke where there is a GPU measures nothing that its recordings guard."""
    gate.gpus = [h200]
    cases = gate.cuda(), gate.cpu()
    gate.suite(*cases)
    gate.record(*cases)
    gate.commit()
    assert gate.run("-m", "smoke").ret == 0
    result = gate.run("-m", "smoke", "--perf-strict")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*linear?124m?: guarded, *: deselected by -m 'smoke'; *"])


def test_a_new_case_of_a_gpu_is_guarded_only_where_there_is_one(gate, h200):
    """A machine without a GPU has nothing to measure it with. On a GPU it may not be left out."""
    gate.suite(gate.cuda(), gate.cpu())
    gate.record(gate.cpu())
    gate.commit()
    assert gate.run("--perf-strict").ret == 0
    gate.gpus = [h200]
    result = gate.run("--perf-strict", "-m", "smoke")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*linear?124m?: guarded, *: deselected by -m 'smoke'; *"])


def test_a_new_case_is_guarded_from_the_first_day(project):
    """It has no recording yet, and still it may not be deselected."""
    project.suite(*(project.cpu(name) for name in "abc"))
    project.commit()
    result = project.run("--perf-strict", "-k", "step[a] or step[b]")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*linear?c?: guarded, but not measured: deselected by -k*"])


def test_an_extended_case_that_is_recorded_as_one_may_be_left_out(gate):
    """Its recording says that it is; a core case becomes one by a recording that is reviewed."""
    core, more = gate.cpu("a"), gate.cpu("b", extended=True)
    gate.suite(core, more)
    (gate.path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not extended'\n")
    gate.record(core, gate.cpu("b"))
    gate.commit()
    assert gate.run("--perf-strict").ret == 4
    assert gate.run("-m", "extended", "--perf-update").ret == 0
    gate.commit()
    assert gate.run("--perf-strict").ret == 0
    assert gate.measured == ["linear[a]"]


def test_fewer_gates_that_are_recorded_are_no_surprise(project):
    """Whoever reviews the baseline sees the list shrink."""
    suite(project, b=ONE_GATE)
    project.commit()
    assert project.run("--perf-strict").ret == 4
    assert project.run("--perf-update").ret == 0
    assert '"gates": ["graph_breaks"]' in (project.baselines / "cpu.json").read_text()
    project.commit()
    assert project.run("--perf-strict").ret == 0


def test_wider_margins_that_are_recorded_are_no_surprise(project):
    """The command that the refusal names records them, of that case alone; narrower ones then pass,
    and with the usual ones recorded anew the file is what it was.
    """
    before = (project.baselines / "cpu.json").read_text()
    suite(project, b=WIDER)
    project.commit()
    assert project.run("--perf-strict").ret == 4
    update = "--perf-update", "--perf-select=linear[b]"
    assert project.run(*update).ret == 0
    cases = json.loads((project.baselines / "cpu.json").read_text())["cases"]
    assert cases["linear[b]"]["margins_pct"] == [6.0, 20.0]
    assert "margins_pct" not in cases["linear[a]"]
    project.commit()
    assert project.run("--perf-strict").ret == 0
    suite(project)
    project.commit()
    assert project.run("--perf-strict").ret == 0
    assert project.run(*update).ret == 0
    known = [
        json.loads(one)["cases"] for one in (before, (project.baselines / "cpu.json").read_text())
    ]
    assert [one["linear[b]"].keys() for one in known] == [known[0]["linear[b]"].keys()] * 2


def test_another_case_of_the_same_id_is_refused(project):
    """A test that measures other parameters than it declares."""
    suite(project, front=FEWER, body="    perf(replace(case, launches=2))\n")
    project.commit()
    assert project.run().ret == 0
    result = project.run("--perf-strict", "--perf-json=.stepguard/run.json")
    assert result.ret == 1
    said = "linear[b]: its test measures another case than it declares, though of the same id"
    assert result.outlines.count(said) == 1
    problems = load_document(project.path / ".stepguard/run.json").problems
    codes = {one.code for one in problems}
    assert codes == {ProblemCode.OTHER_CASE, ProblemCode.NOTHING_MEASURED}


@pytest.mark.parametrize(
    ("body", "ret"), [(BODY, 0), ("    pytest.skip('later')\n", 1)], ids=["measured", "skipped"]
)
def test_a_case_that_a_test_makes_itself_is_guarded_as_well(gate, body, ret):
    """Which one it is nobody knows before it ran; at the end it was measured, or is missed."""
    gate.record(gate.cpu("a"))
    made = 'case = Case("a", "factories:linear", device="cpu", launches=1)'
    gate.tests(f"def test_step(perf):\n    {made}\n{body}")
    gate.commit()
    result = gate.run("--perf-strict")
    assert result.ret == ret
    missed = [line for line in result.outlines if "guarded, but not measured" in line]
    assert len(missed) == ret


def test_one_problem_of_many_cases_is_one_line(gate):
    """What -x left is not told sixty times."""
    cases = [gate.cpu(f"c{number:02}") for number in range(12)]
    gate.suite(*cases)
    gate.record(*cases)
    gate.commit()
    gate.will_measure(cases[0], counters={"flops_per_step": 2})
    result = gate.run("--perf-strict", "-x")
    assert result.ret == 1
    lines = [line for line in result.outlines if "guarded, but not measured" in line]
    assert lines == [
        "linear[c01], linear[c02], linear[c03] and 8 more: guarded, but not measured: "
        "the run ended before its turn; run it to its end"
    ]


def test_strict_elsewhere_costs_nothing(gate, monkeypatch):
    """In CI, a run of other tests, dirty or not, is none of our business."""
    monkeypatch.setenv("CI", "true")
    gate.tests("def test_unit():\n    pass\n")
    assert gate.run().ret == 0
    assert gate.run("--collect-only").ret == 0


def test_the_gate_takes_a_strict_run_and_nothing_less(project, monkeypatch):
    """What the run wrote is judged by what the commit before it has recorded."""
    monkeypatch.chdir(project.path)
    commit = project.git("rev-parse", "HEAD").strip()
    measured = ("--perf-strict",), ("--perf-select=linear[a]", "--perf-strict"), ()
    for options, status in zip(measured, (0, 1, 1), strict=True):
        # The made-up evidence names a commit of its own.
        project.will_measure(project.cpu("a"), commit=commit)
        project.will_measure(project.cpu("b"), commit=commit)
        assert project.run("--perf-json=.stepguard/run.json", *options).ret == 0
        assert main(["gate", ".stepguard/run.json", "--commit", commit]) == status


@pytest.mark.parametrize("folder", [".", "more"])
def test_an_exit_status_that_a_wrapper_sets_is_overruled(project, folder):
    """Also of a folder's conftest, which is loaded last, so that it wraps all that is there."""
    changed(project)
    (project.path / "more").mkdir()
    (project.path / "test_perf.py").rename(project.path / "more/test_perf.py")
    wraps = "@pytest.hookimpl(wrapper=True, tryfirst=True)\ndef pytest_sessionfinish(session):\n"
    text = (PLUGIN if folder == "." else "import pytest\n\n\n") + wraps
    (project.path / folder / "conftest.py").write_text(
        f"{text}    yield\n    session.exitstatus = 0\n"
    )
    project.commit()
    assert project.run().ret == 0
    assert project.run("--perf-strict").ret == 1


def test_an_exit_status_that_is_swallowed_is_no_pass(project, monkeypatch):
    """By a conftest, which a strict run overrules, or by `|| true`: the gate reads the document."""
    changed(project)
    swallow = "@pytest.hookimpl(trylast=True)\ndef pytest_sessionfinish(session):\n"
    conftest(PLUGIN + swallow + "    session.exitstatus = 0\n")(project)
    project.commit()
    assert project.run().ret == 0
    assert project.run("--perf-strict", "--perf-json=.stepguard/run.json").ret == 1
    monkeypatch.chdir(project.path)
    commit = project.git("rev-parse", "HEAD").strip()
    assert main(["gate", ".stepguard/run.json", "--commit", commit]) == 1


def test_a_status_that_a_conftest_sets_hides_no_skipped_case(project):
    """Tests that were skipped are no failure to pytest, and one to a strict run."""
    text = "@pytest.hookimpl(trylast=True)\ndef pytest_sessionfinish(session):\n"
    text += "    session.exitstatus = 0\n\n\n@pytest.fixture(autouse=True)\ndef no():\n"
    conftest(PLUGIN + text + "    pytest.skip('no')\n")(project)
    project.commit()
    assert project.run("--perf-strict").ret == 1


@pytest.mark.parametrize("extended", [False, True])
def test_evidence_says_whether_its_case_is_an_extended_one(gate, extended):
    """What is accepted from it says so in the baseline."""
    made = f'Case("a", "factories:linear", launches=2, extended={extended})'
    gate.tests(f"def test_step(perf):\n    perf({made})\n")
    gate.measure_really()
    assert gate.run().ret == 1  # there is no GPU
    (path,) = gate.path.glob(".stepguard/runs/*/*/evidence.json")
    assert json.loads(path.read_text())["extended"] is extended


SHOWING = ("--markers", "--help", "-h", "--version --version")
LEFT_BEFORE = "ERROR: settings or a hook ended the run before it began, *"
LEFT = "ERROR: a hook left the run by pytest.exit(), *--perf-no-strict"


@pytest.mark.parametrize(
    ("hook", "status"),
    [
        ("configure(config)", 4),
        ("sessionstart(session)", 4),
        ("collection(session)", 1),
        ("sessionfinish(session)", 4),
    ],
)
def test_a_run_that_a_hook_leaves_is_no_gate(project, hook, status):
    """A conftest that calls pytest.exit() with status 0, as it finds no GPU maybe, or in the end:
    red, and no older document passes for the run's own. A run by hand does as it is told.
    """
    (project.path / ".stepguard").mkdir(exist_ok=True)
    path = project.path / ".stepguard/run.json"
    path.write_text(OLD)
    text = "@pytest.hookimpl(tryfirst=True)\n" if "finish" in hook else ""
    text += f"def pytest_{hook}:\n    pytest.exit('nothing to do', returncode=0)\n"
    (project.path / "conftest.py").write_text(PLUGIN + text)
    project.commit()
    result = project.run("--perf-strict", "--perf-json=.stepguard/run.json")
    assert result.ret == status
    if status == 4:
        result.stderr.fnmatch_lines([LEFT])
        assert not path.exists()
    else:
        result.says("no case was collected in this process*")
        found = load_document(path)
        assert not found.passed and [one.code for one in found.problems] == [ProblemCode.NO_CASES]
    assert project.run().ret == 0


def test_a_conftest_that_ends_the_process_is_no_gate(project):
    """With status 0, as pytest imports it: red, and no older document stays."""
    (project.path / ".stepguard").mkdir(exist_ok=True)
    path = project.path / ".stepguard/run.json"
    path.write_text(OLD)
    conftest("import sys\n\nsys.exit(0)\n")(project)
    project.commit()
    options = ("-p", "stepguard.plugin", "--perf-json=.stepguard/run.json", "--perf-strict")
    result = project.run(*options)
    assert result.ret == 4 and not path.exists()
    result.stderr.fnmatch_lines(["ERROR: a conftest left the run by sys.exit(), *--perf-no-strict"])


@pytest.mark.parametrize(
    "does",
    [
        conftest(PLUGIN + "def pytest_cmdline_main():\n    return 0\n"),
        *(settings(f"addopts = {option}") for option in SHOWING),
    ],
    ids=["main", *SHOWING],
)
def test_a_run_without_a_session_is_no_gate(project, monkeypatch, does):
    """With status 0, and nobody asked for it: red, and no older document stays; also by CI alone,
    where something is recorded.
    """
    (project.path / ".stepguard").mkdir(exist_ok=True)
    path = project.path / ".stepguard/run.json"
    path.write_text(OLD)
    does(project)
    project.commit()
    result = project.run("--perf-strict", "--perf-json=.stepguard/run.json")
    assert result.ret == 4 and not path.exists()
    result.stderr.fnmatch_lines([LEFT_BEFORE])
    assert project.run().ret == 0
    monkeypatch.setenv("CI", "true")
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines([LEFT_BEFORE])


@pytest.mark.parametrize("setting", ["addopts", "PYTEST_ADDOPTS"])
@pytest.mark.parametrize("option", ["--cache-show", "--collect-only", "--setup-plan"])
def test_settings_that_measure_nothing_are_no_pass(project, monkeypatch, setting, option):
    """With a session, which collects nothing or runs no test: red, by CI alone, too."""
    (project.path / ".stepguard").mkdir(exist_ok=True)
    path = project.path / ".stepguard/run.json"
    leave_in(setting, option, project, monkeypatch)
    for ci, options in (("", ("--perf-strict",)), ("true", ())):
        path.write_text(OLD)
        monkeypatch.setenv("CI", ci)
        result = project.run("--perf-json=.stepguard/run.json", *options)
        assert result.ret != 0 and project.measured == []
        assert not path.exists() or not load_document(path).passed
    assert project.run().ret != 0


@pytest.mark.parametrize(
    ("hook", "status"),
    [
        ("def pytest_sessionfinish():\n    sys.exit(0)\n", 4),
        ("def pytest_terminal_summary():\n    sys.exit(0)\n", 4),
        ("def pytest_unconfigure():\n    sys.exit(0)\n", 4),
        (
            "@pytest.hookimpl(wrapper=True)\ndef pytest_cmdline_main():\n    yield\n    return 0\n",
            1,
        ),
    ],
)
def test_a_hook_that_makes_the_status_0_passes_no_slower_case(project, hook, status):
    """Behind the session: by another end of the process, or another value."""
    changed(project)
    conftest(PLUGIN.replace("import pytest", "import sys\n\nimport pytest") + hook)(project)
    project.commit()
    assert project.run("--perf-strict").ret == status


def test_a_test_that_ends_the_run_hides_no_verdict(project):
    """With status 0, once it knows that its case fails: red, whatever the status said."""
    body = "    try:\n        perf(case)\n    except BaseException:\n"
    suite(
        project,
        body=f"{body}        pytest.exit('enough', returncode=0)\n",
        front="import pytest\n\n",
    )
    changed(project)
    project.commit()
    result = project.run("--perf-strict", "--perf-json=.stepguard/run.json")
    assert result.ret == 1
    result.says("linear?b?: does not pass, though the run would: let no test end it*")
    found = load_document(project.path / ".stepguard/run.json")
    assert not found.passed and found.problems[0].code is ProblemCode.NOT_FINISHED


def test_help_is_no_run_that_was_left(project):
    """Nor is a usage error said twice."""
    project.commit()
    assert project.run("--perf-strict", "--help").ret == 0
    assert project.run("--perf-strict", "--markers").ret == 0
    result = project.run("--perf-strict", "--perf-budget=-1")
    assert result.ret == 4 and "left the run" not in str(result.stderr)


@pytest.mark.parametrize("option", ["--fixtures", "--fixtures-per-test"])
def test_settings_that_only_show_something_are_no_pass(project, option):
    """pytest ends with status 0 then, whatever the session's was."""
    settings(f"addopts = {option}")(project)
    project.commit()
    assert project.run("--perf-strict").ret == 4 and project.measured == []
    assert project.run("--perf-no-strict").ret == 0


def leave_in(setting, option, project, monkeypatch):
    """Give an option otherwise than by the command."""
    if setting == "addopts":
        settings(f"addopts = {option}")(project)
    else:
        monkeypatch.setenv(setting, option)
    project.commit()


@pytest.mark.parametrize("setting", ["addopts", "PYTEST_ADDOPTS"])
def test_baselines_are_not_chosen_by_settings(project, monkeypatch, setting):
    """A folder of the branch's own would replace what judges; a command may name one."""
    shutil.copytree(project.baselines, project.path / "mine")
    leave_in(setting, "--perf-baselines=mine", project, monkeypatch)
    result = project.run("--perf-strict")
    assert (result.ret, project.measured) == (4, [])
    result.stderr.fnmatch_lines(["*--perf-baselines=mine *settings or PYTEST_ADDOPTS*"])
    assert project.run("--perf-strict", "--perf-baselines=mine").ret == 0


def test_pairs_are_of_the_case_that_is_recorded(project):
    """Both sides of them are HEAD's case, whose parameters may be fewer or smaller by now."""
    suite(project, b=", params={'width': 8}")
    project.commit()
    result = project.run("--perf-strict", "--perf-against=HEAD~1")
    assert result.ret == 4
    text = "*linear?b?: is another case than its recording in cpu.json, by its params: *"
    result.stderr.fnmatch_lines([text])


@pytest.mark.parametrize("testpaths", ["", "testpaths = .", "testpaths = . perf"])
def test_a_folder_is_whole_where_all_is_a_testpath(gate, testpaths):
    """The root says nothing about its folders: a case that is gone from one is missed."""
    (gate.path / "perf").mkdir()
    gate.suite(gate.cpu("a"))
    (gate.path / "test_perf.py").rename(gate.path / "perf/test_a.py")
    gate.record(gate.cpu("a"), gate.cpu("b"))
    gate.pytester.makeini(f"[pytest]\n{testpaths}\n")
    gate.commit()
    result = gate.run("--perf-strict", "perf")
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines(["*linear?b?: guarded, but not measured: no test of it was *"])


@pytest.mark.parametrize("setting", ["addopts", "PYTEST_ADDOPTS"])
def test_what_judges_is_said_by_the_command(project, monkeypatch, setting):
    """An earlier commit of the branch, left in the settings, has the same slowdown."""
    leave_in(setting, "--perf-against=HEAD~1", project, monkeypatch)
    result = project.run("--perf-strict", "--perf-base=main")
    assert result.ret == 4 and project.paired == []
    result.stderr.fnmatch_lines(["*--perf-against=HEAD~1 *settings or PYTEST_ADDOPTS*"])
    assert project.run("--perf-strict", "--perf-against=HEAD~1").ret == 0


@pytest.mark.parametrize("setting", ["addopts", "PYTEST_ADDOPTS"])
def test_whose_baselines_judge_is_said_by_the_command(project, monkeypatch, setting):
    """Those of an earlier commit, left in the settings, are of a level that is gone."""
    leave_in(setting, "--perf-base=HEAD~1", project, monkeypatch)
    result = project.run("--perf-strict")
    assert result.ret == 4 and project.measured == []
    result.stderr.fnmatch_lines(["*--perf-base=HEAD~1 *settings or PYTEST_ADDOPTS*"])
    assert project.run("--perf-strict", "--perf-base=main").ret == 0


@pytest.mark.parametrize("setting", ["addopts", "PYTEST_ADDOPTS"])
@pytest.mark.parametrize("option", ["--perf-no-confirm", "--perf-budget=0.001"])
def test_less_confirmation_is_said_by_the_command(project, monkeypatch, setting, option):
    """An alarm of kernels passes where no pairs, or too few, are measured: never by the settings,
    and a larger budget is no harm.
    """
    leave_in(setting, option, project, monkeypatch)
    result = project.run("--perf-strict", "--perf-base=main")
    assert result.ret == 4 and project.measured == []
    result.stderr.fnmatch_lines([f"*{option.partition('=')[0]} *settings or PYTEST_ADDOPTS*"])
    assert project.run("--perf-strict", "--perf-base=main", option).ret == 0
    leave_in(setting, "--perf-budget=60", project, monkeypatch)
    assert project.run("--perf-strict", "--perf-base=main").ret == 0


def test_a_sparse_checkout_has_its_baselines(project):
    """Without them no case that is gone would be missed; git calls such a tree clean."""
    project.commit()
    project.git("sparse-checkout", "set", "--no-cone", "/*", "!/baselines/")
    result = project.run("--perf-strict", "--perf-against=HEAD~1")
    assert result.ret == 4 and project.paired == []
    result.stderr.fnmatch_lines(["*baselines/*.json is in the commit, and a sparse checkout*"])


def test_a_failure_of_git_is_known_where_sigchld_is_ignored(project):
    """A supervisor left it so: git that cannot say what changed did not say that nothing did."""
    project.commit()
    (project.path / ".git/index").write_bytes(b"no index" * 8)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        result = project.run("--perf-strict")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert result.ret == 4 and project.measured == []
    result.stderr.fnmatch_lines(["*git status failed*"])


def test_xdist_does_not_hide_what_is_deselected(project):
    """Cases that are left are refused by themselves; those that are not were green."""
    (project.path / "test_unit.py").write_text("def test_unit():\n    pass\n")
    project.commit()
    arguments = ("--perf-strict", "-n", "1", "-k", "unit")
    result = project.run_apart(*arguments)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*no case was collected in this process*run without -n*"])
