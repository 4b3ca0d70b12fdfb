"""Graphs that outlive their step: programs that keep a known number of autograd's nodes."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch

from stepguard.core.metrics import GRAPH_NODES
from stepguard.worker.counters.kept_memory import locate_graph_nodes
from stepguard.worker.counters.memory_counters import count_left
from stepguard.worker.counters.tally import RankStep, Tally

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("own_heap")


def counted(step):
    """The nodes a step of a program, and their places: (count, source)."""
    tally = Tally()
    step()
    program = RankStep(step, CPU)
    program.run_period()
    count_left(tally, program)
    locate_graph_nodes(tally, program)
    places = [(site.count, site.text) for site in tally.sites.get(GRAPH_NODES, ())]
    return tally.values[GRAPH_NODES], places


def training(keep):
    """A step with a loss of two nodes and a leaf, which ``keep`` gets."""
    weight = torch.ones(4, requires_grad=True)

    def step():
        weight.grad = None
        loss = weight.exp().sum()
        loss.backward()
        keep(loss)

    return step


def test_a_sum_of_losses_keeps_each_steps_graph_and_has_the_line_that_adds():
    """exp, sum and add: three nodes a step. The leaf's own is the same in every step."""
    total = SimpleNamespace(loss=torch.zeros(()))

    def keep(loss):
        total.loss = total.loss + loss

    assert counted(training(keep)) == (3, [(3, "total.loss = total.loss + loss")])


def test_a_list_of_losses_has_the_line_of_the_loss():
    """exp and sum."""
    losses = []
    assert counted(training(losses.append)) == (2, [(2, "loss = weight.exp().sum()")])


def test_a_node_that_is_kept_without_its_tensor_counts():
    """It keeps the graph as well."""
    nodes = []
    assert counted(training(lambda loss: nodes.append(loss.grad_fn)))[0] == 2


@pytest.mark.parametrize("length", [0, 1, 2])
def test_what_is_detached_or_replaced_is_no_growth(length):
    """A float, and the graphs of the last one or two steps."""
    last, total = deque(maxlen=length), SimpleNamespace(loss=torch.zeros(()))

    def keep(loss):
        total.loss = total.loss + loss.detach()
        last.append(loss)

    assert counted(training(keep)) == (0, [])


def test_one_step_in_four_is_still_one():
    """Growth is rounded up, so that none is only where there is none."""
    kept, steps = [], []

    def keep(loss):
        steps.append(0)
        if len(steps) % 4 == 0:
            kept.append(loss)

    assert counted(training(keep))[0] == 1


def test_a_compiled_step_has_the_line_of_its_eager_one():
    """The compiler makes one node of the graph; the lines are those of the step without it."""
    total = SimpleNamespace(loss=torch.zeros(()))
    loss_of = torch.compile(lambda weight: weight.exp().sum(), backend="aot_eager")
    weight = torch.ones(4, requires_grad=True)

    def step():
        weight.grad = None
        loss = loss_of(weight)
        loss.backward()
        total.loss = total.loss + loss

    assert counted(step) == (2, [(3, "total.loss = total.loss + loss")])
