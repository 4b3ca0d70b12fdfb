"""A training script is guarded as it is: recorded, planted, red, or the same."""

import os
import subprocess
from pathlib import Path

import pytest
from agent_forks import QUICK_PYTHON
from quick_launches import BUSY_LIMIT_S, WITH_OPTIMIZERS

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
    "a sync in the network": ("network.py", "(x))", "(x) if x.sum().item() else x)"),
    "an argument": ("perf_tests/test_train.py", '"16"', '"32"'),
    "its end": ("train.py", "while True:", "for _ in range(30):"),
}


def gate(folder, *options):
    """The output of pytest in a project, without this run's own settings."""
    # Before the settings of each test apply: in CI a run is strict, and records nothing.
    ours = ("PYTEST_", "CI", "GITHUB_ACTIONS")
    env = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    env |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [*QUICK_PYTHON, "-m", "pytest", "perf_tests", "-p", "no:cacheprovider", *options]
    run = subprocess.run(
        command, cwd=folder, env=env, timeout=BUSY_LIMIT_S, capture_output=True, text=True
    )
    return run.stdout


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What pytest says of a recorded script after each of the changes, by its name."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "perf_tests").mkdir()
    files = {"train.py": TRAIN, "network.py": NETWORK, "conftest.py": WITH_OPTIMIZERS}
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


@pytest.mark.parametrize(
    ("change", "place"), [("a sync", "train.py:17"), ("a sync in the network", "network.py:11")]
)
def test_a_planted_sync_has_its_line_in_the_script(outputs, change, place):
    """In the script itself, and in what it imports."""
    first = next(line for line in outputs[change].splitlines() if "train[cpu]: CHANGED" in line)
    assert "sync_candidates_per_step 0 -> 1" in first and place in first


def test_other_arguments_are_another_case(outputs):
    """They are compared as a factory's parameters are."""
    assert "NOT COMPARABLE" in outputs["an argument"] and "args 16 -> 32" in outputs["an argument"]


def test_a_script_that_is_too_short_says_what_it_needs(outputs):
    """How many steps there were, how many are needed, and what to pass."""
    assert "train.py ended after 30 steps, and a launch needs about " in outputs["its end"]
