"""Where a rank is: what it notes can be read whatever becomes of it."""

import signal
import subprocess
import sys

from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from stepguard.worker.rank_position import Note, read_position

LONG_S = 900.0


def test_a_note_follows_the_rank(tmp_path):
    """Command, step and phase as they come; a new command or step forgets what was below it."""
    path = tmp_path / "note-0"
    rank = Note(path)
    assert read_position(path) == "start"
    rank.command("first step")
    assert read_position(path) == "first step"
    rank.phase("forward")
    assert read_position(path) == "first step, phase forward"
    rank.command("block")
    rank.step(0)
    assert read_position(path) == "block, step 0"
    rank.phase("backward")
    assert read_position(path) == "block, step 0, phase backward"
    rank.step(12)
    assert read_position(path) == "block, step 12"
    rank.command("idle")
    assert read_position(path) == "idle"


def test_no_note_is_before_it_started(tmp_path):
    """No file, an empty or a damaged one: the rank had not started."""
    assert read_position(tmp_path / "none") == "before it started"
    for content in (b"", b" " * 128, b"\xff" * 128):
        (tmp_path / "note").write_bytes(content)
        assert read_position(tmp_path / "note") == "before it started"


@PROPERTY
@given(st.text(max_size=200), st.integers(0, 10**9))
def test_any_phase_can_be_noted(tmp_path, phase, step):
    """A workload may call its phases what it likes: step and command survive, nothing raises."""
    rank = Note(tmp_path / "note")
    rank.command("block")
    rank.step(step)
    rank.phase(phase)
    assert read_position(tmp_path / "note").startswith(f"block, step {step}")


def test_a_note_outlives_its_process(tmp_path):
    """What a killed process noted last can still be read."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from stepguard.worker.rank_position import Note\n"
        "rank = Note(Path(sys.argv[1])); rank.command('block'); rank.step(3)\n"
        "rank.phase('backward'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "note"], timeout=LONG_S)
    assert done.returncode == -signal.SIGKILL
    assert read_position(tmp_path / "note") == "block, step 3, phase backward"
