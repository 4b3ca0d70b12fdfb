"""Settings that steer a step without a launch of their own: each one that is changed shows."""

import gc
import subprocess
import sys
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode, _len_torch_function_stack

from stepguard.core.metrics import SETTINGS
from stepguard.worker.counters.changed_settings import count_settings, everywhere, settings
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.counters.tensor_devices import Placement

pytestmark = pytest.mark.usefixtures("own_heap")


class Watching(TorchFunctionMode):
    """A mode that a workload leaves on."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


LEFT_ON = Watching()


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
    command = [sys.executable, "-c", "print(flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()  # for a moment a new process has no command
        found = settings()
    finally:
        done.set()
        child.communicate(b"\n")
        thread.join()
    assert len(found["threads"]) == len(before["threads"]) + 1
    assert len(found["processes"]) == len(before["processes"]) + 1
    assert settings() == before


@pytest.mark.parametrize("variable", ["PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"])
def test_where_a_tree_or_a_cache_lies_is_no_setting(monkeypatch, variable):
    """The other tree, and another interpreter's compile caches, lie elsewhere."""
    before = settings()
    monkeypatch.setenv(variable, "/elsewhere")
    assert settings() == before


def counted(before):
    """The settings that are counted now, where they were as ``before``."""
    tally = Tally()
    count_settings(tally, RankStep(lambda: None, torch.device("cpu"), settings=before))
    assert tally.values[SETTINGS] == len(tally.detail[SETTINGS])
    return set(tally.detail[SETTINGS])


@pytest.mark.parametrize(("change", "undo", "part"), [
    (lambda: torch.set_float32_matmul_precision("high"),
     lambda: torch.set_float32_matmul_precision("highest"), "get_float32_matmul_precision = high"),
    (lambda: setattr(torch.backends.mkldnn, "enabled", False),
     lambda: setattr(torch.backends.mkldnn, "enabled", True), "backends.mkldnn.enabled = False"),
    (lambda: torch.use_deterministic_algorithms(True),
     lambda: torch.use_deterministic_algorithms(False),
     "are_deterministic_algorithms_enabled = True"),
    (lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False),
     "flush denormals = True"),
    (gc.disable, gc.enable, "garbage collection = False"),
    (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None),
     "get_default_device = meta"),
    (lambda: torch.set_default_device("cpu"),  # as without, but each call asks for it
     lambda: torch.set_default_device(None), "modes = DeviceContext"),
    (LEFT_ON.__enter__, lambda: _len_torch_function_stack() and LEFT_ON.__exit__(None, None, None),
     "modes = Watching"),
])  # fmt: skip
def test_a_setting_that_the_workload_changes_is_counted_with_its_value(change, undo, part):
    """And no longer when it is as before."""
    undo()  # another test of this process may have left it changed
    before = everywhere()
    assert counted(before) == set()
    with Placement().observed():  # as a workload is built
        change()
    try:
        assert part in counted(before)
    finally:
        undo()
    assert counted(before) == set()


def test_threads_are_counted_on_a_cpu_of_any_size():
    """Their number where the workload sets it, and nothing where it is the machine's."""
    before, threads = everywhere(), torch.get_num_threads()
    torch.set_num_threads(threads)
    assert counted(before) == set()
    torch.set_num_threads(threads + 1)
    try:
        assert counted(before) == {f"get_num_threads = {threads + 1}"}
    finally:
        torch.set_num_threads(threads)


def test_weights_in_another_order_are_a_setting():
    """A weight that is transposed in memory, as channels_last does to those of convolutions."""
    before = everywhere()
    layer = torch.nn.Linear(4, 8)
    assert counted(before) == set()
    layer.weight = torch.nn.Parameter(layer.weight.detach().t().contiguous().t())
    assert counted(before) == {"weights that are not contiguous = 1"}
