"""A strict run: its document says what it guards and what became of it, and it fails for what the
guard finds there. By hand the same run is as it was.

The conditions are in tests/judge/test_guard.py. Here is what pytest makes of each mistake.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from run_documents import OLD

from stepguard.cli.main import main
from stepguard.core.run_document import State
from stepguard.storage.run_document_file import load_document

DECLARED = (
    "@cases(\n"
    '    Case("a", "factories:linear", device="cpu", launches=1),\n'
    '    Case("b", "factories:linear", device="cpu", launches=1),\n'
    ")\n"
    "{marks}def test_step(perf, case):\n"
    "{body}"
)
BODY = "    perf(case)\n"
PLUGIN = 'import pytest\n\npytest_plugins = ["stepguard.plugin"]\n\n\n'
JSON = "--perf-json=.stepguard/run.json"


@pytest.fixture
def project(gate):
    """A clean repository with two recorded cases, a and b."""
    suite(gate)
    gate.record(gate.cpu("a"), gate.cpu("b"))
    gate.commit()
    (gate.path / ".stepguard").mkdir(exist_ok=True)
    return gate


def suite(gate, marks="", body=BODY, front=""):
    """The two cases as a test file declares them."""
    gate.tests(front + DECLARED.format(marks=marks, body=body))


def document(project):
    """What the last run wrote."""
    return load_document(project.path / ".stepguard/run.json")


def conftest(text):
    """Change the conftest."""
    return lambda gate: (gate.path / "conftest.py").write_text(PLUGIN + text)


def fixture(text):
    """Do something in a fixture of the run, once its tests are collected."""
    head = "from pathlib import Path\n\n\n@pytest.fixture(scope='session', autouse=True)\n"
    return conftest(f"{head}def early():\n    {text}\n")


def settings(text):
    """Write settings of pytest's."""
    return lambda gate: (gate.path / "pytest.ini").write_text(f"[pytest]\n{text}\n")


def declares(**changes):
    """Change the test file."""
    return lambda gate: suite(gate, **changes)


def changed(gate):
    """Make case b do other work."""
    gate.will_measure(gate.cpu("b"), counters={"flops_per_step": 2000})


def looser(gate):
    """Record what is slower, and do not commit it."""
    changed(gate)
    gate.record_anew(gate.cpu("a"), gate.cpu("b"))


def loosened(gate):
    """Let a fixture put another baseline, as if nothing were slower, in place of the committed."""
    committed = (gate.baselines / "cpu.json").read_bytes()
    looser(gate)
    (gate.baselines / "cpu.json").rename(gate.path / "looser.json")
    (gate.baselines / "cpu.json").write_bytes(committed)
    fixture("Path('baselines/cpu.json').write_bytes(Path('looser.json').read_bytes())")(gate)


def exclude(gate, pattern):
    """Let git ignore files, by what is no file of the tree."""
    (gate.path / ".git/info").mkdir(exist_ok=True)
    (gate.path / ".git/info/exclude").write_text(pattern)


def ignored(gate):
    """The same, in a file that git ignores."""
    gate.git("rm", "-q", "--cached", "baselines/cpu.json")
    exclude(gate, "*.json")
    gate.git("commit", "-qam", "no baseline")


@dataclass(frozen=True)
class Mistake:
    """A change to the project, and what a strict run says of it."""

    does: Any = lambda gate: None
    options: tuple[str, ...] = ()
    code: str = "CASE_MISSING"
    says: str = ""
    commits: bool = True
    was: int = 0  # the exit status of the same run without --perf-strict


COMMITS = "import subprocess; subprocess.run(['git', '-c', 'user.name=t', '-c', 'user.email=t', "
COMMITS += "'commit', '--allow-empty', '-m', 'x'], check=True)"
MISSED = "*linear?b?: guarded, but not measured: {}; *"
BOTH_MISSED = "linear?a?, linear?b?: guarded, but not measured: {}; *"
TOUCHED = "linear?a?, linear?b?: files changed while it was measured*"
DROPPED = "def pytest_collection_modifyitems(items):\n    del items[1]\n"
NOT_GITS = "*{} differs from the commit, is a link*"
MISTAKES = {
    "a case was deleted": Mistake(
        lambda gate: gate.suite(gate.cpu("a")), says=MISSED.format("no test of it was collected")),
    "its module is skipped": Mistake(
        declares(front='pytest.importorskip("no_such_module")\n\n\n'), code="NO_CASES",
        says="*no performance test was collected*test_perf.py was skipped: *no_such_module*",
        was=5),
    "-k in settings": Mistake(
        settings("addopts = -k step[a]"),
        says=MISSED.format("deselected by -k 'step?a?' of addopts")),
    "a skip mark": Mistake(
        declares(marks="@pytest.mark.skip(reason='later')\n"), says=BOTH_MISSED.format("*later"),
        was=1),
    "xfail in the test": Mistake(
        declares(body="    pytest.xfail('flaky') if case.name == 'b' else perf(case)\n"),
        says=MISSED.format("expected to fail (xfail)")),
    "a plugin drops it": Mistake(
        conftest(DROPPED), says=MISSED.format("a conftest or a plugin took it out")),
    "--collect-only": Mistake(
        options=("--collect-only", "-q"), says=BOTH_MISSED.format("the run ended before its turn")),
    "a file that is not the commit's": Mistake(
        lambda gate: (gate.path / "model.py").write_text("x = 1\n"), code="DIRTY",
        says="model.py differs from the commit; commit it, or *", commits=False),
    "a baseline that git ignores": Mistake(
        ignored, (), "DIRTY", NOT_GITS.format("baselines/cpu.json"), commits=False),
    "a commit that a fixture makes": Mistake(fixture(COMMITS), (), "TREE_CHANGED", TOUCHED),
    "a baseline that a fixture changes": Mistake(
        loosened, code="OTHER_BASELINE",
        says="linear?a?, linear?b?: was judged by another recording than *"),
}  # fmt: skip


