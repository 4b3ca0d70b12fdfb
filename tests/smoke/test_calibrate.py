"""A calibration from end to end, on a CPU: HEAD's pairs with itself, then what reads them."""

import re

import pytest
from git_repositories import commit, git, repository
from quick_launches import CLOCK_OF_STEPS, PAIR_TIMING, repeat_pairs, shorten_launches

import stepguard.measure.pair_run
from stepguard import Case
from stepguard.cli import main as cli
from stepguard.core.verdict import Status
from stepguard.machine.git.worktree import tree_of
from stepguard.measure.suite import Suite
from stepguard.storage import calibrations

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


def measured(root):
    """The verdict of HEAD's pairs with itself."""
    with tree_of(root, "HEAD") as tree:
        suite = Suite(root, root / "baselines", (), ["pytest", "--perf-against=HEAD"], tree=tree)
        return suite.run(TINY, lambda text: None).verdict


def test_six_pairs_of_a_tiny_step(root, capsys):
    """Equal code is `same`. The file holds what was reported; nothing but it is left."""
    assert measured(root).status is Status.SAME
    assert cli.main(["calibrate", "work[tiny]"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr()
    content = calibrations.load(root / "baselines" / "calibration" / "cpu.json")
    (entry,) = content.cases.values()
    assert (list(content.cases), content.machine, entry.pairs) == (["work[tiny]"], "CPU", 6)
    assert entry.commit == git(root, "rev-parse", "HEAD")
    assert entry.timing["block_s"] == PAIR_TIMING.block_s and entry.seconds_a_pair > 0
    (sd,) = re.findall(r"^pair sd +([\d.]+) %", shown.out, re.MULTILINE)
    assert float(sd) == pytest.approx(entry.sd_pct, rel=0.001, abs=0.001)
    left = git(root, "status", "--porcelain", "--untracked-files=all").split()
    assert left == ["??", "baselines/calibration/cpu.json"]
    assert [p.name for p in (root / ".stepguard" / "trees").iterdir()] == ["lock"]
    assert git(root, "worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_step_that_raises_is_no_calibration(root, capsys):
    """Status 1, the workload's own words, and no file."""
    commit(root, "broken", work=WORK.replace("self.x @ self.x", "raise ValueError('planted')"))
    assert measured(root).status is Status.BROKEN
    assert cli.main(["calibrate", "work[tiny]"]) == 1
    assert "not calibrated, BROKEN" in (said := capsys.readouterr().err) and "planted" in said
    assert not (root / "baselines").exists()
