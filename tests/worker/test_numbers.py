"""The numbers of steps, without a launch: what is taken of which form of a step."""

import math

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint

from stepguard.core.metrics import NUMBERS
from stepguard.core.step_numbers import LOSS, UPDATE, UPDATES, WHOLE
from stepguard.worker.counters.collector import note_frozen
from stepguard.worker.counters.numbers import ROW, STEPS, count_numbers
from stepguard.worker.counters.tally import RankStep, Tally

WIDTH = 40  # the weight's norm has whole rows, and a rest
assert WIDTH * WIDTH > ROW


class Training:
    """Two micro-steps and a step of SGD, in the form that a test asks for."""

    def __init__(self, wrap=lambda model: model, scaled=False, returns=True):
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.model = wrap(nn.Sequential(self.layer))
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.5)
        self.scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=1024.0)
        self.returns, self.seen = returns, []

    def step(self):
        total = torch.zeros(())
        for _ in range(2):
            loss = self.model(torch.ones(4, WIDTH)).square().mean() / 2
            self.scaler.scale(loss).backward()
            total += loss.detach()
            loss.detach().mul_(3)  # as a line that logs it may
        self.scaler.unscale_(self.optimizer)
        before = [p.detach().clone() for p in self.layer.parameters()]
        gradients = [p.grad.clone() for p in self.layer.parameters()]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        after = zip(self.layer.parameters(), before, strict=True)
        self.seen.append((gradients, [p.detach() - old for p, old in after]))
        self.optimizer.zero_grad()
        return total if self.returns else None


def taken(step):
    """The numbers of the first steps, and the options of their optimizers."""
    tally = Tally()
    count_numbers(tally, RankStep(step, torch.device("cpu"), frozen=note_frozen()))
    assert tally.values[NUMBERS] == len(tally.numbers.listed)
    return tally.numbers.of_steps, [*tally.detail[NUMBERS]]


def thirds(gradient):
    """The norms of a gradient's parts."""
    return [float(part.norm()) for part in gradient.double().reshape(-1).chunk(3)]


@pytest.mark.parametrize("form", [
    {}, {"scaled": True}, {"wrap": torch.compile}, {"returns": False},
], ids=["plain", "scaled", "compiled", "loss of backward"])  # fmt: skip
def test_each_parameter_has_the_norms_that_its_optimizer_saw(form):
    """Of gradients that are added up and unscaled, under the name that its module gives it. A step
    that returns no loss has the sum of its backward passes'.
    """
    training = Training(**form)
    found, _ = taken(training.step)
    scale = 1024.0 if "scaled" in form else 1.0
    for step, (gradients, moved) in enumerate(training.seen):
        for name, gradient in zip(["0.weight", "0.bias"], gradients, strict=True):
            assert found[f"gradient of {name}"][step] == pytest.approx(thirds(gradient), rel=1e-6)
        whole = math.hypot(*(float(gradient.norm()) for gradient in gradients))
        assert found[WHOLE][step] == [pytest.approx(scale * whole, rel=1e-6)]
        weight, bias = (float(one.double().norm()) for one in moved)
        sampled = 0.5**0.5 * weight  # every second element of the weight
        assert found[f"{UPDATE}0.weight"][step] == [pytest.approx(sampled, rel=0.1)]
        assert found[f"{UPDATE}0.bias"][step] == [pytest.approx(bias)]
        assert found[UPDATES][step] == [pytest.approx(math.hypot(sampled, bias), rel=0.1)]
    again = Training().step
    assert found[LOSS] == [[pytest.approx(float(again()), rel=1e-6)] for _ in range(STEPS)]


def test_a_step_without_an_optimizer_has_the_gradients_that_it_leaves():
    """And a forward pass its loss alone."""
    model = nn.Linear(3, 1)

    def forward():
        return model(torch.ones(2, 3)).mean()

    def backward():
        model.zero_grad()
        forward().backward()

    assert {*taken(forward)[0]} == {LOSS}
    found, _ = taken(backward)
    assert {*found} == {LOSS, WHOLE, "gradient of weight", "gradient of bias"}
    assert found["gradient of bias"] == [[1.0]] * STEPS


def by_hand(model):
    return torch.autograd.grad(model(torch.ones(2, 3)).mean(), [*model.parameters()])


