"""What a rank prints, and what its exception says, is bounded where it is kept."""

import os
import subprocess
import sys

import pytest
from short_launches import be_patient, launch_spec

from stepguard.core.case import Case
from stepguard.core.evidence import Fault
from stepguard.core.text import DETAIL_CHARACTERS, MESSAGE_CHARACTERS, bounded
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.worker_group import WorkerGroup
from stepguard.worker.ranks import KEPT_BYTES, MOST_BYTES, bound_output, open_to_append

LOUD = """
import sys

print("the beginning")
for number in range(200):
    print(f"{number:-<100000}", flush=True)
print("the end", flush=True)


def factory(**given):
    raise RuntimeError("a tensor: " + 5_000_000 * "7" + " of five million")
"""


def test_a_rank_that_prints_without_end_fills_no_disk(tmp_path, monkeypatch):
    """20 MB on standard output, and an exception of 5 MB: of both the beginning and the end."""
    be_patient(monkeypatch)
    (tmp_path / "loud.py").write_text(LOUD)
    with WorkerGroup(launch_spec(tmp_path, preload=("loud",))) as group:
        group.hello()
        how = {"limit_s": 600, "poll": lambda: None, "progress": lambda text: None}
        with pytest.raises(LaunchFailed) as caught:
            group.request("prepare", case=Case("x", "loud:factory", {}, "cpu").as_dict(), **how)
        group.leave()
    folder = group.spec.folder
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2 * MOST_BYTES
    said = (folder / "stdout-0.log").read_text()
    assert said.startswith("the beginning\n") and said.endswith("the end\n")
    assert "bytes of output are left out here" in said
    fault = caught.value.fault
    assert fault.code == "RAISED" and "characters left out" in fault.message
    assert len(fault.message) < 2 * MESSAGE_CHARACTERS and fault.message.endswith("of five million")
    assert len(fault.detail) < 2 * DETAIL_CHARACTERS and "in factory" in fault.detail


def test_the_middle_is_taken_out_again_and_again(tmp_path):
    """While somebody appends: the count is of all that is gone, and what is small is left alone."""
    path, small = tmp_path / "stdout-0.log", tmp_path / "stderr-0.log"
    left_out, out = {path: 0, small: 0}, open_to_append(path)
    small.write_text("one line\n")
    written = 0
    for number in range(3):
        text = f"round {number} ".encode() * (MOST_BYTES // 4)
        written += os.write(out, text)
        bound_output(left_out)
    os.close(out)
    said = path.read_bytes()
    assert said.startswith(b"round 0") and said.endswith(b"round 2 ")
    assert len(said) < 3 * KEPT_BYTES and said.count(b"[stepguard: ") == 1
    note = said[KEPT_BYTES:-KEPT_BYTES].decode()
    assert f" {written - 2 * KEPT_BYTES} bytes of output are left out" in note
    assert small.read_text() == "one line\n"


def test_a_fault_is_bounded_wherever_it_comes_from():
    """Evidence that another version kept, too; what fits stays as it is."""
    fault = Fault("RAISED", "m" * 10**6, "d" * 10**6)
    assert len(fault.message) < 2 * MESSAGE_CHARACTERS and len(fault.detail) < 2 * DETAIL_CHARACTERS
    assert Fault("RAISED", "short", "shorter") == Fault("RAISED", "short", "shorter")
    assert bounded("abcdef", 6) == "abcdef"
    assert bounded("abcdefg", 4) == "ab [... 3 characters left out ...] fg"


WAITS = """
import signal, sys, tempfile, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" hands it on as ignored
from stepguard.machine.lifeline import ends_as_interrupts
with ends_as_interrupts(), tempfile.TemporaryDirectory(dir=sys.argv[1]):
    print("there", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_a_command_holds_is_given_up_when_it_is_ended(tmp_path, name):
    """As by Ctrl-C; where the signal is ignored (nohup) it stays so."""
    for handler in ("SIG_DFL", "SIG_IGN"):  # nohup hands the latter on
        front = f"import signal; signal.signal(signal.{name}, signal.{handler})\n"
        command = [sys.executable, "-c", front + WAITS, str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout.readline() == b"there\n"
        process.send_signal(getattr(__import__("signal"), name))
        if handler == "SIG_IGN":
            assert process.poll() is None
            process.send_signal(2)
        said = process.communicate()[1].decode()
        assert process.returncode and "KeyboardInterrupt" in said
        assert list(tmp_path.iterdir()) == []
