"""Two revisions of a small repository side by side, for real, on a CPU: from git to the verdict.

What a step takes is known and does not depend on what else the machine does, since ranks measure it
by a clock of the workload's own.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from git_repositories import commit, git, repository
from interrupts import heed_interrupts
from short_launches import (
    BUSY_LIMIT_S,
    CLOCK_OF_STEPS,
    CONFTEST,
    REPEATED,
    shorten_launches,
)

from stepguard import Case
from stepguard.core.comparison import Question
from stepguard.core.reasons import Reason
from stepguard.core.run_document import End
from stepguard.core.status import Status
from stepguard.judge.pair_statistics import MOST_PAIRS
from stepguard.judge.rule_book import NOTHING, judge, need, next_pair
from stepguard.machine.git.revision import current
from stepguard.machine.git.worktree import tree_of
from stepguard.measure import driver
from stepguard.measure.case_workers import Bench
from stepguard.measure.suite import Other, measure_beside
from stepguard.storage.run_document_file import load_document

ROOT = Path(__file__).resolve().parents[2]
STEP_S = 0.01
GATES = ("step_ms", "flops_per_step")
WORKLOAD = f"""
import os
import time
from pathlib import Path

import torch
from part import FACTOR


class Clock:  # of this rank: nothing takes time but a step, and that to the nanosecond
    now_s = 0.0


{CLOCK_OF_STEPS}


class Work:
    def __init__(self, tokens=1, seconds={STEP_S}):
        self.x = torch.ones(16, 16)
        self.tokens_per_step, self.seconds = tokens, seconds

    def step(self):
        self.x @ self.x
        Clock.now_s += self.seconds


class Waiting(Work):  # hangs in the first step of a pair, and notes that it does
    def step(self):
        super().step()
        folder = Path(os.environ["STEPGUARD_RUN_DIR"])
        if folder.name.startswith("pair"):
            (folder / "waits").touch()
            time.sleep(3600)


def waiting(*, device):
    return Waiting()


def timed(*, device):
    return Work(seconds={STEP_S} * FACTOR)


class Squeezed(Work):  # FLOPs are counted with too little memory once; lines grow in HEAD
    def __init__(self, once):
        super().__init__()
        self.once, self.steps = Path(once), []

    def step(self):
        super().step()
        self.steps.append(0)
        if len(self.steps) > 10:
            self.x @ self.x
        for _ in self.steps if FACTOR > 1 else ():
            pass
        mode = torch.utils._python_dispatch._get_current_dispatch_mode()
        if type(mode).__name__ == "_FlopCounterMode" and not self.once.exists():
            self.once.touch()
            raise torch.OutOfMemoryError("planted")


def squeezed(*, once, device):
    return Squeezed(once)


def stored(*, device):
    return Work(tokens=int(open("data/tokens.txt").read()))


def widened(*, device{{}}):
    return Work()
"""
OLD = WORKLOAD.format("")
NEW = WORKLOAD.format(", width=1")
TESTS = f"""
from stepguard import Case
from stepguard.plugin import cases


@cases(Case("tiny", "work:timed", device="cpu", launches=1, gates={GATES!r}))
def test_step(perf, case):
    perf(case)


@cases(Case("tiny", "work:waiting", device="cpu", launches=1, gates={GATES!r}))
def test_waiting(perf, case):
    perf(case)
"""
IGNORED = ".stepguard/\n__pycache__/\ndata/\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A repository in a folder with spaces: "old", and HEAD, which takes three times as long where
    it may, and knows a parameter that "old" does not.
    """
    root = repository(tmp_path_factory.mktemp("against") / "a tree")
    (root / ".gitignore").write_text(IGNORED)
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "baselines").mkdir()
    files = {"work": OLD, "part": "FACTOR = 1\n"}
    commit(root, "old", conftest=CONFTEST + REPEATED, test_perf=TESTS, **files)
    git(root, "tag", "old")
    commit(root, "new", work=NEW, part="FACTOR = 3\n")
    return root


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Short pairs."""
    shorten_launches(monkeypatch)


@pytest.fixture
def bench(root, tmp_path):
    """HEAD's tree."""
    revision = current(root, root / "baselines")
    assert not revision.dirty
    return Bench(root, tmp_path / "cache", tmp_path / "runs", (), revision, "pytest")


