"""Launches from the tree of another revision, for real, on a CPU: whose code runs is seen in FLOPs.

The repository's revisions differ in how many products a step has. Revision "old" also has a broken
engine of its own, which must not be imported.
"""

import os
from pathlib import Path

import pytest
from git_repositories import commit, git, repository
from short_launches import measured_alone, shorten_launches

from stepguard import Case
from stepguard.machine.git.revision import Revision
from stepguard.machine.git.worktree import tree_of
from stepguard.measure.case_workers import Bench

N = 16
FLOPS = 2 * N**3  # of one product
WORKLOAD = f"""
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from part import PRODUCTS

from pkg.seen import seen


class Work:
    tokens_per_step = 1

    def __init__(self, compile=False, late=""):
        self.x = torch.ones({N}, {N})
        self.late = late
        self.run = torch.compile(self.products) if compile else self.products

    def products(self):
        y = self.x
        for _ in range(PRODUCTS):
            y = (y @ self.x).relu() + 1
        return y

    def step(self):
        self.run()
        if self.late:
            __import__(self.late)


def plain(*, device):
    return Work()


def compiled(*, compile, device):
    # Here, and not in the environment, by which a launch would start cold.
    torch._inductor.config.compile_threads = 2
    torch._inductor.config.cpp_cache_precompile_headers = False  # for a kernel or two
    return Work(compile)


def composed(*, compile, device):
    own = torch.library.Library("own", "DEF")
    own.define("products(Tensor x) -> Tensor")
    own.impl("products", products, "CompositeImplicitAutograd")
    work = Work()
    x = work.x.requires_grad_()
    compiled = torch.compile(lambda: torch.ops.own.products(x))  # no kernel to generate
    work.run = lambda: compiled().sum().backward()
    work.own = own  # whose operators end with it
    return work


def products(x):
    y = x
    for _ in range(PRODUCTS):
        y = y @ x
    return y


def late(*, module, device):
    return Work(late=module)


def child(*, device):
    script = os.path.join(os.path.dirname(__file__), "script.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "sibling\\n", done
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        products, engine = pool.submit(seen).result()
    assert (products, engine) == seen(), (products, engine)
    return Work()
"""
BESIDE = {
    "script": "import sibling\n",
    "sibling": "print('sibling')\n",
    # Without torch, which a spawned process would import for as long as all else here takes.
    "seen": "import os\n\nimport stepguard\nfrom part import PRODUCTS\n\n\n"
    "def seen():\n    return PRODUCTS, os.path.realpath(stepguard.__file__)\n",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A repository with "old" (two products, a broken engine) and HEAD (three)."""
    root = repository(tmp_path_factory.mktemp("tree") / "mine")
    engine = root / "stepguard"
    (engine / "worker").mkdir(parents=True)
    for path in (engine / "__init__.py", engine / "worker" / "agent.py"):
        path.write_text("raise RuntimeError('the engine of the old revision')\n")
    (root / "pkg").mkdir()
    for name, text in BESIDE.items():
        (root / "pkg" / f"{name}.py").write_text(text)
    (root / "pkg" / "work.py").write_text(WORKLOAD)
    commit(root, "old", part="PRODUCTS = 2\n", only_old="")
    git(root, "tag", "old")
    git(root, "rm", "-q", "-r", "stepguard", "only_old.py")
    (root / "pkg" / "work.py").write_text(WORKLOAD)
    commit(root, "new", part="PRODUCTS = 3\n", only_new="")
    return root


@pytest.fixture
def run(root, tmp_path, monkeypatch):
    """Measures a factory of the old revision, or of the caller's tree; the evidence."""
    shorten_launches(monkeypatch)

    def run(factory, params=None, old=True, world_size=1, root=root):
        case = Case("x", f"pkg.work:{factory}", params or {}, "cpu", world_size, launches=1)
        with tree_of(root, "old") as tree:
            sides = {"root": root, "own": tree.base, "forbidden": (tree.top,)}
            if old:
                sides = {"root": tree.root, "own": tree.top, "forbidden": (tree.base,)}
            return measured_alone(
                case,
                Bench(cache=root / ".stepguard" / "cache", folder=tmp_path / "runs", gpus=(),
                      revision=Revision(tree.commit), command="pytest", **sides))  # fmt: skip

    return run


def products(evidence):
    """How many products a step had."""
    return evidence.counts.values["flops_per_step"] / FLOPS


def fault(evidence):
    """The only fault."""
    (found,) = evidence.faults
    return found


def test_two_ranks_and_what_they_start_in_a_path_with_spaces(root, run, tmp_path):
    """Every rank runs the revision's workload, from a folder with spaces in its name as well. A
    script that it starts imports what lies beside it, as it does without us; a process that
    multiprocessing spawns, as data loaders do, imports this tree and this engine. Neither a tree
    nor an entry of git's is left.
    """
    clone = tmp_path / "a tree"
    git(tmp_path, "clone", "-q", str(root), str(clone))
    found = run("child", world_size=2, root=clone)
    assert not found.faults and products(found) == 2, found.faults
    assert [p.name for p in (clone / ".stepguard" / "trees").iterdir()] == ["lock"]
    assert git(clone, "worktree", "list", "--porcelain").count("worktree ") == 1
    assert Path(git(clone, "rev-parse", "--show-toplevel")) == clone


def test_the_compiler_works_in_the_tree(run, monkeypatch):
    """The compiler makes kernels in processes of its own, into a cache in the other tree: no fault,
    and what it needs is imported from this tree.
    """
    shorten_launches(monkeypatch)
    found = run("compiled", {"compile": True})
    assert not found.faults and products(found) == 2, found.faults
    assert found.counts.values["unique_graphs"] == 1
    assert found.counts.values["generated_kernels"] >= 1


def test_the_compiler_knows_no_operator_of_the_other_tree(run, monkeypatch):
    """Of a graph with an operator of the workload's own it keeps nothing in the cache that both
    trees share: each runs what its own code is composed of, forward and backward.
    """
    shorten_launches(monkeypatch)
    found = [run("composed", {"compile": True}, old=old) for old in (True, False)]
    assert not any(one.faults for one in found), [one.faults for one in found]
    # A product has two in its backward. By the other one's trace both would call six.
    called = [one.counts.detail["compiled_operator_calls_per_step"] for one in found]
    assert [one["aten::mm"] + one["aten::addmm"] for one in called] == [3 * 2, 3 * 3]


@pytest.mark.parametrize("old", [True, False], ids=["from the old", "from HEAD"])
def test_a_module_of_the_other_tree_is_a_fault(root, run, tmp_path, monkeypatch, old):
    """PYTHONPATH drags in a module that only the other tree has: BROKEN, with module and file. The
    workload itself was the tree's own: two products in the old one, three in HEAD.
    """
    name = module = "only_new" if old else "only_old"
    where = dragged = root
    if not old:  # the tree's name is not known in advance
        where, dragged, module = root / ".stepguard" / "trees", tmp_path, "drags_it_in"
        (tmp_path / f"{module}.py").write_text(
            f"import glob, sys\nsys.path += glob.glob({str(where / '*/')!r})\nimport {name}\n"
        )
    monkeypatch.setenv("PYTHONPATH", str(dragged), prepend=os.pathsep)
    evidence = run("late", {"module": module}, old=old)
    called = evidence.counts.detail["compiled_operator_calls_per_step"]
    assert called["aten::mm"] == (2 if old else 3)
    found = fault(evidence)
    assert (found.code, found.during) == ("OTHER_TREE", "launch 1, count")
    assert f"{name} ({where}" in found.message and f"/{name}.py)" in found.message
