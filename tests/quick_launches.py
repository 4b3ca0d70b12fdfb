"""Real launches of CPU cases in a fraction of their time, for tests of anything but times.

What is timed is short, of the compiler no more is imported than a workload or its several ranks
need, and nothing is given up early because the machine is busy with something else.
"""

import hashlib
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import agent_forks
import pytest

from stepguard.core.case import Case
from stepguard.core.comparison import LaunchPair
from stepguard.core.evidence import Block, Launch
from stepguard.judge.rule_book import Need
from stepguard.launch import diagnosis, torchrun, worker_group
from stepguard.launch.nodes import run_launcher
from stepguard.launch.torchrun import LaunchSpec
from stepguard.machine import inherited
from stepguard.measure import case_workers, launches, pair_run, warm_up
from stepguard.measure.case_workers import Bench, CaseWorkers
from stepguard.measure.pair import PairTiming
from stepguard.measure.warm_up import Protocol

PROTOCOL = Protocol(
    warmup_min_s=0.004,
    warmup_cap_s=0.5,  # a busy machine may need it
    window_s=0.004,
    tolerance=1.0,
    blocks=3,
    block_s=0.004,
    segment_s=0.004,
    settling_segments=1,
)
PAIR_WARMUP = Protocol(0.03, 0.3, 0.015, 0.5, blocks=2, block_s=0.03)
PAIR_TIMING = PairTiming(0.005, 0.03, PAIR_WARMUP, ahead=1)
REAL_PAIRS = 2  # each order once, and one that imported while the other was timed
BUSY_LIMIT_S = 900.0
START_COLD = torchrun.spawn
# What an optimizer imports in its first step: a second in each rank whose agent has not.
OPTIMIZERS = ("torch._dynamo", "torch._functorch._aot_autograd.autograd_cache")
# First lines of the conftest.py of a repository that a test makes.
CONFTEST = """
import pytest
from quick_launches import shorten_launches

shorten_launches(pytest.MonkeyPatch())
pytest_plugins = ["stepguard.plugin"]
"""
WITH_OPTIMIZERS = CONFTEST.replace("MonkeyPatch()", "MonkeyPatch(), compiler=True")
# In place of nano's size in a copy of model/config.py, for tests of anything but its mathematics.
WIDTH = 32
NANO = '"nano": GPTConfig(n_layer=3, n_head=4, n_embd=128'
SMALLER = f'"nano": GPTConfig(n_layer=1, n_head=2, n_embd={WIDTH}'
REPEATED = """
from quick_launches import repeat_pairs

repeat_pairs(pytest.MonkeyPatch())
"""
# Lines of a module of a workload, after its class Clock: ranks time by Clock.now_s. In the engine's
# modules, since a workload that replaces time.perf_counter_ns has no effect; what blocks claim
# stays below what the host's clock, which looks on, would call a disagreement.
CLOCK_OF_STEPS = """
from stepguard.worker import block_timer, rank_session

MACHINES = rank_session.perf_counter, rank_session.perf_counter_ns


def time_by(seconds, nanoseconds):
    rank_session.perf_counter = seconds
    rank_session.perf_counter_ns = nanoseconds
    block_timer.perf_counter_ns = nanoseconds


time_by(lambda: Clock.now_s, lambda: round(1e9 * Clock.now_s))
"""


def launch_spec(folder: Path, **changes: Any) -> LaunchSpec:
    """Return what a launch of one rank on a CPU runs with, in a folder that is its tree too."""
    spec = LaunchSpec(
        device="cpu",
        preload=(),
        world_size=1,
        root=folder,
        folder=folder / "launch",
        cache=folder / "cache",
        label="launch 1",
        time_limit_s=BUSY_LIMIT_S,
    )
    return replace(spec, **changes)


def fork_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start agents by fork where a server of agents is there, and can stand in (agent_forks)."""
    monkeypatch.setattr(torchrun, "spawn", agent_forks.forking(START_COLD))


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up nothing early, however slow the machine is."""
    monkeypatch.setattr(worker_group, "HELLO_LIMIT_S", BUSY_LIMIT_S)
    for module in (worker_group, torchrun):
        monkeypatch.setattr(module, "GONE_LIMIT_S", BUSY_LIMIT_S)
    monkeypatch.setattr(run_launcher, "ASK_LIMIT_S", BUSY_LIMIT_S)
    monkeypatch.setattr(diagnosis, "STACKS_S", 60.0)
    monkeypatch.setattr(diagnosis, "ENDINGS_S", BUSY_LIMIT_S)


