"""--perf-json and --perf-report: whole, from failed runs too, refused before measuring."""

import errno
import json
import os

import pytest
from run_documents import OLD

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.core.run_document import End, ProblemCode, State
from stepguard.machine.git.revision import run_git
from stepguard.storage import run_document_file
from stepguard.storage.run_document_file import load_document

JSON_FILES = {"cpu.json": '{"schema": 1, "machine": "CPU", "cases": {}}',
              "trace.json": '{"schemaVersion": 1, "traceEvents": []}', "list.json": "[1, 2]",
              "text.json": "notes"}  # fmt: skip


@pytest.fixture
def mixed(gate):
    """A gate with a same, a changed, a broken and a new case."""
    cases = [gate.cpu(name) for name in ("same", "changed", "broken", "new")]
    gate.suite(*cases)
    gate.record(*cases[:3])
    gate.will_measure(cases[1], counters={"flops_per_step": 2000})
    gate.will_measure(cases[2], faults=(Fault(Reason.RAISED, "planted <b>"),), launches=())
    return gate


def strict(text):
    """Parsed JSON; NaN and Infinity are refused."""

    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_json_holds_every_case(mixed):
    """Every measured case with parameters, metrics, verdict, reason and where its evidence is."""
    assert mixed.run("--perf-json=out/run.json").ret == 1
    document = strict((mixed.path / "out/run.json").read_text())
    by_case = {case["case"]: case for case in document["results"]}
    words = {name: (c["verdict"]["status"], c["verdict"]["reason"]) for name, c in by_case.items()}
    assert words == {
        "linear[same]": ("same", "EQUAL"),
        "linear[changed]": ("CHANGED", "WORK_MOVED"),
        "linear[broken]": ("BROKEN", "RAISED"),
        "linear[new]": ("NO BASELINE", "NOT_RECORDED"),
    }
    changed = by_case["linear[changed]"]
    assert changed["metrics"]["flops_per_step"] == 2000
    moved = {m["metric"]: m for m in changed["verdict"]["metrics"] if m["status"] != "same"}
    assert (moved["flops_per_step"]["old"], moved["flops_per_step"]["new"]) == (1000, 2000)
    assert changed["parameters"]["workload"] == "factories:linear"
    for case in by_case.values():
        path = mixed.path / case["evidence"]
        assert not case["evidence"].startswith("/") and case["baseline"] == "baselines/cpu.json"
        assert strict(path.read_text())["case_id"] == case["case"]


def test_a_run_that_measured_nothing_still_writes_them(gate):
    """Every case skipped: both documents are written, hold no case, and say so."""
    gate.suite(gate.cuda())
    assert gate.run("--perf-json=run.json", "--perf-report=report.md").ret == 1
    assert strict((gate.path / "run.json").read_text())["results"] == []
    assert "nothing was measured" in (gate.path / "report.md").read_text()


def document(gate, *arguments):
    """The document of a run with these arguments, as a reader has it."""
    gate.run("--perf-json=run.json", *arguments)
    return load_document(gate.path / "run.json")


def became(found):
    """What became of every case, by its name."""
    return {one.case.partition("[")[2][:-1]: (one.state, one.why) for one in found.cases}


def test_the_document_tells_what_was_measured_and_how(mixed):
    """Commit, files that differ from it, machine, options, the folder of the baselines."""
    mixed.commit()
    (mixed.path / "test_perf.py").touch()
    (mixed.path / "note.txt").write_text("")
    found = document(mixed, "-m", "not gpu")
    assert found.commit == mixed.git("rev-parse", "HEAD").strip() and found.dirty == ["note.txt"]
    assert (found.machine, found.gpus, found.baselines) == ("CPU", [], "baselines")
    assert found.options.markers == "not gpu" and "--perf-json=run.json" in found.options.arguments
    assert found.options.perf["--perf-json"] == "run.json"
    assert (found.end, found.passed, found.against) == (End.FINISHED, False, "")


def test_every_case_is_in_the_document(mixed, h200):
    """Measured, skipped, deselected, never reached, and recorded without a test; each with its
    reason, its test and its line.
    """
    mixed.record(mixed.cpu("gone"))
    mixed.suite(*(mixed.cpu(name) for name in ("same", "changed", "broken", "new")), mixed.cuda())
    found = document(mixed, "-x", "-k", "not new")
    assert became(found) == {
        "same": (State.MEASURED, ""),
        "changed": (State.MEASURED, ""),
        "broken": (State.UNMEASURED, "the run ended before its turn"),
        "new": (State.DESELECTED, "deselected by -k 'not new'"),
        "124m": (State.UNMEASURED, "the run ended before its turn"),
        "gone": (State.ABSENT, "no test of it was collected"),
    }
    whole = document(mixed)
    skipped = became(whole)["124m"]
    assert skipped == (State.SKIPPED, "needs 1 GPU, this machine shows 0")
    first = whole.cases[0]
    assert (first.test, first.file, first.line) == (
        "test_perf.py::test_step[same]",
        "test_perf.py",
        6,
    )


