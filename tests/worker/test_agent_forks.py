"""An agent that is forked for a test is what a new process would be. Real launches."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import environment
from quick_launches import BUSY_LIMIT_S, be_patient, fork_agents, launch_spec
from quick_python import VARIABLE, ForkedAgent

from stepguard.launch.worker_group import WorkerGroup
from stepguard.machine.lifeline import pids_by_token
from stepguard.measure import case_workers

# Imported by the agent before it forks a rank, and again by the rank.
FACTS = """
import gc, json, os, random, re, signal, sys, tempfile, threading
from pathlib import Path

import numpy.random
import torch

def read(name):
    return Path(f"/proc/self/{name}").read_text()

def is_random(path):  # torch 2.8 makes such a folder on import, and puts it on the import path
    return re.search(r"/tmp\\w{8}(/|$)", path)

MASKS = ("SigBlk", "SigIgn", "SigCgt", "Umask", "Cpus_allowed")
shown = [line for line in read("environ").split("\\0") if line]
everything = [(name, vars(module).copy()) for name, module in sys.modules.copy().items()]
for name, names in everything.copy():
    if isinstance(names.get("_config"), dict):
        everything += [(f"{name}.{key}", vars(entry)) for key, entry in names["_config"].items()
                       if hasattr(entry, "default")]
