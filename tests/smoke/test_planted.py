"""The gate, end to end, on a copy of the repository: planted regressions are caught and named.
A hidden sync is the demo's, see test_demo.py.

A baseline is recorded on a clean commit; then things are planted in the model, and the suite is run
as a user runs it. A model that was only refactored stays `same`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from short_launches import BUSY_LIMIT_S, CONFTEST, NANO, SMALLER, WIDTH

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
from stepguard import Case
from stepguard.plugin import cases

TRAIN = "model.workloads:train_step"
TINY = {"size": "nano", "batch": 1, "seq": 16, "precision": "fp32", "compile": True}
EAGER = TINY | {"compile": False, "micro_steps": 1}


@cases(
    Case("train-eager", TRAIN, EAGER, device="cpu", launches=1),
    Case("forward-compiled", "model.ends:forward_of_ends", TINY, device="cpu", launches=1),
)
def test_step(perf, case):
    perf(case)
"""
# The compiler takes seconds for every kernel: it sees the model without its layers.
ENDS = """
import torch

from model.workloads import forward


def forward_of_ends(**params):
    workload = forward(**params)  # compiled in its first step
    workload.model.h = torch.nn.ModuleList()
    return workload
"""
# What is planted: the case that sees it, the file, what stands there and what is put there.
PLANTS = {
    "a doubled product": (
        "train-eager",
        "model/gpt.py",
        "F.gelu(self.c_fc(x), ",
        "F.gelu(self.c_fc(x) + 0 * self.c_fc(x), ",
    ),
    "shapes without end": (
        "train-eager",
        "model/workloads.py",
        "            return self._network(inputs, targets)\n",
        "            self.calls = getattr(self, 'calls', 0) + 1\n"
        "            grown(torch.ones(self.calls))\n"
        "            return self._network(inputs, targets)\n\n\n"
        "@torch.compile(dynamic=False, backend='eager')\ndef grown(x):\n    return x + 1\n",
    ),
    "a refactor": (
        "",  # every case
        "model/workloads.py",
        "            return self._network(inputs, targets)\n",
        "            # Nothing is different.\n            called = self._network\n"
        "            return called(inputs, targets)\n",
    ),
    "a graph that grows": (
        "train-eager",
        "model/workloads.py",
        "                self._scaler.scale(loss).backward()\n",
        "                self._scaler.scale(loss).backward()\n"
        "            self.total = getattr(self, 'total', 0) + loss\n",
    ),
    "a mask of targets": (
        "train-eager",
        "model/gpt.py",
        "        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n",
        "        kept = logits[targets != -1]\n"
        "        return F.cross_entropy(kept, targets[targets != -1])\n",
    ),
}
# Planted at once, in one run: each moves counters of its own, and is named beside the others.
TOGETHER = [name for name, (case, *_) in PLANTS.items() if case]


def gate(folder, *options):
    """Status and output of pytest in the copy, without this run's own settings."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"CUDA_VISIBLE_DEVICES": ""}
    env |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}  # the engine, short_launches
    command = [sys.executable, "-m", "pytest", "perf_tests", "-p", "no:cacheprovider", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    run = subprocess.run(command, cwd=folder, env=env, timeout=BUSY_LIMIT_S, **pipes)
    return run.returncode, run.stdout


def git(folder, *arguments):
    """A git command in a folder."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A copy of the repository with a small suite, committed, and its baseline recorded. The engine
    stays where it is: with one in the measured tree runs the demo.
    """
    folder = tmp_path_factory.mktemp("repository")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "model", folder / "model", ignore=ignored)
    for name in ("pytest.ini", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "conftest.py").write_text(CONFTEST)
    replace(folder / "model/config.py", NANO, SMALLER)
    (folder / "model/ends.py").write_text(ENDS)
    (folder / "perf_tests").mkdir()
    (folder / "perf_tests/test_step.py").write_text(SUITE)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all of it")
    status, text = gate(folder, "--perf-update")
    assert status == 0, text
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "baseline")
    return folder


def planted(plants, folder):
    """What comes of the suite with the plants in the model, which is then as it was."""
    before, case = {}, PLANTS[plants[0]][0]
    for _, name, old, new in map(PLANTS.get, plants):
        before.setdefault(name, (folder / name).read_text())
        replace(folder / name, old, new)
    status, text = gate(folder, "--perf-json=run.json", "-k", case)
    for name, was in before.items():
        (folder / name).write_text(was)
    cases = json.loads((folder / "run.json").read_text())["results"]
    metrics = [m for case in cases for m in case["verdict"]["metrics"] if m["gated"]]
    moved = {m["metric"]: (m["old"], m["new"]) for m in metrics if m["status"] != "same"}
    return SimpleNamespace(status=status, text=text, moved=moved)


@pytest.fixture(scope="module")
def outcome(recorded):
    """Exit status, output and the metrics that moved, of all plants at once."""
    return planted(TOGETHER, recorded)


def replace(path, old, new):
    """Replace the one place where ``old`` stands."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has changed: plant it elsewhere"
    path.write_text(text.replace(old, new))


def assert_named(outcome, case, metric):
    """The run failed, and a line of it names the case, the counter, and old -> new."""
    assert outcome.status == 1, outcome.text
    lines = [line for line in outcome.text.splitlines() if "CHANGED" in line and metric in line]
    assert any(re.search(rf"{metric}\b.*? [\d,.]+.* -> [\d,.]+", line) for line in lines), lines
    assert re.search(rf"\[{case}\]: CHANGED: ", outcome.text)
    assert re.search(rf"-m stepguard accept '\w+\[{case}\]' --reason", outcome.text)


def test_a_refactor_is_the_same(recorded):
    """Measured again, with other lines that do the same work: every case is `same`, to the unit,
    and the exit code is 0.
    """
    outcome = planted(["a refactor"], recorded)
    assert outcome.status == 0, outcome.text
    assert outcome.moved == {}
    assert "\n2 same\n" in outcome.text


def test_a_doubled_product(outcome):
    """One more matrix product a layer: FLOPs and operator calls rise, and the product is named."""
    assert_named(outcome, "train-eager", "flops_per_step")
    assert_named(outcome, "train-eager", "operator_calls_per_step")
    old, new = outcome.moved["flops_per_step"]
    product = 2 * 16 * WIDTH * 4 * WIDTH  # tokens, width, four times the width; one layer
    assert new - old == 3 * product  # forward, and for both factors backward
    assert "aten.addmm" in outcome.text


def test_shapes_without_end(outcome):
    """A shape that is new in every step is named by the function that torch has compiled again
    until it gave up.
    """
    assert_named(outcome, "train-eager", "recompiles")
    where = r"recompile.*size mismatch.* in grown \(model/workloads\.py:\d+\)"
    assert re.search(where, outcome.text)


def test_a_graph_that_grows(outcome):
    """A sum of losses that keeps every step's graph: its nodes, at the line that adds."""
    assert_named(outcome, "train-eager", "leaked_graph_nodes_per_step")
    old, new = outcome.moved["leaked_graph_nodes_per_step"]
    assert old == 0 and new > 10
    assert "self.total = getattr(self, 'total', 0) + loss" in outcome.text


def test_a_mask_of_targets(outcome):
    """On a GPU each index with a mask waits for its size: of the logits, of the targets, and once
    more in the backward pass. The loader copies its batches nowhere on a CPU.
    """
    assert_named(outcome, "train-eager", "sync_candidates_per_step")
    assert outcome.moved["sync_candidates_per_step"] == (0, 3)
    # Another plant of the run does more work, which comes first.
    assert "+1 aten.index in GPT.forward (model/gpt.py:" in outcome.text
