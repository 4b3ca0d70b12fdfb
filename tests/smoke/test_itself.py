"""HEAD beside itself from end to end, on a CPU, with the engine in the measured tree: as this
project is measured by its own pull requests.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from git_repositories import commit, git, repository
from short_launches import BUSY_LIMIT_S, CLOCK_OF_STEPS, CONFTEST, REPEATED

ROOT = Path(__file__).resolve().parents[2]

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
TEST = """
from stepguard import Case
from stepguard.plugin import cases

GATES = ("step_ms", "flops_per_step")


@cases(Case("tiny", "work:work", device="cpu", launches=1, gates=GATES))
def test_step(perf, case):
    perf(case)
"""
FEW = """
import stepguard.judge.rule_book

stepguard.judge.rule_book.MOST_PAIRS = 6
"""


@pytest.fixture
def root(tmp_path):
    """A repository with the engine, and pairs that are few and short: what is tested is no time."""
    root = repository(tmp_path / "a tree")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "stepguard", root / "stepguard", ignore=ignored)
    (root / ".gitignore").write_text(".stepguard/\n__pycache__/\n")
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "baselines").mkdir()
    commit(root, "all", work=WORK, test_perf=TEST, conftest=CONFTEST + REPEATED + FEW)
    return root


def test_six_pairs_of_a_tiny_step(root):
    """Equal code is `same`, by every pair, and each side runs this one engine; nothing of the other
    tree is left.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--perf-against=HEAD"]
    command += ["--perf-json=.stepguard/run.json"]
    done = subprocess.run(
        command, cwd=root, env=env, capture_output=True, text=True, timeout=BUSY_LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((root / ".stepguard/run.json").read_text())["results"]
    assert found["verdict"]["status"] == "same"
    (step_ms,) = (one for one in found["verdict"]["metrics"] if one["metric"] == "step_ms")
    assert step_ms["pairs"]["decision"]["pairs"] == 6
    assert git(root, "status", "--porcelain", "--untracked-files=all") == ""
    assert [p.name for p in (root / ".stepguard" / "trees").iterdir()] == ["lock"]
    assert git(root, "worktree", "list", "--porcelain").count("worktree ") == 1
