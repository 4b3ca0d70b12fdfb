"""Lines of what outlives a step: programs that keep known bytes of known lines."""

import gc
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from stepguard.core.metrics import BETWEEN_STEPS, LEAK, PEAK
from stepguard.core.site import Site
from stepguard.worker.counters import kept_memory
from stepguard.worker.counters.kept_memory import locate_kept
from stepguard.worker.counters.syncs import site_here
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.rank_position import Phases

N = 1 << 10  # a tensor of it has 4 KiB

pytestmark = pytest.mark.usefixtures("own_heap")


def places(make, leaked=1, metric=LEAK):
    """The places of a leak in a step that ``make(phases)`` returns: bytes, source, phase."""
    phases, tally = Phases(), Tally(values={LEAK: leaked, BETWEEN_STEPS: 0})
    step = make(phases)
    step()
    locate_kept(tally, RankStep(step, torch.device("cpu"), phases))
    return [(site.count, site.text, site.phase) for site in tally.sites.get(metric, ())]


def test_each_line_has_its_bytes_and_the_largest_comes_first():
    """4 and 12 KiB a step of two lines; what the step frees, replaces or fills in has none."""

    def make(phases):
        kept, state = [], {}

        def step():
            phases("forward")
            kept.append(torch.ones(N))
            weight = torch.ones(N, requires_grad=True)
            phases("optimizer")
            kept.append((weight * 2).repeat(3).detach())
            state["last"] = torch.zeros(9 * N).add_(1)

        return step

    assert places(make) == [
        (12 * N, "kept.append((weight * 2).repeat(3).detach())", "optimizer"),
        (4 * N, "kept.append(torch.ones(N))", "forward"),
    ]


def test_gradients_that_are_kept_have_the_line_of_their_forward_operator(monkeypatch):
    """A thread of autograd's, which runs a GPU's backward pass, has no line."""

    def make(phases):
        weight, kept = torch.ones(1, N, requires_grad=True), []

        def step():
            loss = (weight @ torch.ones(N, 1)).sum()
            loss.backward()
            kept[:] = [weight.grad]
            weight.grad = None

        return step

    def threaded(what, phases, count):
        backward = torch._C._current_autograd_node() is not None
        return Site(what, count=count) if backward else site_here(what, phases, count)

    assert places(make, metric=BETWEEN_STEPS) == [(4 * N, "loss.backward()", "backward")]
    monkeypatch.setattr(kept_memory, "site_here", threaded)
    line = "loss = (weight @ torch.ones(N, 1)).sum()"
    assert places(make, metric=BETWEEN_STEPS) == [(4 * N, line, "backward")]


def test_what_a_step_drops_is_freed_at_once():
    """The step needs no more memory than otherwise, even if Python's collector never runs."""
    freed = []

    def make(phases):
        def step():
            dropped = torch.ones(N)
            of_dropped = StorageWeakRef(dropped.untyped_storage())
            del dropped
            freed.append(of_dropped.expired())

        return step

    gc.disable()
    try:
        assert places(make, leaked=0) == []
    finally:
        gc.enable()
    assert len(freed) > 1 and all(freed)


def test_what_only_a_graph_holds_has_its_line():
    """A loss that is kept keeps what its backward pass would read."""

    def make(phases):
        losses, weight = [], torch.ones(N, requires_grad=True)

        def step():
            activation = weight.exp()
            losses.append(activation.sum())

        return step

    assert places(make) == [
        (4 * N, "activation = weight.exp()", ""),
        (4, "losses.append(activation.sum())", ""),
    ]


def test_the_peak_has_the_lines_of_what_is_alive_at_it():
    """4 KiB of one line, and 16 of another: not what was freed before, nor what is made after."""

    def make(phases):
        def step():
            activation = torch.ones(3 * N)
            activation = torch.ones(N)
            phases("forward")
            grown = activation.repeat(4)
            del activation, grown
            torch.ones(N)

        return step

    assert places(make, metric=PEAK) == [
        (4 * N, "activation = torch.ones(N)", ""),
        (16 * N, "grown = activation.repeat(4)", "forward"),
    ]


def test_numbers_of_the_host_have_their_line():
    """torch.tensor() shows no operator that allocates."""

    def make(phases):
        kept = []
        return lambda: kept.append(torch.tensor([1.0] * 100))

    assert places(make) == [(400, "return lambda: kept.append(torch.tensor([1.0] * 100))", "")]


@pytest.mark.parametrize("length", [1, 2])
def test_buffers_that_are_replaced_in_turns_are_no_place(length):
    """What is there until the next but one step is freed is not left behind."""

    def make(phases):
        buffers = deque(maxlen=length)
        return lambda: buffers.append(torch.ones(N))

    assert places(make) == []


def test_a_line_every_other_step_has_half_its_bytes():
    """As the count of the leak has it."""

    def make(phases):
        kept, steps = [], []

        def step():
            steps.append(0)
            if len(steps) % 2:
                kept.append(torch.ones(N))

        return step

    assert places(make) == [(2 * N, "kept.append(torch.ones(N))", "")]


def test_what_lives_between_steps_has_a_place_for_each_operator_of_a_line():
    """Kept logits and a kept product; gradients, what is freed or was there before have none."""

    def make(phases):
        weight = torch.ones(N, requires_grad=True)
        bias = torch.ones(N, requires_grad=True)
        module = SimpleNamespace()

        def step():
            weight.grad = bias.grad = None
            phases("forward")
            logits = weight.exp() + bias.sum()
            module.logits, module.both = logits, [logits * 2, logits + 1]
            phases("backward")
            logits.sum().backward()

        return step

    assert places(make, leaked=0, metric=BETWEEN_STEPS) == [
        (4 * N, "logits = weight.exp() + bias.sum()", "forward"),
        (4 * N, "module.logits, module.both = logits, [logits * 2, logits + 1]", "forward"),
        (4 * N, "module.logits, module.both = logits, [logits * 2, logits + 1]", "forward"),
    ]


def test_a_leak_that_does_not_fit_eagerly_has_no_lines():
    """Out of memory after the count: the leak is said without its places."""

    def make(phases):
        steps = []

        def step():
            steps.append(0)
            if len(steps) > 1:
                raise torch.OutOfMemoryError

        return step

    assert places(make) == []