def penalised(model):
    """Gradients of data, and then those of the optimizer's parameters."""
    model.zero_grad()
    data = torch.ones(2, 3, requires_grad=True)
    (force,) = torch.autograd.grad(model(data).mean(), data, create_graph=True)
    (model(data).mean() + force.sum()).backward()


def mapped(model):
    """One gradient for each of a batch, and one inside of torch.func: no parameter's."""
    each = model(torch.ones(3, 3)).squeeze()
    torch.autograd.grad(each, model.bias, torch.eye(3), is_grads_batched=True)
    torch.func.grad(lambda bias: bias.sum())(model.bias)
    torch.func.vmap(torch.func.grad(lambda bias: bias.sum()))(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (by_hand, {LOSS, "gradient of weight", "gradient of bias"}),
        (penalised, {LOSS, WHOLE, "gradient of weight", "gradient of bias"}),
        (mapped, set()),
    ],
)
def test_a_gradient_that_a_step_is_given_counts_as_one(step, names):
    """Unless the step computes others that it leaves behind or gives to an optimizer."""
    model = nn.Linear(3, 1)
    found, _ = taken(lambda: step(model) and None)
    assert {*found} == names
    if names:
        assert found["gradient of bias"] == [[1.0]] * STEPS


def test_a_backward_pass_inside_of_another_is_a_part_of_it():
    """A checkpoint that computes the loss begins one more."""
    model = nn.Linear(3, 1)
    data = torch.ones(2, 3, requires_grad=True)

    def step():
        model.zero_grad()
        checkpoint(lambda given: model(given).mean(), data, use_reentrant=True).backward()

    found, _ = taken(step)
    assert found[LOSS] == [[pytest.approx(float(model(data).mean()))]] * STEPS
    assert found["gradient of bias"] == [[1.0]] * STEPS


def test_an_optimizer_that_calls_a_closure_has_the_gradients_that_it_computes():
    """Also if none is left for the next step."""
    training = Training()
    parameters = [*training.layer.parameters()]

    def gradients():
        training.model(torch.ones(4, WIDTH)).square().mean().backward()

    gradients()
    expected = thirds(parameters[0].grad)
    training.optimizer.zero_grad()
    found, options = taken(
        lambda: (training.optimizer.step(gradients), training.optimizer.zero_grad())
    )
    assert found["gradient of 0.weight"][0] == pytest.approx(expected)
    assert found[f"{UPDATE}0.weight"][0][0] > 0
    assert f"SGD, group 0: elements = {WIDTH * WIDTH + WIDTH}" in options


