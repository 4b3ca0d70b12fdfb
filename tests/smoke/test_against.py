"""Two revisions of a small repository side by side, for real, on a CPU: from git to the verdict.

A step sleeps, so that what it takes is known and does not depend on what else the machine does; its
products and tokens are what may not differ. Turns are short and groups import no compiler, for the
sake of the tests' own time.
"""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from git_repositories import commit, git, repository

import stepguard.measure.ab
import stepguard.measure.workers
from stepguard import Case
from stepguard.evidence import Block, Evidence, Launch
from stepguard.git.revision import current
from stepguard.git.worktree import tree_of
from stepguard.judge.ab import judge_ab, wants_another_pair
from stepguard.launch.group import LaunchSpec
from stepguard.measure.ab import PairsWanted
from stepguard.measure.confirm import compare_with, confirm
from stepguard.measure.pair import PairTiming
from stepguard.measure.warmup import Protocol
from stepguard.measure.workers import Bench
from stepguard.sentences import message, note
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 600
SLEEP_S = 0.01
LATE = 120
GATES = ("step_ms", "flops_per_step")
WORKLOAD = f"""
import os
import time
from pathlib import Path

import torch
from part import FACTOR, PRODUCTS, TOKENS


class Work:
    def __init__(self, products=1, tokens=1, sleep_s={SLEEP_S}):
        self.x = torch.ones(16, 16)
        self.products, self.tokens_per_step, self.sleep_s = products, tokens, sleep_s

    def step(self):
        for _ in range(self.products):
            self.x @ self.x
        time.sleep(self.sleep_s)


class Waiting(Work):  # hangs in the first step of a pair, and notes that it does
    def step(self):
        super().step()
        folder = Path(os.environ["STEPGUARD_RUN_DIR"])
        if folder.name.startswith("pair"):
            (folder / "waits").touch()
            time.sleep(3600)


class Late(Work):  # slow from a step on that is behind all that pairs would time by themselves
    done = 0

    def step(self):
        super().step()
        self.done += 1
        if self.done > {LATE}:
            time.sleep({SLEEP_S} * (FACTOR - 1))


def late(*, device):
    return Late()


def waiting(*, device):
    return Waiting()


def slept(*, device):
    return Work(sleep_s={SLEEP_S} * FACTOR)


def multiplied(*, device):
    return Work(products=PRODUCTS)


def read(*, device):
    return Work(tokens=TOKENS)


def widened(*, device{{}}):
    return Work()
"""
OLD = WORKLOAD.format("")
NEW = WORKLOAD.format(", width=1") + "\n\ndef added(*, device):\n    return Work()\n"
SHORT_PAIRS = PairTiming(0.02, 0.2, Protocol(0.1, 0.3, 0.05, 0.5, blocks=2, block_s=0.2))
SHORT = f"""
from stepguard.measure import workers
from stepguard.measure import ab
from stepguard.launch.group import LaunchSpec
from stepguard.measure.pair import PairTiming
from stepguard.measure.warmup import Protocol

pytest_plugins = ["stepguard.plugin"]
ab.PAIR_TIMINGS = {{"cpu": {SHORT_PAIRS!r}}}
workers.LaunchSpec = lambda **fields: LaunchSpec(**fields | {{"preload": ("work",)}})
"""
TESTS = f"""
from stepguard import Case
from stepguard.plugin import cases


@cases(Case("tiny", "work:slept", device="cpu", launches=1, gates={GATES!r}))
def test_step(perf, case):
    perf(case)


@cases(Case("tiny", "work:waiting", device="cpu", launches=1, gates={GATES!r}))
def test_waiting(perf, case):
    perf(case)
"""
IGNORED = ".stepguard/\n__pycache__/\n"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A repository in a folder with spaces: "old", and HEAD, which sleeps three times as long where
    it may, multiplies and reads more, and can what "old" cannot.
    """
    root = repository(tmp_path_factory.mktemp("against") / "a tree")
    (root / ".gitignore").write_text(IGNORED)
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "baselines").mkdir()
    files = {"work": OLD, "part": "FACTOR = PRODUCTS = TOKENS = 1\n"}
    commit(root, "old", conftest=SHORT, test_perf=TESTS, **files)
    git(root, "tag", "old")
    commit(root, "new", work=NEW, part="FACTOR = 3\nPRODUCTS = TOKENS = 2\n")
    return root


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Short pairs, groups that do not import the compiler, and no settings of the user's."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setattr(stepguard.measure.ab, "PAIR_TIMINGS", {"cpu": SHORT_PAIRS})
    monkeypatch.setattr(
        stepguard.measure.workers,
        "LaunchSpec",
        lambda **fields: LaunchSpec(**fields | {"preload": ("work",)}),
    )


@pytest.fixture
def bench(root, tmp_path):
    """HEAD's tree."""
    revision = current(root, root / "baselines")
    assert not revision.dirty
    return Bench(root, tmp_path / "cache", tmp_path / "runs", (), revision, "pytest")


def compared(bench, factory, rev, params=None, budget_s=LONG_S, more=wants_another_pair, **fields):
    """HEAD beside a revision."""
    case = Case("x", f"work:{factory}", params or {}, "cpu", launches=1, gates=GATES, **fields)
    with tree_of(bench.root, rev) as tree:
        return compare_with(case, bench, tree, lambda text: None, PairsWanted(budget_s, more))


