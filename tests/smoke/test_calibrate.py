"""python -m stepguard calibrate for real, on a CPU: six pairs of a tiny step with itself."""

import os
import re
from dataclasses import replace

import pytest
from git_repositories import commit, git, repository

from stepguard.cli import main as cli
from stepguard.measure.ab import PAIR_TIMINGS
from stepguard.storage import calibrations

WORK = """
import torch


class Work:
    tokens_per_step = 1

    def __init__(self):
        self.x = torch.ones(64, 64)

    def step(self):
        self.x @ self.x


def work(*, device):
    return Work()
"""
SUITE = """
from stepguard import Case
from stepguard.plugin import cases


@cases(Case("tiny", "work:work", device="cpu", launches=1, gates=("step_ms", "flops_per_step")))
def test_work(perf, case):
    perf(case)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A repository with one case, and pairs that are short: what is tested is no time."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    short = replace(PAIR_TIMINGS["cpu"].warmup, warmup_min_s=0.1, warmup_cap_s=0.3, window_s=0.05)
    monkeypatch.setitem(
        PAIR_TIMINGS, "cpu", replace(PAIR_TIMINGS["cpu"], block_s=0.1, warmup=short)
    )
    root = repository(tmp_path / "a tree")
    (root / "perf_tests").mkdir()
    (root / "perf_tests" / "test_work.py").write_text(SUITE)
    (root / ".gitignore").write_text(".stepguard/\n__pycache__/\n")
    (root / "pytest.ini").touch()
    commit(root, "all", work=WORK)
    monkeypatch.chdir(root)
    return root


def test_six_pairs_of_a_tiny_step(root, capsys):
    """The file holds what was told; nothing is left running or lying about but the file."""
    assert cli.main(["calibrate", "work[tiny]", "--pairs", "6"]) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    content = calibrations.load(root / "baselines" / "calibration" / "cpu.json")
    (entry,) = content.cases.values()
    assert (list(content.cases), content.machine, entry.pairs) == (["work[tiny]"], "CPU", 6)
    assert entry.commit == git(root, "rev-parse", "HEAD")
    assert entry.timing["block_s"] == 0.1 and entry.seconds_a_pair > 0
    (sd,) = re.findall(r"^pair sd +([\d.]+) %", told.out, re.MULTILINE)
    assert float(sd) == pytest.approx(entry.sd_pct, rel=0.001, abs=0.001)
    assert "5/6 pairs, the last " in told.err
    left = git(root, "status", "--porcelain", "--untracked-files=all").split()
    assert left == ["??", "baselines/calibration/cpu.json"]
    assert [p.name for p in (root / ".stepguard" / "trees").iterdir()] == ["lock"]
    assert git(root, "worktree", "list", "--porcelain").count("worktree ") == 1


def test_a_step_that_raises_is_no_calibration(root, capsys):
    """Status 1, the workload's own words, and no file."""
    commit(root, "broken", work=WORK.replace("self.x @ self.x", "raise ValueError('planted')"))
    assert cli.main(["calibrate", "work[tiny]", "--pairs", "6"]) == 1
    assert "not calibrated, BROKEN" in (said := capsys.readouterr().err) and "planted" in said
    assert not (root / "baselines").exists()
