"""A project with src layout whose package is imported from a third tree, neither HEAD's nor the
other revision's, for real, on a CPU, from pytest to the verdict: whatever was changed, both sides
would run the same.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from git_repositories import commit, git, repository
from short_launches import BUSY_LIMIT_S, CONFTEST

ROOT = Path(__file__).resolve().parents[2]
CASE = 'Case("x", "mypkg.train:make", device="cpu", launches=1, gates=("flops_per_step",))'
FILES = {
    "conftest": CONFTEST,
    "test_perf": f"""
from stepguard import Case
from stepguard.plugin import cases


@cases({CASE})
def test_step(perf, case):
    perf(case)
""",
}
TRAIN = """
import torch


class Work:
    tokens_per_step = 1

    def __init__(self):
        self.x = torch.ones(16, 16)

    def step(self):
        for _ in range({products}):
            self.x @ self.x


def make(*, device):
    return Work()
"""


@pytest.fixture(scope="module")
def clones(tmp_path_factory):
    """Two clones of one project: in the second HEAD multiplies twice, and "old" once."""
    folder = tmp_path_factory.mktemp("third")
    first = repository(folder / "srcA")
    (first / "src" / "mypkg").mkdir(parents=True)
    (first / "src" / "mypkg" / "__init__.py").write_text("")
    (first / "src" / "mypkg" / "train.py").write_text(TRAIN.format(products=1))
    (first / ".gitignore").write_text(".stepguard/\n__pycache__/\n")
    (first / "pytest.ini").write_text("[pytest]\n")
    commit(first, "old", **FILES)
    git(first, "tag", "old")
    git(folder, "clone", "-q", str(first), "srcB")
    (folder / "srcB" / "src" / "mypkg" / "train.py").write_text(TRAIN.format(products=2))
    commit(folder / "srcB", "new")
    return first, folder / "srcB"


def faults(root):
    """(code, during) of the faults that the last run in a tree kept."""
    last = max((root / ".stepguard" / "runs").iterdir())
    (path,) = [*last.glob("*/evidence.json"), *last.glob("*/comparison.json")]
    found = json.loads(path.read_text())
    sides = [found[side] for side in ("head", "base") if side in found] or [found]
    return [(fault["code"], fault["during"]) for side in sides for fault in side["faults"]]


def gate(root, path, *arguments, **variables):
    """pytest in a tree with such a PYTHONPATH and other variables; its exit code and output."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {
        "PYTHONPATH": os.pathsep.join([path, str(ROOT), str(ROOT / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    } | variables
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=root, env=env, text=True, timeout=BUSY_LIMIT_S, **pipe)
    return done.returncode, done.stdout


def test_a_third_trees_package_is_a_fault(clones):
    """PYTHONPATH leads into the other clone: BROKEN (OTHER_TREE), with module, both files and what
    mends it. Other ways to judge, and modules that only a step imports, are in test_other_tree.py.
    """
    first, second = clones
    code, printed = gate(second, str(first / "src"))
    assert code == 1 and "make[x]: BROKEN: " in printed, printed
    assert faults(second) == [("OTHER_TREE", "launch 1, prepare")]
    for name in ("__init__", "train"):
        assert f"({first}/src/mypkg/{name}.py)" in printed, printed
    assert "PYTHONPATH=src" in printed


def test_each_trees_own_package_is_judged(clones):
    """With PYTHONPATH=src, as the message says, what was changed is seen beside the old one."""
    code, printed = gate(clones[1], "src", "--perf-against=old")
    assert code == 1, printed
    assert "CHANGED" in printed and " %: 8,192 in old" in printed
    assert "OTHER_TREE" not in printed and "BROKEN" not in printed
