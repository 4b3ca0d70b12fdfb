"""Launches get what pytest was started with; what the tree's code sets in pytest is no secret.

Both sides of a pair would have it, so that no comparison could show it.
"""

import os
import resource
import shutil
from pathlib import Path

import factories
import pytest
from forks import in_a_fork
from short_launches import shorten_launches

from stepguard import Case
from stepguard.core.fingerprint import Fingerprint
from stepguard.core.run_document import ProblemCode
from stepguard.core.status import Status
from stepguard.machine import inherited
from stepguard.measure.suite import Suite
from stepguard.storage.run_document_file import load_document

PLUGIN = 'import os\nimport resource\n\nimport pytest\n\npytest_plugins = ["stepguard.plugin"]\n\n'
EARLY = "{text}\n"
LATE = "@pytest.fixture(autouse=True)\ndef late(monkeypatch):\n    {text}\n"
SETS = "os.environ['MKL_CBWR'] = 'COMPATIBLE'"
FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
FEWER = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES[0] - 1}, {FILES[1]}))"


@pytest.fixture
def project(gate, monkeypatch):
    """A repository with a recorded case; what its code sets is undone."""
    monkeypatch.delenv("MKL_CBWR", raising=False)
    gate.guarded()
    yield gate
    os.environ.pop("MKL_CBWR", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, FILES)


def conftest(project, text, how=EARLY):
    """Let the tree's conftest do something, and commit it."""
    (project.path / "conftest.py").write_text(PLUGIN + how.format(text=text))
    project.commit()


@pytest.mark.parametrize("how", [EARLY, LATE])
@pytest.mark.parametrize(("text", "change"), [
    (SETS, "MKL_CBWR unset -> COMPATIBLE"),
    (FEWER, f"limit of open files {FILES[0]} of {FILES[1]} -> {FILES[0] - 1} of {FILES[1]}"),
])  # fmt: skip
def test_what_the_tree_sets_in_pytest_is_a_problem(project, how, text, change):
    """As a conftest is imported, or by a fixture for its case alone, which sets it back."""
    conftest(project, text, how)
    result = project.run("--perf-strict", "--perf-json=.stepguard/run.json")
    assert result.ret == 1
    problems = load_document(project.path / ".stepguard/run.json").problems
    (why,) = [one.text for one in problems if one.code is ProblemCode.OTHER_ENVIRONMENT]
    assert why.startswith(f"{change} since pytest was started")


def test_priority_and_cpus_are_compared():
    """A launch would inherit both."""

    def changed():
        before = inherited.inherited_now()
        os.nice(1)
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        return before.changes(inherited.inherited_now())

    names = [change.rpartition(" -> ")[0] for change in in_a_fork(changed)["is"]]
    cpus = Path("/proc/self/status").read_text().partition("Cpus_allowed_list:")[2].split()[0]
    expected = {f"niceness {os.getpriority(os.PRIO_PROCESS, 0)}"}
    # A machine with one CPU allows no fewer.
    assert {*names} == expected | ({f"allowed CPUs {cpus}"} if not cpus.isdecimal() else set())


def test_by_hand_it_is_a_notice(project):
    """A root conftest may have good reasons; the launches are without it all the same."""
    conftest(project, SETS)
    result = project.run()
    assert result.ret == 0 and project.measured
    result.says("*MKL_CBWR unset -> COMPATIBLE since pytest was started*in the workload's module")


def test_what_a_user_sets_for_the_command_is_no_change(project, monkeypatch):
    """Nor what pytest itself sets, coverage, or a library as it is imported."""
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    conftest(project, "os.environ.update(PYTEST_X='1', COV_CORE_SOURCE='x', LC_CTYPE='C.UTF-8')")
    for name in ("PYTEST_X", "COV_CORE_SOURCE", "LC_CTYPE"):
        monkeypatch.setenv(name, "")  # so that it is as it was, after the test
        monkeypatch.delenv(name)
    assert project.run("--perf-strict").ret == 0


def test_launches_get_what_pytest_was_started_with(project, monkeypatch):
    """Whatever its process has by then."""
    given = []
    run = Suite.run
    monkeypatch.setattr(Suite, "run", lambda s, *a: given.append(dict(s.environment)) or run(s, *a))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    conftest(project, "os.environ['OMP_NUM_THREADS'] = '1'")
    assert project.run().ret == 0
    assert [one["OMP_NUM_THREADS"] for one in given] == ["3"]


def test_no_rank_sees_what_a_conftest_set(project, monkeypatch):
    """Of a real launch, whose workload looks for itself."""
    shorten_launches(monkeypatch)
    text = "import os\n\nfrom factories import linear as build\n\n\n"
    text += "def linear(**given):\n    assert 'MKL_CBWR' not in os.environ\n"
    text += "    return build(**given)\n"
    (project.path / "late.py").write_text(text)
    shutil.copy(factories.__file__, project.path)
    case = Case("late", "late:linear", device="cpu", launches=1, gates=("graph_breaks",))
    project.suite(case)
    conftest(project, SETS)
    project.measure_really()
    result = project.run("--perf-json=.stepguard/run.json")
    (found,) = load_document(project.path / ".stepguard/run.json").results
    assert found.verdict.status is Status.NO_BASELINE, str(result.stdout)


def test_values_of_secrets_are_not_shown():
    """A conftest's token must not end in a CI log."""
    old, new = inherited.Inherited({}, {}), inherited.Inherited({"HF_TOKEN": "abc"}, {})
    assert old.changes(new) == ("HF_TOKEN unset -> (hidden)",)


@pytest.mark.parametrize(("given", "ret"), [({}, 0), ({"CUDA_LAUNCH_BLOCKING": "1"}, 1)])
def test_pairs_run_in_the_environment_that_is_recorded(project, given, ret):
    """A workflow that sets a variable for both sides hides what it costs."""
    conftest(project, "")
    measured = Fingerprint("x86_64", "", torch="2.13.0", environment=given)
    sides = {"head": {"fingerprint": measured}, "base": {"fingerprint": measured}}
    project.will_compare(project.cpu(), **sides)
    (project.path / "more.py").write_text("")
    project.commit()
    result = project.run("--perf-strict", "--perf-against=HEAD~1")
    assert result.ret == ret and project.paired
    if ret:
        result.says("*both sides were measured with CUDA_LAUNCH_BLOCKING=1, its recording in *")
