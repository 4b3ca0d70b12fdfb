"""Ranks are forks of the agent, and for all that processes of their own. Real launches."""

import json
import os
import time
from pathlib import Path

import pytest
from short_launches import BUSY_LIMIT_S, be_patient, launch_spec

from stepguard.core.case import Case
from stepguard.launch import worker_group as launch
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.worker_group import WorkerGroup
from stepguard.measure import case_workers

FACTS = """
import gc, json, os, signal, sys
from pathlib import Path

import torch

rank, modules = os.environ["RANK"], {*sys.modules}
frozen = gc.get_freeze_count()
gc.unfreeze()
frozen_tensors = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
handlers = {signum: signal.getsignal(signum) for signum in signal.valid_signals()}
facts = {
    "sid": os.getsid(0),
    "pid": os.getpid(),
    "ppid": os.getppid(),
    "agent": int(os.environ["STEPGUARD_AGENT_PID"]),
    "stdin": os.readlink("/proc/self/fd/0"),
    "handlers": sorted(n for n, handler in handlers.items() if callable(handler)),
    "main": sys.argv[0],
    "path": sys.path[:2],
    "threads": torch.get_num_threads(),
    "agent_threads": len(os.listdir(f"/proc/{os.getppid()}/task")),
    "cuda": torch.cuda.is_initialized(),
    "compiler": "torch._inductor" in modules,
    "collects": gc.isenabled(),
    "frozen": frozen,
    "frozen_tensors": frozen_tensors,
}
print(f"rank {rank} writes")
print(f"rank {rank} complains", file=sys.stderr)
Path(f"facts-{rank}.json").write_text(json.dumps(facts))
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """However slow the machine is."""
    be_patient(monkeypatch)


def test_a_rank_is_a_process_of_its_own(tmp_path, monkeypatch):
    """Session, streams and signal handlers as after an exec; nothing but imports before the fork,
    the compiler's included: no thread that could hold a lock, no CUDA. One thread computes,
    whatever a user's own variables say: what attention allocates on a CPU depends on it.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "2")
    (tmp_path / "facts.py").write_text(FACTS)
    imported = {"preload": ("facts",), "shared": case_workers.COMPILER}
    with WorkerGroup(launch_spec(tmp_path, world_size=2, **imported)) as group:
        group.hello()
        group.leave()
        agent = group._agent.pid
    for rank, pid in group.pids.items():
        facts = json.loads((tmp_path / f"facts-{rank}.json").read_text())
        assert facts["sid"] == facts["pid"] == pid
        assert facts["ppid"] == facts["agent"] == agent
        assert facts["stdin"] == "/dev/null"
        assert facts["handlers"] == [2], "Python's own for SIGINT"
        assert Path(facts["main"]).name == "ranks.py"
        assert facts["path"][1] == str(tmp_path)
        assert (facts["threads"], facts["agent_threads"], facts["cuda"]) == (1, 1, False)
        assert facts["collects"] and facts["compiler"]
        assert facts["frozen"] > 100_000, "of torch's own"
        assert facts["frozen_tensors"] == 0, "else the counting pass would miss them"
        for stream, word in (("stdout", "writes"), ("stderr", "complains")):
            assert (
                f"rank {rank} {word}\n" in (group.spec.folder / f"{stream}-{rank}.log").read_text()
            )


SETTER = """
import os

class Step:
    tokens_per_step = 1
    def step(self): pass

def at_import(device): return Step()

def at_build(device):
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    return Step()
"""
AT_IMPORT = "os.environ['TORCHINDUCTOR_MAX_AUTOTUNE'] = 'a b'"
CACHE = "os.environ['TORCHINDUCTOR_CACHE_DIR'] = 'mine'"
GIVEN = "TORCHINDUCTOR_COMPILE_THREADS"  # to all tests


@pytest.mark.parametrize(("line", "factory", "names"), [
    (AT_IMPORT, "at_import", "env TORCHINDUCTOR_MAX_AUTOTUNE='a b'"),
    ("", "at_build", "env TORCH_COMPILE_DISABLE=1"),
    (f"os.environ['{GIVEN}'] = '1'\n{CACHE}", "at_import", ""),
], ids=["import", "build", "as given, and a cache"])  # fmt: skip
def test_a_setting_that_comes_too_late_is_refused(tmp_path, monkeypatch, line, factory, names):
    """The agent has imported torch and its compiler: a variable that a module of the tree sets for
    them would make a step slower everywhere but in what is measured.
    """
    assert os.environ[GIVEN] == "1"
    (tmp_path / "setter.py").write_text(f"{SETTER}{line}\n")
    imported = {"preload": ("setter",), "shared": case_workers.COMPILER}
    with WorkerGroup(launch_spec(tmp_path, **imported)) as group:
        group.hello()
        how = {"limit_s": BUSY_LIMIT_S, "poll": lambda: None, "progress": lambda text: None}
        how["case"] = Case("x", f"setter:{factory}", device="cpu").as_dict()
        if not names:
            group.request("prepare", **how)
            return
        with pytest.raises(LaunchFailed) as caught:
            group.request("prepare", **how)
    assert caught.value.fault.code == "BAD_WORKLOAD"
    assert caught.value.fault.message.endswith(names)


def test_an_import_that_hangs_is_shown(tmp_path, monkeypatch):
    """No rank is there yet: the agent's own stack says where it hangs."""
    (tmp_path / "torch.py").write_text(
        "import pathlib, time\n\npathlib.Path('hangs').touch(), time.sleep(3600)\n"
    )
    with WorkerGroup(launch_spec(tmp_path)) as group:
        until = time.monotonic() + BUSY_LIMIT_S
        while not (tmp_path / "hangs").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        monkeypatch.setattr(launch, "HELLO_LIMIT_S", 0.1)
        with pytest.raises(LaunchFailed) as caught:
            group.hello()
    fault = caught.value.fault
    assert (fault.code, fault.during) == ("NO_ANSWER", "launch 1, start")
    assert fault.message.endswith("rank 0 in before it started")
    assert 'torch.py", line 3 in <module>' in fault.detail


def test_an_import_that_fails_is_shown(tmp_path):
    """The launch has not started, and the agent's traceback says why."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart is not there')\n")
    with WorkerGroup(launch_spec(tmp_path)) as group, pytest.raises(LaunchFailed) as caught:
        group.hello()
    assert caught.value.fault.code == "KILLED"
    assert "ImportError: libcudart is not there" in caught.value.fault.detail
