"""A training script is guarded as it is: recorded, planted, red, or the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from short_launches import BUSY_LIMIT_S, CONFTEST

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import sys

import torch

from network import Network


def main():
    network = Network(int(sys.argv[1]))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    batch = torch.randn(4, int(sys.argv[1]))
    while True:
        loss = network(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


main()
"""
NETWORK = """
import torch


class Network(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def forward(self, x):
        return torch.nn.functional.gelu(self.layer(x))
"""
SUITE = """
from stepguard import Case
from stepguard.plugin import cases


@cases(Case("cpu", "train.py", args=("16",), device="cpu", launches=1))
def test_train(perf, case):
    perf(case)
"""
CHANGED = {
    "a refactor": ("train.py", "loss.backward()", "torch.autograd.backward(loss)"),
    "a sync": ("train.py", "optimizer.zero_grad()", "optimizer.zero_grad(), loss.item()"),
}


def gate(folder, *options):
    """The output of pytest in a project, without this run's own settings."""
    # Before the settings of each test apply: in CI a run is strict, and records nothing.
    ours = ("PYTEST_", "CI", "GITHUB_ACTIONS")
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "pytest", "perf_tests", "-p", "no:cacheprovider", *options]
    run = subprocess.run(
        command, cwd=folder, env=env, timeout=BUSY_LIMIT_S, capture_output=True, text=True
    )
    return run.stdout


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What pytest says of a recorded script after each of the changes, by its name."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "perf_tests").mkdir()
    files = {"train.py": TRAIN, "network.py": NETWORK, "conftest.py": CONFTEST}
    files |= {".gitignore": "__pycache__/\n", "pytest.ini": "[pytest]\n"}
    files |= {"perf_tests/test_train.py": SUITE}
    for name, text in files.items():
        (folder / name).write_text(text)
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Begin"]):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)
    found = {"nothing": gate(folder, "--perf-update")}
    for change, (name, old, new) in CHANGED.items():
        assert files[name].count(old) == 1
        (folder / name).write_text(files[name].replace(old, new))
        found[change] = gate(folder)
        (folder / name).write_text(files[name])
    return found


def test_a_refactor_of_a_script_is_the_same(outputs):
    """Recorded once, measured again: no column of tokens, since nobody said how many."""
    assert "1 recorded" in outputs["nothing"]
    assert "train[cpu]" in outputs["a refactor"] and "1 same" in outputs["a refactor"]
    assert "tok/s" not in outputs["a refactor"]


def test_a_planted_sync_has_its_line_in_the_script(outputs):
    """In what it imports, see test_first_hour.py."""
    first = next(line for line in outputs["a sync"].splitlines() if "train[cpu]: CHANGED" in line)
    assert "sync_candidates_per_step 0 -> 1" in first and "train.py:17" in first
