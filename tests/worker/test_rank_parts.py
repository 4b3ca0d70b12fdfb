"""Parts of a rank that need no launch: note, lifeline, clock, tally, counters, its trace."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from stepguard.site import Site
from stepguard.trace.steps import read_steps
from stepguard.worker import note
from stepguard.worker.clock import CudaClock, HostClock, quiet_gc
from stepguard.worker.count import profiled
from stepguard.worker.count.compiler import unique_graphs
from stepguard.worker.count.counters import count
from stepguard.worker.count.eager import OperatorCounter
from stepguard.worker.count.profiled import MARK
from stepguard.worker.count.syncs import by_place
from stepguard.worker.count.tally import ACTIVE_STEPS, Tally
from stepguard.worker.lifeline import die_with_parent, kill_by_token, pids_by_token
from stepguard.worker.note import Note
from stepguard.worker.phases import Phases

LONG_S = 60.0


# The note


def test_a_note_follows_the_rank(tmp_path):
    """Command, step and phase as they come; a new command or step forgets what was below it."""
    path = tmp_path / "note-0"
    rank = Note(path)
    assert note.read(path) == "start"
    rank.command("first step")
    assert note.read(path) == "first step"
    rank.phase("forward")
    assert note.read(path) == "first step, phase forward"
    rank.command("block")
    rank.step(0)
    assert note.read(path) == "block, step 0"
    rank.phase("backward")
    assert note.read(path) == "block, step 0, phase backward"
    rank.step(12)
    assert note.read(path) == "block, step 12"
    rank.command("idle")
    assert note.read(path) == "idle"


def test_no_note_is_before_it_started(tmp_path):
    """No file, an empty or a damaged one: the rank had not started."""
    assert note.read(tmp_path / "none") == "before it started"
    for content in (b"", b" " * 128, b"\xff" * 128):
        (tmp_path / "note").write_bytes(content)
        assert note.read(tmp_path / "note") == "before it started"


@PROPERTY
@given(st.text(max_size=200), st.integers(0, 10**9))
def test_any_phase_can_be_noted(tmp_path, phase, step):
    """A workload may call its phases what it likes: step and command survive, nothing raises."""
    rank = Note(tmp_path / "note")
    rank.command("block")
    rank.step(step)
    rank.phase(phase)
    assert note.read(tmp_path / "note").startswith(f"block, step {step}")


def test_a_note_outlives_its_process(tmp_path):
    """What a killed process noted last can still be read."""
    code = (
        "import os, signal, sys; from pathlib import Path; from stepguard.worker.note import Note\n"
        "rank = Note(Path(sys.argv[1])); rank.command('block'); rank.step(3)\n"
        "rank.phase('backward'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "note"], timeout=LONG_S)
    assert done.returncode == -signal.SIGKILL
    assert note.read(tmp_path / "note") == "block, step 3, phase backward"


# The lifeline


CHILD = """
import os, sys, time
from stepguard.worker.lifeline import die_with_parent
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
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in ("Z", "X"):
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


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
    code = "from stepguard.worker.lifeline import die_with_parent; print(die_with_parent(1234567))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_asking_for_an_impossible_signal_raises():
    """The kernel's refusal is an OSError, not silence."""
    with pytest.raises(OSError):
        die_with_parent(os.getppid(), 4242)


def sleeper(token):
    """A process that carries a token, with a child in a session of its own that does too."""
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " start_new_session=True)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"STEPGUARD_TOKEN": token},
        stdout=subprocess.PIPE,
    )
    process.stdout.readline()
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


# The clock


@pytest.mark.parametrize("steps", [1, 7])
def test_a_block_runs_its_steps_in_order(steps):
    """As many steps as asked for, each announced before it; a time for each, which add up."""
    seen = []
    block = HostClock().block(lambda: seen.append("step"), steps, seen.append)
    assert seen == [item for index in range(steps) for item in (index, "step")]
    assert len(block["step_ms"]) == steps
    assert all(ms > 0 for ms in block["step_ms"])
    assert sum(block["step_ms"]) == pytest.approx(block["wall_ms"])
    assert block["wall_ms"] == (block["ended_ns"] - block["began_ns"]) / 1e6
    assert block["events_ms"] == block["wall_ms"] and block["enqueue_ms"] is None