def test_a_loss_of_sharded_parameters_is_one_beside_others():
    """Of a model that is distributed over a mesh."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = distribute_module(nn.Linear(3, 1), init_device_mesh("cpu", (1,)))

        def step():
            model.zero_grad()
            loss = model.bias.sum() * 2.0
            loss.backward()
            return loss.detach()

        found, _ = taken(step)
    finally:
        dist.destroy_process_group()
    assert found["gradient of bias"] == [[2.0]] * STEPS
    assert LOSS in found


def test_parameters_of_one_name_are_one():
    """No gradient or update hides another: those of two models, or of two optimizers that step in
    turns.
    """
    first, second = (nn.Linear(3, width) for width in (1, 2))

    def step():
        for model, times in ((first, 3.0), (second, 4.0)):
            first.zero_grad(), second.zero_grad()
            (times * model.bias.sum() + (times - 3.0) * model.weight[0, 0]).backward()
            torch.optim.SGD([model.bias, second.weight], lr=1.0).step()

    found, _ = taken(step)
    assert found["gradient of bias"] == [[5.0, 4.0]] * STEPS
    assert found[f"{UPDATE}bias"] == [[pytest.approx(41**0.5)]] * STEPS
    assert found[UPDATES] == [[pytest.approx(42**0.5)]] * STEPS


def test_a_step_that_lacks_a_gradient_has_zeros():
    """An expert that only the second step asks keeps its step."""
    model, calls = nn.Linear(3, 1), []

    def step():
        model.zero_grad()
        calls.append(model.weight.sum() + (model.bias.sum() if calls else 0.0))
        calls[-1].backward()

    found, _ = taken(step)
    assert found["gradient of bias"] == [[0.0], [1.0]]


def test_a_gradient_of_complex_numbers_has_a_norm():
    """And its parameter an update."""
    model = nn.Module()
    model.weight = nn.Parameter(torch.full((1,), 3.0 + 4.0j))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step():
        model.zero_grad()
        (model.weight * model.weight.conj()).real.sum().backward()
        optimizer.step()

    found, _ = taken(step)
    assert found["gradient of weight"][0] == [6.0, 8.0]
    assert found[f"{UPDATE}weight"][0] == [pytest.approx(10.0)]


@pytest.mark.parametrize("roots", [
    lambda loss: (one for one in [loss, loss]),
    lambda loss: [get_gradient_edge(loss), get_gradient_edge(loss)],
], ids=["generator", "edges"])  # fmt: skip
def test_a_backward_pass_starts_from_whatever_torch_takes(roots):
    """An iterator is read once, and an edge of the graph has no loss."""
    model = nn.Linear(3, 1)

    def step():
        model.zero_grad()
        loss = model.bias.sum()
        torch.autograd.backward(roots(loss), grad_tensors=[torch.tensor(1.0)] * 2)

    found, _ = taken(step)
    assert found["gradient of bias"] == [[2.0]] * STEPS


def test_what_is_not_finite_is_known_as_such():
    """A gradient that overflows has no norm, in the step where it does."""
    training = Training()
    training.step()
    with torch.no_grad():
        training.layer.bias[0] = math.inf
    found, _ = taken(training.step)
    assert found[LOSS][0] == [None] and None in found["gradient of 0.weight"][0]


def test_the_options_that_change_the_mathematics_are_known_by_group():
    """With the elements that have a gradient, and of a schedule the digits that mean something.
    Those of form are not: fused, foreach, capturable.
    """
    training = Training()
    weight, bias = training.layer.parameters()
    frozen = nn.Parameter(torch.ones(3))
    training.optimizer = torch.optim.AdamW(
        [{"params": [weight, frozen], "lr": 0.1 + 0.2}, {"params": [bias], "eps": 1e-3}]
    )
    decay = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    _, options = taken(lambda: (training.step(), decay.step()))
    assert {"AdamW, group 0: eps = 1e-08", "AdamW, group 1: eps = 0.001"} <= {*options}
    assert {"AdamW, group 0: lr = 0.3, 0.15", f"AdamW, group 1: elements = {WIDTH}"} <= {*options}
    assert f"AdamW, group 0: elements = {WIDTH * WIDTH}" in options
    assert not [one for one in options if "foreach" in one]


@pytest.mark.parametrize(("made", "said"), [
    ({"weight_decay": 0}, "weight_decay = 0.0"),
    ({"lr": torch.tensor(0.3)}, "lr = 0.3"),
    ({"betas": [0.9, 0.99]}, "betas = (0.9, 0.99)"),
    ({"betas": (0.9, numpy.float64(0.99))}, "betas = (0.9, 0.99)"),
])  # fmt: skip
def test_an_option_has_one_form(made, said):
    """Whatever the type of its value."""
    training = Training()
    training.optimizer = torch.optim.AdamW(training.layer.parameters(), **made)
    assert f"AdamW, group 0: {said}" in taken(training.step)[1]


def test_options_are_those_of_any_optimizer():
    """With its own words; what a group holds besides is none."""
    training = Training()
    training.optimizer = torch.optim.RMSprop(training.layer.parameters(), alpha=0.5)
    training.optimizer.param_groups[0] |= {"hook": print, "state": torch.ones(3)}
    _, options = taken(training.step)
    assert "RMSprop, group 0: alpha = 0.5" in options
    assert not [one for one in options if "hook" in one or "state" in one]


def test_nothing_hears_the_steps_that_follow():
    """A timed step runs none of this."""
    training, run = Training(), torch.autograd._engine_run_backward
    hooks = (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    before = [*map(len, hooks)]
    taken(training.step)
    assert torch.autograd._engine_run_backward is run and [*map(len, hooks)] == before


def test_a_compiled_step_of_an_optimizer_is_not_compiled_anew():
    """Its numbers are the loss and what the options say: the hooks run only where nothing is
    compiled.
    """
    torch._dynamo.reset()
    training, graphs = Training(), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    update = torch.compile(training.optimizer.step, backend=backend)

    def step():
        training.optimizer.zero_grad()
        training.model(torch.ones(4, WIDTH)).square().mean().backward()
        update()

    step()
    step()
    compiled = len(graphs)
    found, _ = taken(step)
    step()
    assert len(graphs) == compiled
    assert LOSS in found
