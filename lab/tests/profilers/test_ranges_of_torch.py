"""Ranges around what torch calls for a script."""

import torch
from range_recorder import recorder

from stepguard_lab.profilers.ranges_of_torch import ranges_of_torch


def test_what_torch_calls_for_a_script_lies_in_ranges():
    """Each backward pass and each optimizer's step, with what it calls: a closure's backward pass
    is inside. Behind the block nothing is left.
    """
    seen, opened, entered = recorder()
    weight = torch.ones(2, requires_grad=True)
    first, second = torch.optim.AdamW([weight]), torch.optim.LBFGS([weight], max_iter=1)

    def loss():
        found = (weight * 2).sum()
        found.backward()
        return found

    with ranges_of_torch(entered):
        for _ in range(2):
            loss()
        first.step()
        second.step(loss)
        torch.autograd.grad((weight * 2).sum(), weight)
    assert seen == ["backward", "backward", "optimizer", "optimizer", "optimizer/backward"]
    loss()
    first.step()
    assert len(seen) == 5 and not opened
