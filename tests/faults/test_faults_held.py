"""A launch that is held: torchrun stands ready, no rank has started. It can die all the same."""

import os
import signal
import subprocess
import sys
import time

import pytest

from stepguard.launch import group as launch
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.group import WorkerGroup
from stepguard.launch.torchrun import LaunchSpec
from stepguard.worker.lifeline import pids_by_token


@pytest.fixture
def held(tmp_path):
    """A held launch."""
    spec = LaunchSpec(
        device="cpu",
        preload=(),
        world_size=1,
        root=tmp_path,
        folder=tmp_path / "launch",
        cache=tmp_path / "cache",
        label="launch 1",
        time_limit_s=60.0,
        held=True,
    )
    with WorkerGroup(spec) as group:
        yield group
    assert not pids_by_token(group.token) and not group._scratch.exists()


def until(condition):
    """Wait for it."""
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_no_rank_starts_before_it_is_released(held):
    """Torchrun alone is there; released, it starts the rank, which says hello."""
    until(held.stands)
    (torchrun,) = pids_by_token(held.token)
    assert torchrun == held._agent.pid and not list(held.spec.folder.glob("note-*"))
    held.release()
    held.release()
    held.hello()
    assert set(pids_by_token(held.token)) == {torchrun, *held.pids.values()}
    held.leave()


def test_it_can_be_released_before_it_stands(held):
    """Then nothing waits."""
    assert not held.stands()
    held.release()
    held.hello()
    assert held.stands() and held.pids


@pytest.mark.parametrize("stands", [False, True])
def test_it_is_closed_as_any_other(held, stands):
    """While it imports, or waits: nothing is left, see the fixture."""
    if stands:
        until(held.stands)
    held.close()


def test_a_torchrun_that_dies_is_a_lost_worker(held):
    """Whoever looks after it is told, released or not; to release it is no error."""
    os.kill(held._agent.pid, signal.SIGKILL)
    held._agent.wait()
    with pytest.raises(LaunchFailed) as caught:
        held.stands()
    held.release()
    for ask in (held.ready, held.hello):
        with pytest.raises(LaunchFailed):
            ask()
    assert caught.value.fault.during == "launch 1, start"


@pytest.mark.parametrize("released", [False, True])
def test_nobody_waits_for_ever(held, released, monkeypatch):
    """Past the limit it is NOT_STARTED; a launch that is released has the limit from then on."""
    monkeypatch.setattr(launch, "HELLO_LIMIT_S", 60.0)
    held.began -= 60.0
    if released:
        held.release()
        assert not held.ready()
        held.began -= 60.0
    with pytest.raises(LaunchFailed) as caught:
        held.ready() if released else held.stands()
    assert caught.value.fault.code == "NOT_STARTED"


def test_it_ends_with_its_caller(tmp_path):
    """A caller that is killed takes a launch along that waits for its word."""
    script = f"""
import time
from pathlib import Path
from stepguard.launch.group import WorkerGroup
from stepguard.launch.torchrun import LaunchSpec
folder = Path({str(tmp_path)!r})
spec = LaunchSpec("cpu", (), 1, folder, folder / "launch", folder, "launch 1", 60.0, held=True)
group = WorkerGroup(spec)
while not group.stands():
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