facts = {
    "environment": dict(os.environ),
    "shown": sorted(shown),
    "told": int(os.environ["STEPGUARD_HOST_PID"]) == os.getppid(),
    "folder": os.getcwd(),
    "arguments": [sys.argv, sys.orig_argv],
    "path": [path for path in sys.path if not is_random(path)],
    "flags": str(sys.flags),
    "main": [sys.modules["__main__"].__file__, sys.modules["__main__"].__name__],
    "modules": sorted(sys.modules),
    "files": {n: os.readlink(f"/proc/self/fd/{n}").partition("[")[0]
              for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")},
    "leads its session": os.getsid(0) == os.getpid() == os.getpgid(0),
    "signals": {n: repr(signal.getsignal(n)).partition(" at ")[0] for n in signal.valid_signals()},
    "masks": [line for line in read("status").splitlines() if line.startswith(MASKS)],
    "limits": read("limits"),
    "nice": os.nice(0),
    "temporary": tempfile.gettempdir(),
    "paths": {f"{module} {name}": value for module, names in everything for name, value in
              names.items() if type(value) is str and value.startswith("/")
              and not is_random(value)},
    "collects": gc.isenabled(),
    "frozen": gc.get_freeze_count() > 0,
    "threads": [threading.active_count(), torch.get_num_threads()],
    "tasks": len(os.listdir("/proc/self/task")),
    "seeds": [torch.initial_seed(), random.random(), float(numpy.random.random())],
}
Path(f"facts-{os.environ.get('RANK', 'agent')}.json").write_text(json.dumps(facts))
del sys.modules[__name__]
"""
OWN = (
    "MASTER_PORT",
    "STEPGUARD_AGENT_PID",
    "STEPGUARD_HOST_PID",
    "STEPGUARD_TOKEN",
    "TORCHELASTIC_RUN_ID",
)


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Launches whose agents are forked, however slow the machine is."""
    be_patient(monkeypatch)
    fork_agents(monkeypatch)


def facts_of_a_launch(tmp_path, **changes):
    """What an agent and its rank say of themselves, and whether the agent was forked."""
    (tmp_path / "facts.py").write_text(FACTS)
    (tmp_path / "launch" / "ranks").unlink(missing_ok=True)
    with WorkerGroup(launch_spec(tmp_path, preload=("facts",), **changes)) as group:
        scratch = str(group._scratch)
        group.release()
        group.hello()
        group.leave()
        forked = isinstance(group._agent, ForkedAgent)
    found = []
    for who in ("agent", "0"):
        text = (tmp_path / f"facts-{who}.json").read_text().replace(scratch, "SCRATCH")
        text = re.sub(r'"[^"]*/agent-forks-\w+/engine/', '"SCRATCH/engine/', text)
        found.append(json.loads(text))
    for one in found:
        for name in OWN:
            one["environment"].pop(name, None)
        one["shown"] = [line for line in one["shown"] if not line.startswith(OWN)]
    return found, forked, [one.pop("seeds") for one in found]


@pytest.mark.parametrize("standby", [False, True])
def test_a_forked_agent_is_as_a_new_process(tmp_path, monkeypatch, standby):
    """The same environment, also as /proc shows it, directory, arguments, import path, streams and
    open files, session, signals, limits and imports, though of another link to the engine; and so
    has its rank. Random numbers are its own, as a new process draws them.
    """
    imports = case_workers.COMPILER if standby else ()  # of torch alone, too
    changes = {"shared": (*imports, "facts"), "standby": standby}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "a"), "b", str(tmp_path)]))
    monkeypatch.setenv("STEPGUARD_OWN", "x" * 1000)
    hot, forked, seeds = facts_of_a_launch(tmp_path, **changes)
    again, forked_again, other_seeds = facts_of_a_launch(tmp_path, **changes)
    assert forked and forked_again
    monkeypatch.delenv(VARIABLE)
    cold, forked, _ = facts_of_a_launch(tmp_path, **changes)
    assert not forked
    for one, other in zip(hot + again, cold + cold, strict=True):
        for name in one:
            assert one[name] == other[name], name
    for one, other in zip(seeds, other_seeds, strict=True):
        assert all(a != b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("variables", "files"),
    [
        ({"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}, []),
        ({"PYTHONHASHSEED": "0"}, []),
        ({"UNHEARD_OF": "1"}, []),
        ({"STEPGUARD_OWN": "x" * 70_000}, []),
        ({}, ["typing_extensions.py"]),
        ({}, ["numpy/__init__.py"]),
        ({}, ["sitecustomize.py"]),
    ],
)
def test_what_a_fork_cannot_stand_in_for_starts_cold(tmp_path, monkeypatch, variables, files):
    """Settings that are read on import, an environment that does not fit, and modules that would be
    imported in place of those that the server holds.
    """
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("import pathlib\n\npathlib.Path('imported').touch()\n")
    with WorkerGroup(launch_spec(tmp_path, standby=True)) as group:
        assert isinstance(group._agent, subprocess.Popen)


def test_an_agent_says_how_it_ended(tmp_path):
    """A status, or the signal; what it wrote is in its log."""
    with WorkerGroup(launch_spec(tmp_path, standby=True)) as group:
        group._agent.stdin.close()
        assert group._agent.wait(BUSY_LIMIT_S) == 1
        assert group._agent.poll() == 1
    with WorkerGroup(launch_spec(tmp_path, standby=True)) as group:
        with pytest.raises(subprocess.TimeoutExpired):
            group._agent.wait(0.01)
        group._agent.send_signal(signal.SIGKILL)
        assert group._agent.wait(BUSY_LIMIT_S) == -signal.SIGKILL


CALLER = """
import sys, time
from pathlib import Path
import pytest
from quick_launches import fork_agents, launch_spec
from stepguard.launch.worker_group import WorkerGroup

fork_agents(pytest.MonkeyPatch())
group = WorkerGroup(launch_spec(Path(sys.argv[1]), standby=True))
print(group.token, type(group._agent).__name__, flush=True)
time.sleep(600)
"""


def wait_until(condition):
    """Poll for it."""
    until = time.monotonic() + BUSY_LIMIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextlib.contextmanager
def process(tmp_path, *arguments):
    """A process that launches, and what it printed: the token and the kind of its agent."""
    (tmp_path / "tmp").mkdir()
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-c", *arguments]
    started = subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True)
    with started:
        try:
            yield started, started.stdout.readline().split()
        finally:
            started.kill()


def test_a_forked_agent_dies_with_its_caller(tmp_path):
    """As one that the caller started; its scratch folder goes, too."""
    with process(tmp_path, CALLER, str(tmp_path)) as (caller, (token, kind)):
        assert kind == "ForkedAgent"
        assert pids_by_token(token)
        caller.kill()
        wait_until(lambda: not pids_by_token(token) and not [*(tmp_path / "tmp").iterdir()])


OWNER = """
import os, sys
from pathlib import Path
from agent_forks import VARIABLE, served

with served({**os.environ}, Path(os.environ["TMPDIR"])) as name:
    os.environ[VARIABLE] = name
    exec(sys.argv[2])
"""


def test_a_server_dies_with_its_owner(tmp_path):
    """However that ends: its stages and its agents go, too."""

    def marked():
        folder = str(tmp_path / "tmp")
        pids = map(int, filter(str.isdigit, os.listdir("/proc")))
        return [pid for pid in pids if environment(pid).get("TMPDIR", "").startswith(folder)]

    with process(tmp_path, OWNER, str(tmp_path), CALLER) as (owner, (_, kind)):
        assert kind == "ForkedAgent"
        assert len(marked()) == 5, "the owner, its server, two stages and an agent"
        owner.kill()
        owner.wait()
        wait_until(lambda: not marked())
