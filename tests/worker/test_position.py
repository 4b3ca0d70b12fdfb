"""Where a rank is: what it notes can be read whatever becomes of it."""

from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from stepguard.worker.rank_position import Note, read_position


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
