"""Settings that steer a step without a launch of their own: each one that is changed shows."""

import gc
import subprocess
import sys
import threading

import pytest
import torch

from stepguard.worker.count.steering import settings


def set_matmul(monkeypatch):
    """Products in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = True


def set_deterministic(monkeypatch):
    """As a workload does, undone at the end."""
    torch.use_deterministic_algorithms(True)


def set_workspace(monkeypatch):
    """Of cuBLAS."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def set_collection(monkeypatch):
    """Garbage that is collected never."""
    gc.disable()


@pytest.fixture
def usual():
    """What was set before is set again."""
    before = torch.are_deterministic_algorithms_enabled()
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False  # whatever another test has left
    yield
    torch.use_deterministic_algorithms(before)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    gc.enable()


@pytest.mark.parametrize("change", [set_matmul, set_deterministic, set_workspace, set_collection])
def test_a_setting_shows(monkeypatch, usual, change):
    """And nothing else: looked at twice, all is as it was."""
    before = settings()
    assert settings() == before
    change(monkeypatch)
    assert settings() != before


def test_a_thread_and_a_process_show():
    """Whatever they do in a step that the trace does not see."""
    before, done = settings(), threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = settings()
    finally:
        done.set()
        child.communicate(b"\n")
        thread.join()
    assert len(found["threads"]) == len(before["threads"]) + 1
    assert len(found["processes"]) == len(before["processes"]) + 1
    assert settings() == before


def test_where_a_tree_lies_is_no_setting(monkeypatch):
    """The other tree is imported from another place."""
    before = settings()
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert settings() == before
