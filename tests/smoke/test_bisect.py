"""python -m stepguard bisect over the commits of a small repository, for real, on a CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from git_repositories import commit, git, repository
from interrupts import heed_interrupts
from leftovers import processes
from short_launches import BUSY_LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
COMMAND = """
import pytest, sys
from short_launches import shorten_launches
from stepguard.cli.main import main

shorten_launches(pytest.MonkeyPatch())
sys.exit(main(["bisect", "good", "HEAD", "work:plain", "--device=cpu", "--json=-"]))
"""
WORK = """
import torch


class Work:
    tokens_per_step = 1

    def __init__(self, device):
        self.x = torch.ones(16, 16, device=device)

    def step(self):
        y = self.x @ self.x


def plain(*, device):
    return Work(device)
"""
SYNC = WORK.replace("y = self.x @ self.x", "y = (self.x @ self.x)[0, 0].item()")
MOMENTS = ("*/proof/head", "*/half-1", "*/half-2/*/launch-1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Seven commits: number 0 is "good", the middle one does not import, and from number 5 on steps
    wait for a value. The tree that runs the command has an edit.
    """
    root = repository(tmp_path_factory.mktemp("bisect") / "a tree")
    (root / ".gitignore").write_text(".stepguard/\n__pycache__/\n")
    works = WORK, WORK, WORK, "import gone\n", WORK, SYNC, SYNC
    for number, work in enumerate(works):
        commit(root, f"number {number}", work=f"{work}# {number}\n")
        if not number:
            git(root, "tag", "good")
    (root / "work.py").write_text(f"{WORK}# an edit\n")
    return root


def bisect(root, tmpdir, until=""):
    """Run the command, up to Ctrl-C once there is a file; its exit status and output."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    seen = {*root.glob(f".stepguard/runs/{until}")} if until else set()
    end_s = time.monotonic() + BUSY_LIMIT_S
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        cwd=root,
        env=env | {"TMPDIR": str(tmpdir)},
        preexec_fn=heed_interrupts,
        **pipes,
    ) as run:
        try:
            while until and not {*root.glob(f".stepguard/runs/{until}")} - seen:
                assert run.poll() is None and time.monotonic() < end_s, run.communicate()
                time.sleep(0.02)
            if until:
                run.send_signal(signal.SIGINT)
            printed, complained = run.communicate(timeout=BUSY_LIMIT_S)
        finally:
            run.kill()
    # What was killed may end a moment later. A launch that just began may leave an empty folder.
    while left := processes(tmpdir):
        assert time.monotonic() < end_s, left
        time.sleep(0.05)
    assert [path.name for path in (root / ".stepguard" / "trees").iterdir()] == ["lock"]
    assert git(root, "worktree", "list", "--porcelain").count("worktree ") == 1
    return run.returncode, printed, complained


def test_a_planted_wait_is_found(root, tmp_path):
    """Interrupted in the proof and in two halves, the command leaves nothing running and goes on.
    What does not import is stepped around. The culprit's line is named.
    """
    for moment in MOMENTS:
        status, printed, complained = bisect(root, tmp_path, moment.replace("*/", "*/bisect/", 1))
        assert status == 130, (moment, printed, complained)
        proven = "proof" not in moment
        assert ("are kept: the same command goes on" in printed) == proven, (moment, printed)
    status, printed, complained = bisect(root, tmp_path)
    document = json.loads(printed.splitlines()[-1])
    assert status == 0 and document["moved"] == "sync_candidates_per_step", printed + complained
    assert f"culprit: {document['culprit'][:12]} number 5" in printed
    broken, *others = document["answers"]
    assert "ModuleNotFoundError: No module named 'gone'" in broken["text"], printed
    assert (broken["side"], len(others) in (2, 3)) == ("skipped", True), printed  # of equal halves
    assert "work.py:12" in document["proof"]["text"]["headline"], printed
