"""Real launches of CPU cases, for tests of anything but times: what is timed is short, and nothing
is given up early because the machine is busy with something else.
"""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepguard.core.case import Case
from stepguard.core.comparison import Question
from stepguard.core.evidence import Evidence
from stepguard.launch import diagnosis, nodes, torchrun, worker_group
from stepguard.launch.torchrun import LaunchSpec
from stepguard.machine import inherited
from stepguard.measure import warm_up
from stepguard.measure.case_workers import Bench
from stepguard.measure.driver import Driver, measure
from stepguard.measure.plan import Do, Next
from stepguard.measure.warm_up import Protocol

PROTOCOL = Protocol(
    warmup_min_s=0.004, warmup_cap_s=0.5,  # a busy machine may need it
    window_s=0.004, tolerance=1.0, blocks=3, block_s=0.004, segment_s=0.004,
    settling_segments=1)  # fmt: skip
PAIR_PROTOCOL = Protocol(0.03, 0.3, 0.015, 0.5, blocks=2, block_s=0.03, lead_s=0.005)
REAL_PAIRS = 2  # each order once, and one that imported while the other was timed
BUSY_LIMIT_S = 900.0
# First lines of the conftest.py of a repository that a test makes.
CONFTEST = """
import pytest
from short_launches import shorten_launches

shorten_launches(pytest.MonkeyPatch())
pytest_plugins = ["stepguard.plugin"]
"""
# In place of nano's size in a copy of model/config.py, for tests of anything but its mathematics.
WIDTH = 32
NANO = '"nano": GPTConfig(n_layer=3, n_head=4, n_embd=128'
SMALLER = f'"nano": GPTConfig(n_layer=1, n_head=2, n_embd={WIDTH}'
REPEATED = """
from short_launches import repeat_pairs

repeat_pairs(pytest.MonkeyPatch())
"""
# Lines of a module of a workload, after its class Clock: ranks time by Clock.now_s. In the engine's
# modules, since a workload that replaces time.perf_counter_ns has no effect; what blocks claim
# stays below what the host's clock, which looks on, would call a disagreement.
CLOCK_OF_STEPS = """
from stepguard.worker import block_timer, rank_session

rank_session.perf_counter = lambda: Clock.now_s
rank_session.perf_counter_ns = block_timer.perf_counter_ns = lambda: round(1e9 * Clock.now_s)
"""


def launch_spec(folder: Path, **changes: Any) -> LaunchSpec:
    """Return what a launch of one rank on a CPU runs with, in a folder that is its tree too."""
    spec = LaunchSpec(
        device="cpu", preload=(), world_size=1, root=folder, folder=folder / "launch",
        cache=folder / "cache", label="launch 1", time_limit_s=BUSY_LIMIT_S)  # fmt: skip
    return replace(spec, **changes)


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up nothing early, however slow the machine is."""
    monkeypatch.setattr(worker_group, "HELLO_LIMIT_S", BUSY_LIMIT_S)
    for module in (worker_group, torchrun):
        monkeypatch.setattr(module, "GONE_LIMIT_S", BUSY_LIMIT_S)
    monkeypatch.setattr(nodes, "ASK_LIMIT_S", BUSY_LIMIT_S)
    monkeypatch.setattr(diagnosis, "STACKS_S", 60.0)
    monkeypatch.setattr(diagnosis, "ENDINGS_S", BUSY_LIMIT_S)


def shorten_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the launches of this process short and patient."""
    given = filter(None, [os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*given, str(Path(__file__).parent)]))
    # As if pytest had been started with it.
    monkeypatch.setattr(inherited, "STARTED", inherited.inherited_now())
    monkeypatch.setitem(warm_up.PROTOCOLS, "cpu", PROTOCOL)
    monkeypatch.setitem(warm_up.PAIR_PROTOCOLS, "cpu", PAIR_PROTOCOL)
    be_patient(monkeypatch)


def measured_alone(case: Case, bench: Bench) -> Evidence:
    """Return what all planned launches of a case measure, which nothing judges meanwhile."""
    found = measure(case, bench, Question(everything=True)).now
    assert found is not None
    return found


def repeat_pairs(monkeypatch: pytest.MonkeyPatch, real: int = REAL_PAIRS) -> None:
    """Let pairs beyond ``real`` be copies of those, for tests of what follows from many pairs."""
    do = Driver.do

    def repeated(driver: Driver, action: Next) -> None:
        if action.do is not Do.START or driver._state.number <= real:
            return do(driver, action)
        launches = [side.launches[-real] for side in driver._sides]
        copies: Any = {
            tree: SimpleNamespace(measured=lambda _, one=one: one, timed_a_compiler=False)
            for tree, one in enumerate(launches)
        }
        return driver._take_pair(copies)

    monkeypatch.setattr(Driver, "do", repeated)
