"""Runs that are killed with all their processes, while they compile. What compiles is a shell."""

import random
import signal

import pytest

from benchmarks import killed_compiles
from benchmarks.killed_compiles import SIGNALS, Tree, processes

# A process in a session of its own, as a launch is, that heeds no SIGTERM.
COMPILES = """
mkdir -p .stepguard/cache/inductor .stepguard/cache/unfinished
echo whole > .stepguard/cache/inductor/a.so
: > .stepguard/cache/inductor/b.so
: > .stepguard/cache/inductor/b.lock
: > .stepguard/cache/unfinished/token
setsid sh -c 'trap "" TERM; sleep 600' &
sleep 600
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree whose runs are that shell."""
    monkeypatch.setattr(killed_compiles, "clone_head", lambda tree: tree.mkdir() or tree)
    monkeypatch.setattr(killed_compiles, "ENDING_S", 0.2)
    tree = Tree(tmp_path, "test_step[nano]")
    tree._command = ["sh", "-c", COMPILES]
    return tree


@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_is_killed_with_all_its_processes(tree, number):
    """Whatever their sessions are, and whether they heed the signal or not."""
    assert tree.killed(random.Random(1).uniform(0.0, 0.1), number)
    assert processes(tree.folder) == []
    assert sorted(path.name for path in tree.compiled()) == ["a.so", "b.lock", "b.so"]
    assert tree.empty() == 1
    tree.forget()
    assert tree.compiled() == []


def test_a_run_that_ended_before_its_moment_was_not_killed(tree):
    """Another one takes its place."""
    tree._command = ["true"]
    assert not tree.killed(0.0, signal.SIGKILL)
