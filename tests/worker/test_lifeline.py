"""Processes die with their parent, and are found by their launch's token."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepguard.launch import torchrun
from stepguard.machine.lifeline import (
    alive,
    die_with_parent,
    holds_memory,
    kill_by_token,
    pids_by_token,
)

LONG_S = 300.0  # less than what the children would sleep


CHILD = """
import os, sys, time
from stepguard.machine.lifeline import die_with_parent
tied = die_with_parent(int(sys.argv[1]))
print(os.getpid(), tied, flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
time.sleep(600)
"""


def gone(pid):
    """Wait until the process is no more, or a zombie; False if it stays."""
    until = time.monotonic() + LONG_S
    while holds_memory(int(pid)) and time.monotonic() < until:
        time.sleep(0.01)
    return not holds_memory(int(pid))


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_dies_with_its_parent(signum):
    """However the parent ends, SIGKILL included, the kernel ends the child."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    pid, tied = parent.stdout.readline().split()
    try:
        assert tied == "True" and not (int(pid) == parent.pid)
        os.kill(parent.pid, signum)
        parent.wait(LONG_S)
        assert gone(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_a_parent_that_is_gone_already_is_noticed():
    """If another process adopted the child before it asked, die_with_parent says so."""
    code = "from stepguard.machine.lifeline import die_with_parent; print(die_with_parent(1234567))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S
    )
    assert done.stdout.strip() == "False"


def test_asking_for_an_impossible_signal_raises():
    """The kernel's refusal is an OSError, not silence."""
    with pytest.raises(OSError):
        die_with_parent(os.getppid(), 4242)


def sleeper(token):
    """A process that carries a token, with a child in a session of its own that does too."""
    code = (
        "import subprocess, sys, time\n"
        "child = 'import time; print(1, flush=True); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', child], start_new_session=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"STEPGUARD_TOKEN": token},
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()  # of the child, which has its environment by then
    return process


def test_processes_are_found_by_their_token():
    """A token finds its process and what that started, in other sessions too, and nobody else."""
    mine, other = f"mine-{os.getpid()}", f"mine-{os.getpid()}-other"
    one, two = sleeper(mine), sleeper(other)
    try:
        assert one.pid in pids_by_token(mine) and len(pids_by_token(mine)) == 2
        assert two.pid in pids_by_token(other) and len(pids_by_token(other)) == 2
        assert pids_by_token(f"mine-{os.getpid()}-nobody") == []
        assert pids_by_token(mine[:-1]) == []  # no token is the beginning of another
        child = next(pid for pid in pids_by_token(mine) if pid != one.pid)
        assert kill_by_token(mine, spare=one.pid) == [child]
        assert gone(child) and one.poll() is None
        assert kill_by_token(mine) == [one.pid]
        assert gone(one.pid)  # a zombie now, and not found any more
        assert pids_by_token(mine) == []
        assert len(pids_by_token(other)) == 2
    finally:
        for process, token in ((one, mine), (two, other)):
            kill_by_token(token)
            process.wait()
            process.stdout.close()


# Its first thread ends, and its second one stays: then it has no environment any more.
HEADLESS = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
exit_thread = {'x86_64': 60, 'aarch64': 93}[platform.machine()]
ctypes.CDLL(None).syscall(exit_thread, 0)
"""


@pytest.fixture
def headless():
    """A process that is about to end, with a token: only its last thread still runs."""
    token = f"headless-{os.getpid()}"
    command, env = [sys.executable, "-c", HEADLESS], os.environ | {"STEPGUARD_TOKEN": token}
    process = subprocess.Popen(command, env=env)
    try:
        until = time.monotonic() + LONG_S
        while "(zombie)" not in Path(f"/proc/{process.pid}/status").read_text():
            assert time.monotonic() < until
            time.sleep(0.01)
        yield token, process
    finally:
        process.kill()
        assert gone(process.pid)
        process.wait()


def test_a_process_holds_its_memory_until_its_last_thread_has_ended(headless):
    """Nothing finds it by its token any more. It counts as dead, since it may stay in a driver."""
    token, process = headless
    assert not pids_by_token(token) and not alive(process.pid)
    assert holds_memory(process.pid)


def test_a_launch_is_closed_only_when_its_ranks_have_ended(tmp_path, monkeypatch):
    """end() does not return while a rank ends: its memory on the GPU is not free yet."""
    answers = [True, True, True, False]
    monkeypatch.setattr(torchrun, "holds_memory", lambda pid: answers.pop(0))
    with subprocess.Popen(["true"]) as agent:
        agent.wait()
        torchrun.end(agent, f"ended-{os.getpid()}", tmp_path / "scratch", [os.getpid()])
    assert not answers


def test_a_rank_that_does_not_end_holds_up_a_launch_for_a_while(headless, tmp_path, monkeypatch):
    """It may stay in a driver, or its pid may be another process's by now. What needs its memory
    says so itself.
    """
    monkeypatch.setattr(torchrun, "GONE_LIMIT_S", 0.2)
    (tmp_path / "scratch").mkdir()
    token, rank = headless
    with subprocess.Popen(["true"]) as agent:
        torchrun.end(agent, token, tmp_path / "scratch", [rank.pid])
    assert holds_memory(rank.pid) and not (tmp_path / "scratch").exists()
