"""The numbers of steps, without a launch: what is taken of which form of a step."""

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from benchmarks.step_numbers import ROW, take_numbers
from stepguard.worker.counters.collector import note_frozen
from stepguard.worker.counters.tally import RankStep

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
        self.scaler.unscale_(self.optimizer)
        before = [p.detach().clone() for p in self.layer.parameters()]
        self.seen.append([float(p.grad.double().norm()) for p in self.layer.parameters()])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        after = zip(self.layer.parameters(), before, strict=True)
        self.seen[-1] += [float((p.detach() - old).double().norm()) for p, old in after]
        self.optimizer.zero_grad()
        return total if self.returns else None


def taken(step, steps=2):
    """The numbers of these steps."""
    return take_numbers(RankStep(step, torch.device("cpu"), frozen=note_frozen()), steps)


@pytest.mark.parametrize(
    "form",
    [{}, {"scaled": True}, {"wrap": torch.compile}, {"returns": False}],
    ids=["plain", "scaled", "compiled", "loss of backward"],
)
def test_each_parameter_has_the_norms_that_its_optimizer_saw(form):
    """Of gradients that are added up and unscaled, under the name that its module gives it. A step
    that returns no loss has the sum of its backward passes'.
    """
    training = Training(**form)
    found = taken(training.step).values
    sampled = (WIDTH * WIDTH // 2) / WIDTH**2  # every second element of the weight
    for index, name in enumerate(["0.weight", "0.bias"]):
        seen = [step[index] for step in training.seen]
        assert found[f"gradient of {name}"] == pytest.approx(seen, rel=1e-6)
    moved = [step[2] for step in training.seen]
    assert found["update of 0.weight"] == pytest.approx([m * sampled**0.5 for m in moved], rel=0.1)
    assert found["update of 0.bias"] == pytest.approx([step[3] for step in training.seen], rel=1e-6)
    again = Training().step
    assert found["loss"] == pytest.approx([float(again()), float(again())], rel=1e-6)


def test_a_step_without_an_optimizer_has_the_gradients_that_it_leaves():
    """And a forward pass its loss alone."""
    model = nn.Linear(3, 1)

    def forward():
        return model(torch.ones(2, 3)).mean()

    def backward():
        model.zero_grad()
        forward().backward()

    assert set(taken(forward).values) == {"loss"}
    assert set(taken(backward).values) == {"loss", "gradient of weight", "gradient of bias"}
    assert taken(backward, 1).values["gradient of bias"] == [1.0]


def test_the_options_that_change_the_mathematics_are_known_by_group():
    """Those of form are not: fused, foreach, capturable."""
    training = Training()
    training.optimizer = torch.optim.AdamW(
        [{"params": [training.layer.weight]}, {"params": [training.layer.bias], "eps": 1e-3}]
    )
    options = taken(training.step).options
    assert {"AdamW, group 0: eps = 1e-08", "AdamW, group 1: eps = 0.001"} <= {*options}
    assert not [one for one in options if "foreach" in one]


def test_nothing_hears_the_steps_that_follow():
    """A timed step runs none of this."""
    training, backward = Training(), torch.autograd.backward
    hooks = (
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    before = [*map(len, hooks)]
    taken(training.step)
    assert torch.autograd.backward is backward and [*map(len, hooks)] == before


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
    found = taken(step).values
    step()
    assert len(graphs) == compiled
    assert "loss" in found
