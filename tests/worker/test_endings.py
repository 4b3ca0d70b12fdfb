"""How ranks ended, as their agent noted it, and whom the others follow from."""

import signal
import subprocess

import pytest

from stepguard.worker.rank_position import (
    Ending,
    endings_file,
    first_ending,
    note_ending,
    read_endings,
)
from stepguard.worker.ranks import Ranks


def test_what_was_noted_is_read(tmp_path):
    """In order; nothing of a node that noted nothing; half a line is one that is still written."""
    endings = [Ending(71, -9), Ending(72, 0), Ending(73, 3, victim=True)]
    noted = endings_file(tmp_path, 0)
    assert read_endings(noted) == []
    for ending in endings:
        note_ending(noted, ending)
    assert read_endings(noted) == endings
    noted.write_text(noted.read_text()[:-1])
    assert read_endings(noted) == endings[:-1]
    assert read_endings(endings_file(tmp_path, 1)) == []


@pytest.mark.parametrize(("endings", "cause"), [
    ([], None),
    ([Ending(1, -9, victim=True)], None),
    ([Ending(1, -6), Ending(2, -9)], 2),  # who aborts follows from who was killed
    ([Ending(1, 3), Ending(2, -11)], 2),
    ([Ending(1, 3), Ending(2, -9, victim=True)], 1),
    ([Ending(2, -6), Ending(1, 3)], 2),  # neither was killed: the first that was seen
    ([Ending(2, 0), Ending(1, -15)], 2),
])  # fmt: skip
def test_whom_the_others_follow_from(endings, cause):
    """Of ranks that their agent did not end: one that was killed before who ended by itself."""
    found = first_ending(endings)
    assert (found.pid if found else None) == cause


def test_a_rank_that_does_not_end_is_killed_and_noted_as_a_victim(tmp_path):
    """Once the agent shuts down, no rank of it is left."""
    rank = subprocess.Popen(["sleep", "600"])
    agent = object.__new__(Ranks)
    agent._alive, agent._endings = [rank.pid], endings_file(tmp_path, 0)
    agent._left_out = {}
    try:
        agent._shutdown()
        assert agent._alive == []
        assert read_endings(agent._endings) == [Ending(rank.pid, -signal.SIGKILL, victim=True)]
    finally:
        rank.kill()
        rank.wait()
