"""A command that is forked for a test is what a new process would be."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from agent_forks import QUICK_PYTHON, VARIABLE
from interrupts import heed_interrupts
from leftovers import environment
from quick_launches import BUSY_LIMIT_S

CONFTEST = """
import atexit, json, os, signal, sys, tempfile
from pathlib import Path

MASKS = ("SigBlk", "SigIgn", "Umask", "Cpus_allowed")
status = Path("/proc/self/status").read_text().splitlines()
facts = {
    "environment": dict(os.environ),
    "shown": sorted(filter(None, Path("/proc/self/environ").read_text().split("\\0"))),
    "folder": os.getcwd(),
    "arguments": [sys.argv, sys.orig_argv[1:]],
    "path": sys.path,
    "bytecode": sys.dont_write_bytecode,
    "masks": [line for line in status if line.startswith(MASKS)],
    "temporary": tempfile.gettempdir(),
    "engine": [name for name in sys.modules if name.partition(".")[0] == "stepguard"],
    "read": sys.stdin.read(),
}
Path("facts.json").write_text(json.dumps(facts))
atexit.register(Path("ended").touch)
"""
TEST = """
import os, signal, time
from pathlib import Path


def test_it():
    Path("runs").write_text(str(os.getpid()))
    {does}
"""
COMMAND = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_it.py")


@pytest.fixture
def started(tmp_path):
    """Starts pytest in a folder of its own, whose only test does what is given."""

    @contextlib.contextmanager
    def start(does, *python, **variables):
        (tmp_path / "conftest.py").write_text(CONFTEST)
        (tmp_path / "test_it.py").write_text(TEST.format(does=does))
        (tmp_path / "ended").unlink(missing_ok=True)
        (tmp_path / "typed").write_text("typed")
        # Plugins, which none of this is about, take a new process longer than all else does.
        own = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        env = os.environ | own | variables
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        with (tmp_path / "typed").open() as typed:
            run = subprocess.Popen(
                [*python, *COMMAND],
                cwd=tmp_path,
                env=env,
                stdin=typed,
                text=True,
                preexec_fn=heed_interrupts,
                **pipes,
            )
        with run:
            try:
                yield run
            finally:  # else leaving a test that failed would wait for the end of its sleep
                run.kill()

    return start


@pytest.mark.parametrize("does", ["pass", "assert False", "raise KeyboardInterrupt"])
def test_a_forked_command_is_as_a_new_process(started, tmp_path, does):
    """The same environment, also as /proc shows it, folder, arguments, import path, input, output,
    status and end; the engine is imported by itself.
    """
    answers = []
    for python in (QUICK_PYTHON, (sys.executable,)):
        with started(does, *python) as run:
            out, err = run.communicate(timeout=BUSY_LIMIT_S)
        facts = json.loads((tmp_path / "facts.json").read_text())
        assert (tmp_path / "ended").exists()
        answers.append([run.returncode, out.rpartition(" in ")[0], err, facts])
    assert answers[0] == answers[1]
    assert answers[0][-1]["read"] == "typed" and answers[0][-1]["engine"] == []


def runs(tmp_path):
    """Wait for the test; the process that it is in."""
    until = time.monotonic() + BUSY_LIMIT_S
    while not (tmp_path / "runs").exists() or not (tmp_path / "runs").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    return int((tmp_path / "runs").read_text())


def test_a_signal_is_handed_on(started, tmp_path):
    """To a process that is forked indeed; how it ends is how the command ends."""
    with started("time.sleep(600)", *QUICK_PYTHON) as run:
        pid = runs(tmp_path)
        assert pid != run.pid
        run.send_signal(signal.SIGINT)
        assert run.wait(BUSY_LIMIT_S) == pytest.ExitCode.INTERRUPTED
    with started("os.kill(os.getpid(), signal.SIGTERM)", *QUICK_PYTHON) as run:
        assert run.wait(BUSY_LIMIT_S) == -signal.SIGTERM


def test_a_command_dies_with_whoever_waits_for_it(started, tmp_path):
    """A test that kills what it started has killed it."""
    with started("time.sleep(600)", *QUICK_PYTHON) as run:
        pid = runs(tmp_path)
        run.kill()
    until = time.monotonic() + BUSY_LIMIT_S
    while environment(pid):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("variable", [{VARIABLE: ""}, {"PYTHONHASHSEED": "0"}])
def test_what_a_fork_cannot_stand_in_for_starts_cold(started, tmp_path, variable):
    """Without a server, and with settings that Python reads when it starts."""
    with started("pass", *QUICK_PYTHON, **variable) as run:
        out, _ = run.communicate(timeout=BUSY_LIMIT_S)
    assert "1 passed" in out and run.returncode == 0
    assert int((tmp_path / "runs").read_text()) == run.pid