class Event:
    """A CUDA event's stand-in, which tells when it is recorded."""

    def __init__(self, seen):
        self.record = lambda: seen.append("record")

    def elapsed_time(self, other):
        """In ms."""
        return 1.0


@pytest.mark.parametrize("clock", [HostClock, CudaClock])
def test_ranks_line_up_as_the_last_thing_before_a_block(clock, monkeypatch):
    """What takes one rank longer than the other before a block is in neither's time."""
    seen = []
    monkeypatch.setattr(gc, "collect", lambda: seen.append("collect"))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(seen))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronize"))
    clock().block(
        lambda: seen.append("step"), 1, lambda index: None, lambda: seen.append("line up")
    )
    host = ["collect", "line up", "step"]
    cuda = ["collect", "synchronize", "line up", "record", "step", "record", "synchronize"]
    assert seen == (host if clock is HostClock else cuda)


def test_no_garbage_collection_inside_a_block():
    """The collector is off while steps run, and on again afterwards, also when a step raises."""
    states = []
    HostClock().block(lambda: states.append(gc.isenabled()), 2, lambda index: None)
    assert states == [False, False] and gc.isenabled()
    with pytest.raises(ZeroDivisionError), quiet_gc():
        raise ZeroDivisionError
    assert gc.isenabled() and gc.get_freeze_count() == 0


# The counters


@pytest.mark.parametrize(
    ("lost", "elsewhere", "profiles"),
    [
        ([0], [False], 1),
        ([0, 0], [True, False], 2),
        ([1, 0], [False, False], 2),
        ([1] * 3, [0] * 3, 3),
    ],
)
def test_all_ranks_profile_again_if_one_has_to(monkeypatch, lost, elsewhere, profiles):
    """A rank whose own trace is whole takes part: its steps have the others' exchanges."""
    found = read_steps([{"name": MARK, "cat": "user_annotation", "ts": 0, "dur": 1}], MARK, 1)
    taken = iter([[replace(found[0], lost_copies=count)] for count in lost])
    monkeypatch.setattr(profiled, "profile_steps", lambda *rest: (next(taken), []))
    others = iter(elsewhere)
    asked = []

    def any_rank(own):
        asked.append(own)
        return own or bool(next(others))

    step, cpu = lambda: None, torch.device("cpu")
    profiled.count_profiled(Tally(), step, cpu, Phases(lambda name: None), 1, any_rank)
    assert asked == [bool(count) for count in lost[:profiles]] and next(taken, None) is None


def test_a_count_that_differs_between_steps_is_no_value():
    """Two steps that disagree make a counter unstable, with what was seen; no average."""
    tally = Tally()
    tally.add("graph_breaks", [2, 2], {"b": 1, "a": 1})
    tally.add("launches_per_step", [676, 677])
    assert tally.as_dict() == {
        "values": {"graph_breaks": 2},
        "unstable": {"launches_per_step": "steps differ: 676, 677"},
        "detail": {"graph_breaks": {"a": 1, "b": 1}},
        "sites": {},
        "information": {},
    }


def test_places_travel_with_their_count():
    """What a count is made of goes with it as plain types, and as nothing where it is nowhere."""
    tally = Tally()
    tally.add("host_syncs_per_step", [1, 1], sites=[Site(".item()", "model/gpt.py", 7)])
    tally.add("graph_breaks", [0], sites=[])
    told = tally.as_dict()["sites"]
    assert list(told) == ["host_syncs_per_step"]
    assert Site(**told["host_syncs_per_step"][0]) == Site(".item()", "model/gpt.py", 7)