def test_a_run_that_is_killed_leaves_no_older_document(mixed, monkeypatch):
    """Whoever looks for one at its end must not find the one of the run before."""
    path = mixed.path / "run.json"
    path.write_text(OLD)
    seen = []
    monkeypatch.setattr(
        "stepguard.measure.suite.measure",
        lambda case, *arguments, **options: (
            seen.append(path.exists()) or mixed.measure(case, *arguments, **options)
        ),
    )
    mixed.run("--perf-json=run.json", "-k", "same")
    assert seen == [False] and path.exists()


@pytest.mark.parametrize(
    ("folder", "options"), [(".", ("-p", "stepguard.plugin")), ("more", ("more",))]
)
def test_a_conftest_that_ends_the_process_leaves_no_older_document(mixed, folder, options):
    """The project's own, where stepguard is installed; in a clone, whose conftest names the plugin,
    that of a folder.
    """
    path = mixed.path / "run.json"
    path.write_text(OLD)
    (mixed.path / folder).mkdir(exist_ok=True)
    (mixed.path / folder / "conftest.py").write_text("import sys\n\nsys.exit(0)\n")
    result = mixed.run_apart("--perf-json=run.json", *options)
    assert (result.ret, path.exists()) == (0, False)


@pytest.mark.parametrize("content", [
    OLD,
    '{"case": "f[x]", "verdict": {}, "evidence": "a/evidence.json"}',
    '[{"case_id": "f[x]", "outcome": "passed", "headline": "same"}]',
    "[]",
    '{"ranks": []}',
    '{"ranks": [], "collectives": []}',
    '{"explanation": {}, "before": {}, "after": {}}',
    '{"schema": 1, "sweep": {}, "rows": []}',
])  # fmt: skip
def test_a_document_takes_an_earlier_one_s_place(tmp_path, content):
    """Whichever command wrote it, and whichever version."""
    path = tmp_path / "out.json"
    path.write_text(content)
    assert run_document_file.unwritable(path) == ""
    path.write_text(content.replace('"', '"my ') if '"' in content else "[1]")
    assert run_document_file.unwritable(path).startswith("is no earlier document")


@pytest.mark.parametrize(("options", "text"), [
    (("--perf-baselines=none",), "--perf-baselines=none: no such folder"),
    (("no_such_file.py",), "pytest refused its arguments"),
])  # fmt: skip
def test_a_run_that_was_refused_leaves_a_document(mixed, options, text):
    """Whoever waits for one learns why nothing was measured, and never reads an older one."""
    (mixed.path / "run.json").write_text(OLD)
    found = document(mixed, *options)
    assert (found.end, found.passed, found.results) == (End.REFUSED, False, [])
    assert [problem.text.partition(";")[0] for problem in found.problems] == [text]


def test_a_run_that_is_interrupted_leaves_a_document(mixed, monkeypatch):
    """With what was measured by then; and which cases were not is said."""
    measure = mixed.measure

    def interrupt(case, *arguments, **options):
        if case.name == "changed":
            raise KeyboardInterrupt
        return measure(case, *arguments, **options)

    monkeypatch.setattr("stepguard.measure.suite.measure", interrupt)
    found = document(mixed)
    assert (found.end, found.passed) == (End.INTERRUPTED, False)
    assert [result.case for result in found.results] == ["linear[same]"]
    (notice,) = (one for one in found.notices if "interrupted" in one)
    assert notice.startswith("interrupted: ") and "cases not measured: linear[changed], " in notice
    assert became(found)["broken"] == (State.UNMEASURED, "the run ended before its turn")


@pytest.mark.parametrize("options", [(), ("-x",)])
@pytest.mark.parametrize(("flops", "status"), [(1000, "INCONCLUSIVE"), (2000, "CHANGED")])
def test_a_run_that_is_ended_says_what_it_knows(mixed, options, flops, status):
    """The case that was under way is judged by what was measured, and printed like any other: a
    counter that moved decides, and nothing is green. No further case is measured.
    """
    end = Fault(Reason.UNDECIDED, "ended by SIGTERM after 9 s, 2 s into launch 1: warm-up")
    case, counters = mixed.cpu("changed"), {"flops_per_step": flops}
    mixed.will_measure(case, counters=counters, faults=(end,), launches=())
    result = mixed.run("--perf-json=run.json", *options)
    found = load_document(mixed.path / "run.json")
    assert (found.end, found.passed) == (End.INTERRUPTED, False)
    assert {one.case: one.verdict.status.value for one in found.results} == {
        "linear[same]": "same",
        "linear[changed]": status,
    }
    states = became(found)
    assert states["changed"][0] is State.MEASURED and states["new"][0] is State.UNMEASURED
    result.says("*", f"linear[[]changed[]]: {status}: *", "*= performance =*")
    assert end.message in result.stdout.str()
    assert any(end.message in one for one in found.notices) is (status == "CHANGED")
    if not options:
        assert result.ret == pytest.ExitCode.INTERRUPTED
        result.says("!*Interrupted: ended by SIGTERM after 9 s *!")