def compared(bench, factory, rev, params=None, most=MOST_PAIRS, gates=GATES, data=()):
    """HEAD beside a revision."""
    case = Case("x", f"work:{factory}", params or {}, "cpu", launches=1, gates=gates, data=data)

    def needs(asked):
        if most == MOST_PAIRS:  # as many as the judge needs
            return need(asked)
        return next_pair(asked.pairs) if asked.pairs.pairs < most else NOTHING

    with tree_of(bench.root, rev) as tree, pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "need", needs)
        quiet = lambda shown: None  # noqa: E731
        return measure_beside(case, bench, Other(tree), Question(), quiet)


def starting(root, *arguments):
    """pytest in a repository, as it starts."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.Popen(
        command,
        cwd=root,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def pytest_in(root, *arguments):
    """The exit code of a pytest run in a repository, what it printed and what it complained of."""
    with starting(root, *arguments) as run:
        try:
            printed, complained = run.communicate(timeout=BUSY_LIMIT_S)
        finally:
            run.kill()
    return run.returncode, printed, complained


def processes_of(folder):
    """Processes that work for a launch of this folder: their environment names it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"STEPGUARD_TOKEN=" in environment and str(folder).encode() in environment:
            found.append(entry.name)
    return found


def assert_nothing_left(root):
    """No process, no tree, no entry of git's."""
    assert processes_of(root) == []
    assert [path.name for path in (root / ".stepguard" / "trees").iterdir()] == ["lock"]
    assert git(root, "worktree", "list", "--porcelain").count("worktree ") == 1
    assert git(root, "status", "--porcelain") == ""


def test_a_step_that_takes_longer_is_slower(root):
    """The whole way, from --perf-against to the exit code, in a folder with spaces where a killed
    run had left its tree: SLOWER, with FLOPs equal; that tree and all else is gone afterwards.
    """
    left = root / ".stepguard" / "trees" / "deadbeef-1"
    git(root, "worktree", "add", "-q", "--detach", str(left), "old")
    left.with_suffix(".lock").write_text("old, process 1")
    code, printed, complained = pytest_in(root, "--perf-against=old", "test_perf.py::test_step")
    assert code == 1, printed + complained
    old = git(root, "rev-parse", "old")[:12]
    for part in (
        "timed[tiny]: SLOWER: step_ms ",
        f"compared with old ({old}), measured in pairs with it",
        "margins 5 and 20 %",
        "after the merge, on main: ",
        "-m stepguard accept 'timed[tiny]' --reason",
        f"{left} removed: the run that made it was killed (old, process 1)",
        "1 failed",
    ):
        assert part in printed, printed
    assert_nothing_left(root)


def an_environment(folder):
    """An environment that has all packages of the running one; its Python, and its own packages."""
    base = Path(sys.base_prefix, "bin", "python3")
    packages = folder / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "running.pth").write_text(sysconfig.get_path("purelib"))
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base)
    return folder / "bin" / "python", packages


def test_the_same_tree_under_another_interpreter(root, tmp_path, monkeypatch):
    """The other side runs with that environment's packages and PATH, and compiles into a cache of
    its own; the package that only it has is named, and the same code is `same`.
    """
    python, packages = an_environment(tmp_path / "other env")
    (packages / "noted.pth").write_text("import noted")
    (packages / "noted.py").write_text(
        "import os, sys\n"
        "if 'STEPGUARD_RUN_DIR' in os.environ:\n"
        "    with open(os.environ['NOTES'], 'a') as notes:\n"
        "        cache = os.environ['TRITON_CACHE_DIR']\n"
        "        notes.write(f\"{sys.prefix} {os.environ['PATH']} {cache}\\n\")\n"
    )
    (packages / "noted-2.0.dist-info").mkdir()
    (packages / "noted-2.0.dist-info" / "METADATA").write_text("Name: noted\nVersion: 2.0\n")
    (packages / "noted-2.0.dist-info" / "RECORD").write_text("noted.py,,\n")
    notes, option = tmp_path / "notes", f"--perf-against-python={python}"
    monkeypatch.setenv("NOTES", str(notes))
    code, printed, complained = pytest_in(root, option, "test_perf.py::test_step")
    assert code == 0, printed + complained
    assert f"timed[tiny] against this tree under {python} (" in printed
    assert " noted 2.0 -> unset" in printed and "no package" not in printed, printed
    prefix, bin_folder = python.parents[1], python.parent
    assert notes.read_text().startswith(f"{prefix} {bin_folder}:")
    assert all("-python-" in line.rsplit("/", 2)[1] for line in notes.read_text().splitlines())