def starting(root, *arguments):
    """pytest in a repository, as it starts."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=root, env=env, stdout=pipe, stderr=pipe, text=True)


def pytest_in(root, *arguments):
    """The exit code of a pytest run in a repository, what it printed and what it complained of."""
    with starting(root, *arguments) as run:
        try:
            printed, complained = run.communicate(timeout=LONG_S)
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
        "slept[tiny]: SLOWER: step_ms ",
        f"compared with old ({old}), measured in pairs with it",
        "margins 5 and 20 %",
        "after the merge, on main: ",
        f"{left} removed: the run that made it was killed (old, process 1)",
        "1 failed",
    ):
        assert part in printed, printed
    assert_nothing_left(root)


def test_equal_code_is_the_same(bench):
    """HEAD against its own commit, whose step sleeps as long: `same`, and nothing is left."""
    found = compared(bench, "slept", "HEAD")
    verdict = judge_ab(found)
    assert verdict.status is Status.SAME, (verdict, found.log_ratios())
    assert found.together and found.pairs >= 4 and not found.head.dirty
    assert found.head.commit == found.base.commit
    assert_nothing_left(bench.root)


@pytest.mark.parametrize(
    ("factory", "params", "reason", "words"),
    [
        ("added", {}, Reason.BASE_LACKS, "work has no factory 'added'"),
        ("widened", {"width": 2}, Reason.BASE_LACKS, "unexpected keyword argument 'width'"),
        ("multiplied", {}, Reason.OTHER_FLOPS, "flops_per_step 8,192 in old"),
        ("read", {}, Reason.OTHER_TOKENS, "tokens_per_step 1 in old"),
    ],
)
def test_what_the_old_revision_does_not_do_is_not_comparable(bench, factory, params, reason, words):
    """A factory, a parameter, other FLOPs, other tokens: known from the counting launches."""
    found = compared(bench, factory, "old", params)
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.NOT_COMPARABLE, reason)
    assert words in message(verdict) and "old (" in message(verdict)
    assert found.pairs == 0 and found.head.counts is not None
    assert_nothing_left(bench.root)


def test_an_unknown_revision_is_refused(root, tmp_path):
    """Before anything is measured, with the one that was meant; in a shallow clone with what
    brings it. Both are usage errors.
    """
    code, printed, complained = pytest_in(root, "--perf-against=olb", "test_perf.py")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "did you mean old?" in complained and "launch" not in printed
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", "--no-tags", f"file://{root}", str(shallow))
    code, _, complained = pytest_in(shallow, "--perf-against=old", "test_perf.py")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "shallow clone" in complained and "git fetch --unshallow" in complained


def test_an_interrupt_leaves_nothing(root):
    """Ctrl-C while both groups of a pair are being built, each asked by a thread of its own: pytest
    says that it was interrupted, and no process, tree or entry of git's is left.
    """
    with starting(root, "--perf-against=old", "test_perf.py::test_waiting") as run:
        try:
            until = time.monotonic() + LONG_S
            while len(list(root.glob(".stepguard/runs/*/*/*/pair-1-*/waits"))) < 2:
                assert run.poll() is None and time.monotonic() < until
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            printed, complained = run.communicate(timeout=LONG_S)
        finally:
            run.kill()
    assert run.returncode == pytest.ExitCode.INTERRUPTED, printed + complained
    assert_nothing_left(root)


def ran_later():
    """A screen's launch, that timed some steps behind LATE."""
    steps, ms = 20, 1e3 * SLEEP_S
    block = Block(steps, (steps * ms,), (steps * ms,), (ms,) * steps, ran=LATE + 1)
    return Launch(1, (block,), 0.0, 0.0, LATE, "", 0.0)


def test_a_squashed_baseline_is_confirmed_by_the_merge_base(root, bench, tmp_path):
    """The recording's commit was squashed away: the merge base with main runs beside HEAD. With the
    budget spent a pair cannot decide, so SLOWER stands, unconfirmed, and names what ran. The pair
    times the screen's steps: what begins late there is slower here, too.
    """
    work = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(root), str(work))
    git(work, "checkout", "-q", "-b", "topic")
    commit(work, "topic", part="FACTOR = 5\nPRODUCTS = TOKENS = 2\n")
    here = replace(bench, root=work, revision=current(work, work / "baselines"))
    case = Case("tiny", "work:late", device="cpu", launches=1, gates=GATES)
    seen = Evidence(case.id, {}, "", "", (), "", 1, GATES, launches=(ran_later(),))
    moved = MetricVerdict("step_ms", Status.SLOWER, Reason.BEYOND_LIMIT, 10.0, 50.0, 400.0, 4.0)
    verdict = Verdict(case.id, Status.SLOWER, Reason.BEYOND_LIMIT, metrics=(moved,), recordings=5)
    recorded = "f" * 40
    after, found = confirm(case, here, verdict, seen, recorded, lambda text: None, 0.0)
    (ratio,) = found.log_ratios()
    assert ratio > math.log(4 / 3)  # the factors are 5 and 3
    base = git(work, "rev-parse", "origin/main")
    assert found.base.commit == base and found.head.commit == git(work, "rev-parse", "topic")
    assert found.pairs == 1 and found.out_of_time
    (text,) = (note(metric) for metric in after.metrics)
    assert after.status is Status.SLOWER and text.startswith("unconfirmed: the pairs do not decide")
    assert f"commit {recorded[:12]} is not in this repository" in text
    assert f"the merge base with origin/HEAD, {base[:12]}" in text
    assert_nothing_left(work)


@pytest.mark.extended
def test_equal_code_is_never_slower(bench):
    """HEAD against its own commit ten times, six pairs each, as many as SLOWER needs: not once."""
    for number in range(10):
        found = compared(bench, "slept", "HEAD", more=lambda found: found.pairs < 6)
        verdict = judge_ab(found)
        assert found.pairs == 6, verdict
        told = (number, verdict.status, found.log_ratios())
        assert verdict.status in (Status.SAME, Status.INCONCLUSIVE, Status.FASTER), told
