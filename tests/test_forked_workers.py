"""Tests in forks of the process that collected them: all of them run, once, and are reported."""

import re
import signal
import time
from pathlib import Path
from subprocess import DEVNULL

import pytest
from agent_forks import QUICK_PYTHON
from interrupts import heed_interrupts

TESTS = Path(__file__).parent
COMMAND = [*QUICK_PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--workers", "2"]
FILES = {
    "test_a": """
        import os, warnings
        import pytest

        @pytest.fixture(scope="module", autouse=True)
        def note():
            yield
            open("ended", "a").write(f"{os.getpid()} ")

        def test_first(tmp_path):
            warnings.warn("careful")
            print("not shown")
            open("ran", "a").write(f"a{os.getpid()} ")

        def test_second(tmp_path):
            open("ran", "a").write(f"a{os.getpid()} ")

        @pytest.mark.skip(reason="why not")
        def test_skipped():
            pass

        @pytest.fixture
        def broken():
            raise ValueError("no set-up")

        def test_error(broken):
            pass
    """,
    "test_b": """
        import os

        def test_fails():
            print("what it printed")
            open("ran", "a").write(f"b{os.getpid()} ")
            assert 1 + 1 == 3
    """,
}
DIES = "import os, signal\n\ndef test_dies():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
DIES += "\ndef test_behind():\n    pass\n"
WAITS = "import time\n\ndef test_waits():\n    time.sleep(600)\n"
FAILS = "def test_fails():\n    assert False\n"


@pytest.fixture
def run(pytester, monkeypatch):
    """``run(files, *options)`` runs them in two workers, in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which takes half of a run
    pytester.makeconftest("from forked_workers import pytest_addoption, pytest_runtestloop")

    def call(files, *options):
        pytester.makepyfile(**files)
        return pytester.run(*COMMAND, "-ra", *options, timeout=900)

    return call


def test_every_test_is_reported_as_in_one_process(run, pytester):
    """Its outcome, its warning, what a failed one printed and why it failed. A file is one worker's
    own: fixtures of a module are made once, and end in the worker that made them.
    """
    result = run(FILES)
    result.assert_outcomes(passed=2, failed=1, skipped=1, errors=1, warnings=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = result.stdout.str()
    for words in ("what it printed", "assert (1 + 1) == 3", "ValueError: no set-up", "careful"):
        assert words in said
    assert "not shown" not in said and "SKIPPED [1] test_a.py" in said
    ran = (pytester.path / "ran").read_text().split()
    assert sorted(one[0] for one in ran) == ["a", "a", "b"]
    (worker,) = {one[1:] for one in ran if one[0] == "a"}
    assert (pytester.path / "ended").read_text().split() == [worker]


def test_a_test_whose_worker_died_has_failed(run):
    """And so has each test behind it in its file; those of other files run."""
    result = run({"test_a": DIES, "test_b": FAILS, "test_c": FAILS.replace("False", "True")})
    result.assert_outcomes(passed=1, failed=3)
    text = "FAILED test_a.py::test_{} - not run to its end: workers ended with *-9*"
    result.stdout.fnmatch_lines_random([text.format("dies"), text.format("behind")])


def test_what_the_end_of_a_session_raises_fails(run):
    """A fixture of the session ends behind a worker's last test."""
    text = "import pytest\n\n@pytest.fixture(scope='session')\ndef all_day():\n    yield\n"
    text += "    raise ValueError('an end')\n\ndef test_it(all_day):\n    pass\n"
    result = run({"test_a": text})
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "workers ended with [1]" in result.stdout.str()
    assert "ValueError: an end" in result.stderr.str()


def test_the_first_failure_ends_all(run):
    """A test that waits in the other worker is interrupted."""
    result = run({"test_a": WAITS, "test_b": FAILS}, "-x")
    result.assert_outcomes(failed=1)
    assert "stopping after 1 failures" in result.stdout.str()


def test_a_file_that_cannot_be_imported_runs_nothing(run, pytester):
    """As in one process."""
    result = run({"test_a": FILES["test_a"], "test_b": "import nothing_of_this_name\n"})
    assert result.ret == pytest.ExitCode.INTERRUPTED and not (pytester.path / "ran").exists()
    assert re.search("No module named .nothing_of_this_name", result.stdout.str())


def test_a_signal_ends_all(run, pytester):
    """A Ctrl-C: nothing is left running."""
    waits = WAITS.replace("    time", "    open('waits', 'w').close()\n    time")
    pytester.makepyfile(test_a=waits, test_b=waits)
    running = pytester.popen(COMMAND, stdin=DEVNULL, preexec_fn=heed_interrupts)
    while not (pytester.path / "waits").exists() and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=900)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, said.decode()