def test_a_second_interrupt_makes_no_pass(mixed):
    """While pytest shows where the first one was, it ends the run as if all had passed. Here an
    error is in its place, which leaves pytest in the same way.
    """
    mixed.pytester.makeconftest(
        "pytest_plugins = ['stepguard.plugin']\n"
        "def pytest_runtest_logfinish(nodeid):\n"
        "    raise KeyboardInterrupt\n"
        "def pytest_keyboard_interrupt(excinfo):\n"
        "    raise RuntimeError\n"
    )
    found = document(mixed, "--perf-no-strict")
    assert (found.end, found.passed) == (End.INTERRUPTED, False)
    assert [result.case for result in found.results] == ["linear[same]"]
    assert [problem.code for problem in found.problems] == [ProblemCode.NOT_FINISHED]


@pytest.mark.parametrize("option", ["--perf-json", "--perf-report"])
@pytest.mark.parametrize(("path", "told"), [
    ("baselines", "is a folder: name a file in it"),
    ("test_perf.py/run.json", "a part of its path is a file: name a file in a folder"),
])  # fmt: skip
def test_a_path_that_cannot_be_written_is_refused_at_once(mixed, option, path, told):
    """A folder, or a path below a file: exit 4 before an hour of measuring is lost to it."""
    result = mixed.run(f"{option}={path}")
    assert result.ret == 4
    assert mixed.measured == []
    result.stderr.fnmatch_lines([f"*{option}={path}: {told}"])


@pytest.mark.parametrize("option", ["--perf-json", "--perf-report"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_device_or_a_link_stays_what_it_is(mixed, option, kind):
    """Root may replace /dev/null by a file, and /dev/stdout is a link: refused, and left alone."""
    path = mixed.path / "run.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(mixed.path / "test_perf.py")
    before = path.lstat()
    assert mixed.run(f"{option}=run.json").ret == 4 and mixed.measured == []
    after = path.lstat()  # reading a link moves its access time, which is no change
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


@pytest.mark.parametrize("option", ["--perf-json", "--perf-report"])
@pytest.mark.parametrize(("path", "told"), [
    ("test_perf.py",
     "is a file that may be yours, *: name one that ends in .json, .md, .html, .txt"),
    ("notes.md", "is a file in git, *: name another one"),
    ("cpu.json", "is a baseline, *: name another file"),
    ("trace.json", "is no earlier document, *: name another file"),
    ("list.json", "is no earlier document, *: name another file"),
    ("text.json", "is no earlier document, *: name another file"),
])  # fmt: skip
def test_a_file_of_the_user_stays(mixed, option, path, told):
    """The test file that follows an option without its value, what git has, a baseline that it does
    not have yet, and any other JSON that is no document of ours: exit 4 at once.
    """
    target = mixed.path / path
    if path in JSON_FILES:
        target.write_text(JSON_FILES[path])
    elif not target.exists():
        target.write_text("notes")
        run_git(mixed.path, "init", "-q")
        run_git(mixed.path, "add", path)
    before = target.read_text()
    result = mixed.run(option, path)
    assert (result.ret, mixed.measured) == (4, [])
    result.stderr.fnmatch_lines([f"*{option}={path}: {told}"])
    assert target.read_text() == before


def test_they_are_not_written_by_collecting(mixed):
    """--co writes no document over an earlier one."""
    (mixed.path / "run.json").write_text(OLD)
    assert mixed.run("--co", "--perf-json=run.json").ret == 0
    assert (mixed.path / "run.json").read_text() == OLD


def test_a_document_that_cannot_be_written_loses_no_verdict(gate, monkeypatch):
    """A disk that is full at the end of the run: the summary is shown, the other document written,
    and the run fails and says why.
    """
    gate.guarded()
    real = run_document_file.replace_file

    def replace_file(path, data):
        if path.name == "run.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(run_document_file, "replace_file", replace_file)
    result = gate.run("--perf-json=run.json", "--perf-report=run.md")
    assert result.ret == 1
    result.says("linear?nano? *same", "*--perf-json=run.json: No space left*")
    assert "same" in (gate.path / "run.md").read_text()


def test_a_page_in_html_is_the_labs(mixed):
    """Refused before anything is measured, with the command that makes it."""
    result = mixed.run("--perf-report=run.html")
    assert (result.ret, mixed.measured) == (4, [])
    result.stderr.fnmatch_lines(["*--perf-report=run.html: *stepguard report --html run.html*"])