def test_a_parameter_that_the_old_revision_lacks(bench):
    """Known before anything is timed. Other FLOPs are in test_third_tree.py, equal code in
    test_itself.py.
    """
    found = compared(bench, "widened", "old", {"width": 2})
    verdict = judge(Question(pairs=found))
    assert (verdict.status, verdict.reason) == (Status.NOT_COMPARABLE, Reason.BASE_LACKS)
    assert "argument 'width'" in verdict.message and "old (" in verdict.message
    assert found.pairs == 0
    assert_nothing_left(bench.root)


def test_an_eager_step_with_too_little_memory_is_counted_alone(bench, tmp_path):
    """The same steps of both trees are: FLOPs that rise at the tenth step are equal. What grows in
    HEAD is found, also in launches whose first step is eager.
    """
    once, grows = tmp_path / "once", "growing_python_lines_per_step"
    found = compared(bench, "squeezed", "old", {"once": str(once)}, gates=(*GATES, grows))
    verdict = judge(Question(pairs=found))
    assert once.exists() and not found.head.faults and not found.base.faults
    assert (verdict.status, verdict.worst.metric) == (Status.CHANGED, grows)
    flops = [side.counts.values["flops_per_step"] for side in (found.head, found.base)]
    assert flops[0] == flops[1] > 0
    assert_nothing_left(bench.root)


def test_both_trees_read_what_git_ignores(bench):
    """If the case names it."""
    (bench.root / "data").mkdir(exist_ok=True)
    (bench.root / "data" / "tokens.txt").write_text("7")
    found = compared(bench, "stored", "old", most=0, data=("data",))
    assert found.base.counts.values == found.head.counts.values and not found.base.faults
    assert_nothing_left(bench.root)
    assert (bench.root / "data" / "tokens.txt").read_text() == "7"


def test_a_run_that_is_ended_says_what_it_knows(root, tmp_path):
    """SIGTERM while both groups of the second pair are being built, each asked by a thread of its
    own: the page and the document have the pair before it, the case is not green, and no process,
    tree or entry of git's is left.
    """
    arguments = ["--perf-against=old", "test_perf.py::test_waiting"]
    with starting(root, *arguments, f"--perf-json={tmp_path / 'run.json'}") as run:
        try:
            until = time.monotonic() + BUSY_LIMIT_S
            while len(list(root.glob(".stepguard/runs/*/*/*/pair-2-*/waits"))) < 2:
                assert run.poll() is None and time.monotonic() < until
                time.sleep(0.05)
            run.send_signal(signal.SIGTERM)
            printed, complained = run.communicate(timeout=BUSY_LIMIT_S)
        finally:
            run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, printed + complained
    assert "waiting[tiny]: INCONCLUSIVE: ended by SIGTERM after " in printed
    assert " s into pair 2: build and first step; step_ms +0.00 [" in printed
    document = load_document(tmp_path / "run.json")
    assert document.end is End.INTERRUPTED and not document.passed
    (verdict,) = (result.verdict for result in document.results)
    (step_ms,) = (one for one in verdict.metrics if one.metric == "step_ms")
    assert (verdict.status, step_ms.pairs.decision.pairs) == (Status.INCONCLUSIVE, 1)
    schema = json.loads((ROOT / "docs" / "run-document.schema.json").read_text())
    jsonschema = pytest.importorskip("jsonschema_rs")
    jsonschema.validate(schema, json.loads((tmp_path / "run.json").read_text()))
    assert_nothing_left(root)
