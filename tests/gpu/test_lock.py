"""A lock per GPU: real processes, on a GPU that only has a name."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from short_launches import measured_alone

from stepguard import Case
from stepguard.core.comparison import Question
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.rule_book import judge
from stepguard.machine.git.revision import Revision
from stepguard.machine.gpu import Gpu, GpuLocked, MachineError, exclusive
from stepguard.measure import case_workers
from stepguard.measure import case_workers as station
from stepguard.measure.case_workers import Bench

ROOT = Path(__file__).resolve().parents[2]
UUID = "GPU-1234"
LIMIT_S = 900.0  # of waits that end by themselves
HOLD = """
import sys, pathlib
from stepguard.machine.gpu import exclusive
folder, uuids, command = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
with exclusive(uuids, command, lambda text: print("waits", text, flush=True), folder, 60):
    print("holds", flush=True)
    sys.stdin.readline()
print("gave back", flush=True)
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that wants the lock, and holds it until it reads a line."""
    started = []

    def start(uuids=UUID, command="pytest perf_tests"):
        arguments = [sys.executable, "-c", HOLD, str(tmp_path), uuids, command]
        pipe = subprocess.PIPE
        process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, cwd=ROOT, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def says(process):
    """The first word of a process's next line."""
    return process.stdout.readline().partition(" ")[0].strip()


def take(folder, limit_s=LIMIT_S, uuids=(UUID,), progress=lambda text: None):
    """The lock, for this process."""
    return exclusive(uuids, "this test", progress, folder, limit_s)


def test_who_holds_it_is_named(tmp_path, holder):
    """Process, since when and command, after the limit."""
    other = holder()
    assert says(other) == "holds"
    with pytest.raises(GpuLocked) as refused, take(tmp_path, 0.3):
        pass
    words = rf"process {other.pid} since 20\S+ \(pytest perf_tests\) measures on it"
    assert refused.match(f"GPU-1234: {words}, waited 0 s")


def test_whoever_waits_is_reported_and_then_has_it(tmp_path, holder):
    """The wait shows the holder, and ends when that gives the lock back."""
    other, told = holder(), []
    assert says(other) == "holds"

    def progress(text):
        told.append(text)
        if len(told) == 2:
            other.communicate("\n")

    with take(tmp_path, progress=progress):
        assert other.returncode == 0
    assert f"process {other.pid}" in told[0]
    assert len(set(told)) == 1, "in a log each text is a line"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_dies_holds_nothing(tmp_path, holder, how):
    """However it dies, and what it noted is not taken for the next one's."""
    other = holder(command="the dead one")
    assert says(other) == "holds"
    other.send_signal(how)
    other.wait()
    with take(tmp_path):
        assert "this test" in (tmp_path / f"stepguard-{UUID}.lock").read_text()


def test_runs_take_turns(tmp_path, holder):
    """Whoever waits is next, also when the holder wants it again at once."""
    order = []
    with take(tmp_path):
        order.append("first")
        other = holder()
        assert says(other) == "waits"
    again = threading.Thread(target=lambda: order.append(_again(tmp_path)))
    again.start()
    while says(other) != "holds":
        pass
    assert order == ["first"]
    order.append("other")
    other.communicate("\n")
    again.join()
    assert order == ["first", "other", "again"]


def _again(folder):
    with take(folder):
        return "again"


def test_gpus_are_taken_in_one_order(tmp_path, holder):
    """Asked for b and a, a run takes a and waits for b: two runs cannot each wait for the other.
    Another GPU is not waited for.
    """
    with take(tmp_path, uuids=("GPU-b",)):
        other = holder("GPU-b,GPU-a")
        assert says(other) == "waits"
        with pytest.raises(GpuLocked, match="GPU-a: process"), take(tmp_path, 0, ("GPU-a",)):
            pass
        with take(tmp_path, 0, ("GPU-c",)):
            pass
    while (word := says(other)) != "holds":
        assert word == "waits"


def test_every_user_can_open_the_files(tmp_path):
    """Whatever the umask of whoever came first."""
    old = os.umask(0o077)
    try:
        with take(tmp_path):
            modes = [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()]
    finally:
        os.umask(old)
    assert modes == [0o666, 0o666]


@pytest.mark.parametrize("plant", ["link", "folder", "fifo"])
def test_what_is_no_plain_file_is_refused(tmp_path, plant):
    """Anybody can lay something into /tmp; it is neither followed nor waited for nor written."""
    path, target = tmp_path / f"stepguard-{UUID}.lock", tmp_path / "precious"
    target.write_text("precious")
    if plant == "link":
        path.symlink_to(target)
    elif plant == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(GpuLocked, match=r"cannot be locked: .*see: ls -l"), take(tmp_path, 0):
        pass
    assert target.read_text() == "precious"


def test_a_note_is_one_line_of_plain_characters(tmp_path, holder):
    """A file that everybody may write cannot paint the terminal."""
    other = holder()
    assert says(other) == "holds"
    (tmp_path / f"stepguard-{UUID}.lock").write_text("\x1b[31mred\nsecond line")
    with pytest.raises(GpuLocked) as refused, take(tmp_path, 0):
        pass
    assert "?[31mred?second line measures" in str(refused.value)


@pytest.fixture
def on_a_gpu(tmp_path, monkeypatch):
    """Measures a case on a GPU that exists by name alone, with the lock files in tmp_path."""
    monkeypatch.setattr(station, "exclusive", partial(exclusive, folder=tmp_path, limit_s=0.2))
    gpu = Gpu(UUID, "NVIDIA H200", "580.159", 1980)
    bench = Bench(ROOT, tmp_path / "c", tmp_path / "r", (gpu,), Revision("a" * 40), "pytest x")
    return lambda: measured_alone(Case("c", "factories:linear", {}, "cuda"), bench)


def test_a_case_on_a_locked_gpu_is_unfit(on_a_gpu, holder):
    """Before the machine is looked at, and with a reason of its own."""
    assert says(holder()) == "holds"
    verdict = judge(Question(on_a_gpu(), None))
    assert (verdict.status, verdict.reason) == (Status.UNFIT, Reason.FOREIGN_PROCESS)
    assert "(pytest perf_tests) measures on it" in verdict.message


def test_the_lock_is_held_while_the_machine_is_looked_at_and_not_after(
    on_a_gpu, tmp_path, monkeypatch
):
    """The look at foreign processes happens under it; a case that ends there has given it back."""
    notes = []

    def monitor(gpus, per_node):
        notes.append((tmp_path / f"stepguard-{UUID}.lock").read_text())
        raise MachineError("planted")

    monkeypatch.setattr(case_workers, "Monitor", monitor)
    found = on_a_gpu()
    assert [fault.code for fault in found.faults] == ["MACHINE_UNREADABLE"]
    assert json.dumps(notes).count(f"process {os.getpid()}") == 1
    with take(tmp_path, 0):
        pass
