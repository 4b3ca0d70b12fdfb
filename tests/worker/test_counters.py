"""The counting pass as a whole."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from whole_pass import count

from stepguard.core import metrics
from stepguard.core.metrics import METRICS
from stepguard.core.step_numbers import LOSS
from stepguard.worker.counters.counting import COUNTERS, SETTLING_STEPS, count_without_compiler
from stepguard.worker.counters.numbers import STEPS
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.rank_session import Session

pytestmark = pytest.mark.usefixtures("own_heap")


def test_each_row_is_counted_in_one_place_and_part():
    """But for tokens, which the workload says, numbers, which are taken while steps settle, and
    recompiles, those of all the steps of a part.
    """
    counted = [name for counter in COUNTERS for name in counter.metrics]
    assert len({*counted}) == len(counted)
    assert {*metrics.COUNTERS} - {*counted} == {"numbers", "recompiles", "tokens_per_step"}
    for counter in COUNTERS:
        assert {METRICS[name].eager for name in counter.metrics} == {counter.eager}


def test_lines_that_grow_are_counted_in_a_launch_that_ran_no_step():
    """Its first step does more than others once, which hides nothing."""
    built, history = [], []

    def step():
        for _ in range(0 if built else 100):
            built.append(0)
        history.append(0)
        for _ in history:
            pass
        return torch.ones(4, 4) @ torch.ones(4, 4)

    tally = Tally()
    count_without_compiler(RankStep(step, torch.device("cpu")), lambda text: None, tally)
    assert tally.values["growing_python_lines_per_step"] == 2
    assert tally.values["flops_per_step"] == 128


def test_tokens_are_those_of_the_counted_steps():
    """A workload that adds them up has said 64 when it was built, and then 64 more each step. What
    a step returns is its loss.
    """
    session, rank = Session.__new__(Session), RankStep(lambda: None, torch.device("cpu"))
    said = itertools.count(64, 64)
    session.workload = SimpleNamespace(tokens_per_step=next(said))

    def step():
        session.workload.tokens_per_step = next(said)
        return torch.ones(4).sum()

    session.workload.step = step
    session.device, session.phases, session.placement = rank.device, rank.phases, rank.placement
    session.channel = SimpleNamespace(world_size=1, any=bool, reply=lambda message: None)
    session.note = SimpleNamespace(command=lambda text: None)
    session._frozen, session._settings, session.in_group = 0, {}, False
    session.workload.step()
    found = session.do_count()
    assert found.tokens_per_step == 64 * (SETTLING_STEPS + 4.5)
    assert found.counts.numbers.of_steps == {LOSS: [[4.0]] * STEPS}


def test_eager_counts_rest_on_two_steps():
    """Every other step does a product more: FLOPs and calls are lists of both."""
    a = torch.ones(4, 4)
    parity = itertools.count()

    def step():
        for _ in range(1 + next(parity) % 2):
            a @ a

    found = count(RankStep(step, torch.device("cpu")))
    for metric, seen in (("flops_per_step", {128, 256}), ("operator_calls_per_step", {1, 2})):
        assert {*found["lists"][metric]} == seen and found["values"][metric] == sum(seen)
    steady = count(RankStep(lambda: a @ a, torch.device("cpu")))
    assert steady["values"]["flops_per_step"] == 128
    assert steady["values"]["operator_calls_per_step"] == 1
    assert not steady["lists"] and not steady["unstable"]


def test_each_launch_counts_the_same_steps():
    """By their number since the first one. So what a loop does now and then is in all launches."""

    def launch():
        a, number = torch.ones(4, 4), itertools.count()

        def step():
            for _ in range(1 + (next(number) % 3 == 0)):
                a @ a

        step()
        return count(RankStep(step, torch.device("cpu")))

    first, again = launch(), launch()
    assert first["after_steps"] == again["after_steps"] == SETTLING_STEPS
    assert first["lists"] == again["lists"] and first["lists"]
    assert first["values"] == again["values"]
