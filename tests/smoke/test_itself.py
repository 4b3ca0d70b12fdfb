"""HEAD beside itself from end to end, on a CPU."""

import pytest
from git_repositories import commit, git, repository
from quick_launches import CLOCK_OF_STEPS, repeat_pairs, shorten_launches

import stepguard.measure.pair_run
from stepguard import Case
from stepguard.core.status import Status
from stepguard.machine.git.worktree import tree_of
from stepguard.measure.suite import Suite

WORK = f"""
import os

import torch


class Clock:  # of this rank: only steps take time, in one launch 0.1 % more
    now_s = 0.0
    step_s = 0.01001 if os.environ["STEPGUARD_RUN_DIR"].endswith("pair-1-head") else 0.01


{CLOCK_OF_STEPS}


class Work:
    tokens_per_step = 1

    def __init__(self):
        self.x = torch.ones(64, 64)

    def step(self):
        self.x @ self.x
        Clock.now_s += Clock.step_s


def work(*, device):
    return Work()
"""
TINY = Case("tiny", "work:work", device="cpu", launches=1, gates=("step_ms", "flops_per_step"))


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository, and pairs that are few and short: what is tested is no time."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    shorten_launches(monkeypatch)
    repeat_pairs(monkeypatch)
    monkeypatch.setattr(stepguard.measure.pair_run, "MOST_PAIRS", 6)
    root = repository(tmp_path / "a tree")
    (root / ".gitignore").write_text(".stepguard/\n__pycache__/\n")
    (root / "pytest.ini").touch()
    commit(root, "all", work=WORK)
    monkeypatch.chdir(root)
    return root


def test_six_pairs_of_a_tiny_step(root):
    """Equal code is `same`, by every pair; nothing of the other tree is left."""
    with tree_of(root, "HEAD") as tree:
        suite = Suite(root, root / "baselines", (), ["pytest", "--perf-against=HEAD"], tree=tree)
        found = suite.run(TINY, lambda text: None)
    assert found.verdict.status is Status.SAME and found.comparison.pairs == 6
    assert git(root, "status", "--porcelain", "--untracked-files=all") == ""
    assert [p.name for p in (root / ".stepguard" / "trees").iterdir()] == ["lock"]
    assert git(root, "worktree", "list", "--porcelain").count("worktree ") == 1