def shorten_launches(monkeypatch: pytest.MonkeyPatch, compiler: bool = False) -> None:
    """Make the launches of this process short and patient. ``compiler``: all workloads import a
    part of it, for an optimizer, as the model's do.
    """
    whole = case_workers.launch_spec

    def spec(case: Case, bench: Bench, label: str, *how: bool) -> LaunchSpec:
        # The agent imports once for all ranks, and in half the time that it takes while what builds
        # the workload is observed. To time a step of a pair needs nothing but what its optimizer
        # imports.
        shared = ["quick_ranks"]
        trains = case.workload.startswith(("model.", "factories:ranks"))
        if compiler or trains and not label.startswith("pair"):
            shared += OPTIMIZERS
            shared += ["torch._inductor.compile_fx"] if case.params.get("compile") else []
        return replace(whole(case, bench, label, *how), shared=tuple(shared))

    monkeypatch.setattr(case_workers, "launch_spec", spec)
    given = filter(None, [os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*given, str(Path(__file__).parent)]))
    # As if pytest had been started with it.
    monkeypatch.setattr(inherited, "STARTED", inherited.inherited_now())
    monkeypatch.setitem(warm_up.PROTOCOLS, "cpu", PROTOCOL)
    monkeypatch.setitem(pair_run.PAIR_TIMINGS, "cpu", PAIR_TIMING)
    be_patient(monkeypatch)
    fork_agents(monkeypatch)


def repeat_pairs(monkeypatch: pytest.MonkeyPatch, real: int = REAL_PAIRS) -> None:
    """Let pairs beyond ``real`` be copies of those, for tests of what follows from many pairs."""
    measure, start_following = pair_run._PairRun._pair, pair_run._PairRun._start_following

    def pair(run: pair_run._PairRun, number: int, need: Need) -> LaunchPair:
        if number <= real:
            return measure(run, number, need)
        return LaunchPair(*(side.launches[-real] for side in run.sides))

    def following(run: pair_run._PairRun, number: int, need: Need) -> None:
        if number < real:
            start_following(run, number, need)

    monkeypatch.setattr(pair_run._PairRun, "_pair", pair)
    monkeypatch.setattr(pair_run._PairRun, "_start_following", following)


def invented(number: int) -> Launch:
    """Return a launch of equal steps that nobody ran."""
    block = Block(4, (40.0,), (40.0,), (10.0,) * 4, ran=9)
    return Launch(number, (block, block), 0.0, 0.0, 9, "", 0.0)


def invent_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all pairs be of equal steps that nobody ran, for tests of what comes of a comparison."""

    def pair(run: pair_run._PairRun, number: int, need: Need) -> LaunchPair:
        return LaunchPair(invented(number), invented(number))

    # So nobody times the launches that count.
    monkeypatch.setattr(
        pair_run._PairRun, "_first_launches", lambda run: pair_run._PairRun._count_alone(run)
    )
    monkeypatch.setattr(pair_run._PairRun, "_pair", pair)


def remember_counts(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Launch a workload's module once: runs whose module has the same text find in ``folder`` what
    its ranks said, and invent the times. For tests of what comes of many runs.
    """

    def note(side: CaseWorkers) -> Path:
        module = side._bench.root / f"{side.case.workload.partition(':')[0]}.py"
        return folder / hashlib.sha256(module.read_bytes()).hexdigest()

    def recalled(*sides: CaseWorkers) -> bool:
        if not all(note(side).exists() for side in sides):
            return False
        for side in sides:
            side.counts, side._ranks, imported = pickle.loads(note(side).read_bytes())
            side._modules = {side._tree.resolve() / path for path in imported}
        return True

    def keep(*sides: CaseWorkers) -> None:
        for side in sides:
            imported = {path.relative_to(side._tree.resolve()) for path in side._modules}
            note(side).write_bytes(pickle.dumps((side.counts, side._ranks, imported)))

    first, measure = pair_run._PairRun._first_launches, launches._CaseRun.measure

    def counted(run: pair_run._PairRun) -> LaunchPair | None:
        if recalled(*run.sides):
            return None
        timed = first(run)
        keep(*run.sides)
        return timed

    def measured(run: launches._CaseRun) -> None:
        if recalled(run.workers):
            run.workers.launches.append(invented(1))
        else:
            measure(run)
            keep(run.workers)

    monkeypatch.setattr(pair_run._PairRun, "_first_launches", counted)
    monkeypatch.setattr(launches._CaseRun, "measure", measured)