def test_what_could_not_be_counted_says_why():
    """A reason in place of a value, for each of the metrics."""
    tally = Tally()
    tally.missing("no memory", "flops_per_step", "operator_calls_per_step")
    assert tally.values == {}
    assert tally.unstable == dict.fromkeys(
        ("flops_per_step", "operator_calls_per_step"), "no memory"
    )


def event(name, ts, cat="cpu_op", dur=1.0):
    """A trace event."""
    return {"name": name, "ts": ts, "dur": dur, "cat": cat, "ph": "X", "tid": 1, "args": {}}


MARKS = [
    event(MARK, 100.0 * number, "user_annotation", 50.0) for number in range(1, ACTIVE_STEPS + 1)
]


def test_events_belong_to_the_step_that_they_lie_in():
    """Host calls between steps and device events are left out; the steps come in order."""
    events = [
        event("aten::warmup", 10.0),
        event("aten::mm", 100.0),
        event("cudaLaunchKernel", 149.9, "cuda_runtime"),
        event("aten::between", 150.0),
        event("kernel", 120.0, "kernel"),
        event("aten::add", 230.0),
        event("cuLaunchKernel", 240.0, "cuda_driver"),
    ]
    found = read_steps([*MARKS[::-1], *events], MARK, ACTIVE_STEPS)
    assert [dict(step.operators) for step in found] == [{"aten::mm": 1}, {"aten::add": 1}]
    launches = [dict(step.launches) for step in found]
    assert launches == [{"cudaLaunchKernel": 1}, {"cuLaunchKernel": 1}]


@pytest.mark.parametrize("marks", [[], MARKS[:-1], [*MARKS, MARKS[0]]])
def test_an_incomplete_trace_is_not_counted(marks):
    """A trace that lacks a marked step raises: its counts would be wrong, not approximate."""
    with pytest.raises(RuntimeError, match="marked steps"):
        read_steps([*marks, event("aten::mm", 110.0)], MARK, ACTIVE_STEPS)


def test_operators_are_counted_backward_included():
    """One product forward is one mm, and two more in its backward pass."""
    a = torch.ones(2, 2, requires_grad=True)
    b = torch.ones(2, 2, requires_grad=True)
    with OperatorCounter() as counter:
        product = a @ b
        assert counter.calls == {"aten.mm.default": 1}
        product.sum().backward()
    assert counter.calls["aten.mm.default"] == 3


def test_eager_counts_rest_on_two_steps():
    """Every other step does a product more: FLOPs and calls are unstable, with both values seen."""
    a = torch.ones(4, 4)
    parity = itertools.count()

    def step():
        for _ in range(1 + next(parity) % 2):
            a @ a

    found = count(step, torch.device("cpu"), lambda text: None)
    for metric, seen in (("flops_per_step", {128, 256}), ("operator_calls_per_step", {1, 2})):
        assert metric not in found["values"]
        values = found["unstable"][metric].removeprefix("steps differ: ").split(", ")
        assert len(values) == 2 and {int(value) for value in values} == seen
    steady = count(lambda: a @ a, torch.device("cpu"), lambda text: None)
    assert steady["values"]["flops_per_step"] == 128
    assert steady["values"]["operator_calls_per_step"] == 1
    assert not {"flops_per_step", "operator_calls_per_step"} & steady["unstable"].keys()


def test_what_is_allowed_stands_apart():
    """Two waits in one place of which one is allowed are two: the other one still counts."""
    for place in ({}, {"file": "model/gpt.py", "line": 7, "function": "f", "text": "x.item()"}):
        sites = [Site(".item()", **place, allowed=why) for why in ("logged", "", "")]
        assert [(s.allowed, s.count) for s in by_place(sites)] == [("logged", 1), ("", 2)]


def test_asking_for_graphs_does_not_import_the_compiler():
    """An uncompiled workload has no compiled graphs, and finding that out imports nothing."""
    code = (
        "import sys; from stepguard.worker.count.compiler import unique_graphs\n"
        "assert unique_graphs() == 0; print('torch._inductor' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr
    assert isinstance(unique_graphs(), int)