@pytest.mark.parametrize("made", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_fails_a_strict_run(project, made):
    """It is red, says why in a sentence, and its document has the reason as data. By hand it is as
    friendly as it was.
    """
    made.does(project)
    if made.commits:
        project.commit()
    result = project.run(JSON, "--perf-strict", *made.options)
    assert result.ret in (pytest.ExitCode.TESTS_FAILED, made.was or pytest.ExitCode.TESTS_FAILED)
    result.says(made.says)
    found = document(project)
    assert found.strict and not found.passed
    assert made.code in {problem.code for problem in found.problems}
    assert project.run(*made.options).ret == made.was


def test_a_strict_run_of_all_cases_passes(project):
    """Nothing is in its way: no problem, and every case is guarded."""
    result = project.run("--perf-strict", "--perf-json=run.json")
    assert result.ret == 0
    document = load_document(project.path / "run.json")
    assert document.passed and document.strict and document.problems == []
    assert all(case.guarded and case.state is State.MEASURED for case in document.cases)
    # The document of the run before is no change of the tree.
    assert project.run("--perf-strict", "--perf-json=run.json").ret == 0


@pytest.mark.parametrize(("ci", "options", "ret"), [
    ("true", (), 1), ("1", (), 1), ("true", ("--perf-no-strict",), 0), ("", (), 0),
    ("false", (), 0), ("0", (), 0),
])  # fmt: skip
def test_ci_is_strict_unless_it_says_otherwise(project, monkeypatch, ci, options, ret):
    """As GitHub sets it, or as 1; a line names the way out for a run that is no gate."""
    monkeypatch.setenv("CI", ci)
    result = project.run("-k", "step[a]", *options)
    assert result.ret == ret
    if ret:
        result.says("*strict since CI is set*--perf-no-strict*")


def test_a_run_that_is_no_gate_says_so_in_the_command(project, monkeypatch):
    """Left in PYTEST_ADDOPTS, it would turn the gate off for all that follows."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--perf-no-strict")
    result = project.run("-k", "step[a]")
    assert result.ret == 1 and project.paired == []
    monkeypatch.delenv("PYTEST_ADDOPTS")
    assert project.run("--perf-no-strict").ret == 0


@dataclass(frozen=True)
class Chosen:
    """Files with cases of these letters, what is recorded, and what a strict run leaves out: cases
    that it misses, and cases that its command does not mean.
    """

    files: dict[str, str]
    options: tuple[str, ...] = ()
    missed: str = ""
    meant: str = ""  # left out, and meant to be
    ini: str = ""
    recorded: str = "ab"
    extended: str = ""  # by its test


ONE_FILE, FOLDERS = {"test_perf.py": "ab"}, {"perf/test_a.py": "a", "perf/test_b.py": "b"}
ONE_IS_GONE = {"perf/test_a.py": "a", "unit/test_it.py": ""}
MEANT = {"missed": "", "meant": "b"}
CHOICES = [
    Chosen(ONE_FILE),
    Chosen(ONE_FILE, ("test_perf.py::test_step[a]",), **MEANT),
    # A file of other tests makes no selection of the folder that is named with it.
    Chosen(ONE_IS_GONE, ("perf",), "b"),
    Chosen(ONE_IS_GONE, ("perf", "unit/test_it.py"), "b"),
    Chosen(ONE_IS_GONE, ("unit", "perf/test_a.py"), **MEANT),
    Chosen(ONE_IS_GONE, ("unit/test_it.py", "perf/test_a.py"), **MEANT),
    # The root says nothing about its folders.
    Chosen(ONE_IS_GONE, ("perf",), "b", ini="testpaths = ."),
    Chosen(ONE_IS_GONE, ("perf",), "b", ini="testpaths = . perf"),
    # A path of the settings is meant by nobody.
    Chosen(FOLDERS, (), "b", ini="testpaths = perf/test_a.py"),
    Chosen(FOLDERS, (), "b", ini="addopts = perf/test_a.py"),
    Chosen(FOLDERS, ("perf/test_a.py",), ini="testpaths = perf/test_a.py", **MEANT),
    # A new case is guarded from the first day.
    Chosen({"test_perf.py": "abc"}, ("-k", "step[a] or step[b]"), "c"),
    # A case that was recorded as extended may be left out; no other.
    Chosen(ONE_FILE, (), "b", ini="addopts = -m 'not extended'", extended="b"),
]


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: " ".join(chosen.options) or "all")
def test_what_a_strict_run_guards(gate, chosen):
    """All that is recorded and all that is new, unless the command itself leaves it out."""
    for file, letters in chosen.files.items():
        cases = [
            gate.cpu(name, **({"extended": True} if name in chosen.extended else {}))
            for name in letters
        ]
        (gate.path / file).parent.mkdir(exist_ok=True)
        gate.suite(*cases) if cases else gate.tests("def test_it():\n    pass\n")
        (gate.path / "test_perf.py").rename(gate.path / file)
    gate.record(*map(gate.cpu, chosen.recorded))
    settings(chosen.ini)(gate)
    gate.commit()
    result = gate.run("--perf-strict", JSON, *chosen.options)
    assert (result.ret != 0) == bool(chosen.missed)
    found = document(gate)
    missed = [one for one in found.problems if one.code == "CASE_MISSING"]
    assert [one.case for one in missed] == [f"linear[{name}]" for name in chosen.missed]
    if missed and "perf/test_a.py" in chosen.ini:
        assert "settings or PYTEST_ADDOPTS name perf/test_a.py, the command" in missed[0].text
    left = [one.case for one in found.cases if one.state is State.LEFT_OUT]
    assert left == [f"linear[{name}]" for name in chosen.meant]
    if left:
        result.says("left out by *: 1 of 2 cases (linear?b?)")


@pytest.mark.parametrize("recorded", [True, False])
def test_the_smoke_cases_do_not_stand_in_for_a_gpus(gate, h200, recorded):
    """-m smoke where there is a GPU measures nothing that its recordings guard, nor its new case.
    A machine without a GPU has nothing to measure it with.
    """
    gate.suite(gate.cuda(), gate.cpu())
    gate.record(gate.cpu(), *([gate.cuda()] if recorded else []))
    gate.commit()
    assert gate.run("--perf-strict").ret == 0
    gate.gpus = [h200]
    assert gate.run("-m", "smoke").ret == 0
    result = gate.run("-m", "smoke", "--perf-strict")
    assert result.ret == 1
    result.says("*linear?124m?: guarded, *: deselected by -m 'smoke'; *")


@pytest.mark.parametrize(("body", "ret"), [(BODY, 0), ("    pytest.skip('later')\n", 1)])
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


def test_the_gate_takes_a_strict_run_and_nothing_less(project, monkeypatch):
    """What the run wrote is judged by what the commit before it has recorded."""
    monkeypatch.chdir(project.path)
    commit = project.git("rev-parse", "HEAD").strip()
    measured = ("--perf-strict",), ("test_perf.py::test_step[a]", "--perf-strict"), ()
    for options, status in zip(measured, (0, 1, 1), strict=True):
        # The made-up evidence names a commit of its own.
        project.will_measure(project.cpu("a"), commit=commit)
        project.will_measure(project.cpu("b"), commit=commit)
        assert project.run("--perf-json=.stepguard/run.json", *options).ret == 0
        assert main(["gate", ".stepguard/run.json", "--commit", commit]) == status


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
    assert not document(project).passed


def test_xdist_does_not_hide_what_is_deselected(project):
    """Cases that are left are refused by themselves; those that are not were green."""
    (project.path / "test_unit.py").write_text("def test_unit():\n    pass\n")
    project.commit()
    arguments = ("--perf-strict", "-n", "1", "-k", "unit")
    result = project.run_apart(*arguments)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*no performance test was collected in this process*without -n*"])


@pytest.mark.parametrize("does", [
    conftest("def pytest_configure():\n    pytest.exit('no GPU', returncode=0)\n"),
    conftest("def pytest_sessionstart():\n    pytest.exit('no GPU', returncode=0)\n"),
    conftest("def pytest_cmdline_main():\n    return 0\n"),
    settings("addopts = --markers"),
    settings("addopts = --help"),
    settings("addopts = --version --version"),
    settings("addopts = --cache-show"),
    settings("addopts = --fixtures"),
    conftest("def pytest_collection():\n    pytest.exit('no GPU', returncode=0)\n"),
    conftest(
        "@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "def pytest_sessionfinish(session):\n    yield\n    session.exitstatus = 0\n"
    ),
])  # fmt: skip
def test_a_status_of_0_that_pytest_does_not_give_leaves_no_pass(project, does):
    """Where a conftest or settings end the run, or set its exit status, pytest's own may be 0. No
    document says that it passed, and no older one stays: the gate is red.
    """
    (project.path / ".stepguard/run.json").write_text(OLD)
    changed(project)
    does(project)
    project.commit()
    project.run("--perf-strict", JSON)
    commit = project.git("rev-parse", "HEAD").strip()
    if (project.path / ".stepguard/run.json").exists():
        found = document(project)
        assert found.commit == commit and not found.passed
    assert main(["gate", ".stepguard/run.json", "--commit", commit]) == 1
