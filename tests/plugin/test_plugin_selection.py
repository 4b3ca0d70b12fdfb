"""Choosing and loading: -k, --co, duplicate ids, xdist, and the plugin loaded in several ways."""

import os

import pytest


@pytest.fixture
def recorded(gate):
    """A gate with two recorded cases."""
    cases = [gate.cpu("a"), gate.cpu("b")]
    gate.suite(*cases)
    gate.record(*cases)
    return gate


def test_collecting_measures_nothing(recorded):
    """--co lists the cases, measures nothing, prints no table and exits 0."""
    result = recorded.run("--co", "-q")
    assert result.ret == 0
    assert recorded.measured == []
    result.says("test_perf.py::test_step?a?", "test_perf.py::test_step?b?")
    result.stdout.no_fnmatch_line("*performance*")


@pytest.mark.parametrize("option", ["--setup-plan", "--setup-only"])
def test_not_running_the_tests_is_not_green(recorded, option):
    """pytest's options that run no test body leave the gate unpassed."""
    result = recorded.run(option)
    assert recorded.measured == []
    assert result.ret != 0


def test_two_cases_of_one_id_are_a_usage_error(gate):
    """Ids are baseline keys: the same one twice is exit 4 and is named."""
    gate.suite(gate.cpu("a"))
    text = (gate.path / "test_perf.py").read_text()
    (gate.path / "test_again.py").write_text(text)
    result = gate.run()
    assert result.ret == 4
    told = "*two cases are called linear?a?: ids are baseline keys; rename one of them"
    result.stderr.fnmatch_lines([told])
    assert gate.measured == []


@pytest.mark.parametrize(
    "arguments", [("-n", "1"), ("--tx", "1*popen", "--dist=load", "--benchmark-skip")]
)
def test_xdist_is_refused(recorded, arguments):
    """Cases cannot share a machine: under xdist one error at a set-up stands for all, with the
    reason, so that the exit is 1 and not a refusal's 4; no measurement. So is a test with cases but
    not perf, which without xdist is a usage error.
    """
    forgot = f"\n\n@cases({recorded.cpu('c')!r})\ndef test_forgot(case):\n    pass\n"
    with (recorded.path / "test_perf.py").open("a") as file:
        file.write(forgot)
    result = recorded.run_apart(*arguments)
    assert result.ret == 1
    result.assert_outcomes(errors=2)
    words = "\n".join(result.outlines + result.errlines)
    assert "2 performance cases cannot share a machine: run without -n" in words
    assert "has @cases but not the fixture perf" in words
    assert not (recorded.path / ".stepguard").exists()


def test_no_mark_lets_cases_pass_under_xdist(recorded):
    """The one that stands for all may be expected to fail: none was measured."""
    with (recorded.path / "test_perf.py").open("a") as file:
        file.write("\n\npytestmark = pytest.mark.xfail\n")
    result = recorded.run_apart("-n", "1")
    result.assert_outcomes(errors=1)
    assert result.ret == 1


def test_other_suites_may_use_xdist(gate):
    """With the plugin loaded and no case, -n works as ever."""
    gate.tests("@pytest.mark.parametrize('n', range(4))\ndef test_unit(n):\n    pass\n")
    result = gate.run_apart("-n", "1")
    result.assert_outcomes(passed=4)
    assert result.ret == 0


@pytest.mark.parametrize(
    "arguments",
    [("-p", "stepguard.plugin"), ("-p", "stepguard.plugin", "-p", "stepguard.plugin")],
)
def test_loaded_by_conftest_and_option_together(recorded, arguments):
    """conftest's pytest_plugins and -p load one plugin: every case is measured once."""
    recorded.run(*arguments, passed=2)
    assert recorded.measured == ["linear[a]", "linear[b]"]


def test_not_loaded_is_no_pass(recorded):
    """With the plugin blocked the cases are errors: their fixture does not exist."""
    (recorded.path / "conftest.py").unlink()
    result = recorded.run("-p", "no:stepguard.plugin")
    assert result.ret == 1
    result.assert_outcomes(errors=2)


def test_a_part_of_the_plugin_is_not_left_out(recorded):
    """With its hooks blocked nobody would look at what a run leaves out: a usage error."""
    result = recorded.run("-p", "no:stepguard-hooks", "--perf-json=run.json")
    assert result.ret == 4 and not (recorded.path / "run.json").exists()
    result.stderr.fnmatch_lines(["ERROR: -p no:stepguard-hooks: it is a part of stepguard*"])


def test_started_from_another_folder(recorded):
    """Baselines are found from rootdir, wherever pytest was called."""
    folder = recorded.path / "below"
    folder.mkdir()
    (recorded.path / "pytest.ini").write_text("[pytest]\n")
    os.chdir(folder)
    recorded.run("..", passed=2)
