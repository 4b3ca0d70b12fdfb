"""A launch on standby: the agent waits, no rank has started. It can die all the same."""

import os
import signal
import subprocess
import sys
import time

import pytest
from short_launches import BUSY_LIMIT_S, be_patient, launch_spec

from stepguard.launch import worker_group as launch
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.worker_group import WorkerGroup
from stepguard.machine.lifeline import pids_by_token
from stepguard.worker.agent import STANDBY


@pytest.fixture
def standby(tmp_path, monkeypatch):
    """A launch on standby."""
    be_patient(monkeypatch)
    spec = launch_spec(tmp_path, standby=True)
    with WorkerGroup(spec) as group:
        yield group
    assert not pids_by_token(group.token) and not group._scratch.exists()


def until(condition):
    """Wait for it."""
    end = time.monotonic() + BUSY_LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_no_rank_starts_before_it_is_released(standby):
    """The agent alone is there; released, it starts the rank, which says hello."""
    until(standby.imported)
    (agent,) = pids_by_token(standby.token)
    assert agent == standby._agent.pid and not list(standby.spec.folder.glob("note-*"))
    standby.release()
    standby.release()
    standby.hello()
    assert set(pids_by_token(standby.token)) == {agent, *standby.pids.values()}
    standby.leave()


def test_it_is_closed_while_it_waits(standby):
    """So is one that has imported."""
    until(standby.imported)
    standby.close()


@pytest.mark.parametrize("how", ["waits", "released", "imports"])
def test_one_that_nobody_wants_leaves_the_compile_cache(standby, how):
    """What other launches compiled since it started stays, unless it may still be writing."""
    compiled = standby.spec.cache / "inductor" / "x.so"
    compiled.parent.mkdir()
    compiled.write_text("whole")
    if how != "imports":  # nobody asks it whether it has
        until((standby._scratch / STANDBY).exists)
    if how == "released":
        standby.release()
        until(standby._control.somebody_waits)
        compiled.write_text("written again")
    standby.close()
    assert compiled.exists() == (how != "imports")


def test_an_agent_that_dies_is_a_lost_worker(standby):
    """Whoever looks after it is told, released or not; to release it is no error."""
    os.kill(standby._agent.pid, signal.SIGKILL)
    standby._agent.wait()
    with pytest.raises(LaunchFailed) as caught:
        standby.imported()
    standby.release()
    for ask in (standby.ready, standby.hello):
        with pytest.raises(LaunchFailed):
            ask()
    assert caught.value.fault.during == "launch 1, start"


@pytest.mark.parametrize("released", [False, True])
def test_nobody_waits_for_ever(standby, released, monkeypatch):
    """Past the limit it is NO_ANSWER; a launch that is released has the limit from then on."""
    monkeypatch.setattr(launch, "HELLO_LIMIT_S", BUSY_LIMIT_S)
    standby.began -= BUSY_LIMIT_S
    if released:
        standby.release()
        assert not standby.ready()
        standby.began -= BUSY_LIMIT_S
    with pytest.raises(LaunchFailed) as caught:
        standby.ready() if released else standby.imported()
    assert caught.value.fault.code == "NO_ANSWER"


def test_it_ends_with_its_caller(tmp_path):
    """A caller that is killed takes a launch along that waits for its word."""
    script = f"""
import time
from pathlib import Path
from stepguard.launch.worker_group import WorkerGroup
from stepguard.launch.torchrun import LaunchSpec
folder = Path({str(tmp_path)!r})
where = folder, folder / "launch", folder
spec = LaunchSpec("cpu", (), 1, *where, "launch 1", {BUSY_LIMIT_S}, standby=True)
group = WorkerGroup(spec)
while not group.imported():
    time.sleep(0.02)
print(group.token, group._scratch, flush=True)
time.sleep(600)
"""
    caller = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert caller.stdout
    token, scratch = caller.stdout.readline().decode().split()
    assert len(pids_by_token(token)) == 1
    caller.kill()
    caller.wait()
    until(lambda: not pids_by_token(token) and not os.path.exists(scratch))
