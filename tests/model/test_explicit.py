"""Attention in its parts: the same mathematics as the fused one, and a phase for each part."""

import pytest
import torch

from model.explicit import PARTS, REST, explicit_attention, rotated
from model.workloads import forward_backward

SMALL = {"size": "nano", "batch": 2, "seq": 32, "precision": "fp32", "device": "cpu"}


def test_the_same_loss_and_gradients_as_fused():
    """Part by part it is the model that is guarded."""
    explicit = explicit_attention(**SMALL)
    fused = forward_backward(**SMALL, compile=False)
    assert explicit.step().item() == pytest.approx(fused.step().item(), rel=1e-6)
    ours, theirs = (dict(one.model.named_parameters()) for one in (explicit, fused))
    assert ours.keys() == theirs.keys()
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("rope", [False, True])
def test_each_part_is_a_phase(rope):
    """In order, in each layer; what comes after an attention is none of its parts."""
    workload, seen = explicit_attention(**SMALL, rope=rope), []
    workload.on_phase = seen.append
    workload.step()
    parts = [name for name in PARTS if rope or name != "rope"]
    layers = len(workload.model.h)
    assert seen == ["forward", *[*parts, REST] * layers, "backward"]
    assert set(seen) == set(workload.phases)


def test_rotary_positions_keep_lengths_and_see_distances():
    """A rotation changes no length; a product depends on the distance of two positions alone."""
    x = torch.randn(1, 1, 1, 8).expand(1, 1, 16, 8)
    turned = rotated(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    scores = turned[0, 0] @ turned[0, 0].T
    torch.testing.assert_close(scores.diagonal(3), scores[0, 3].expand(13), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(scores[0, 1], scores[0, 9])


def test_what_it_cannot_be():
    """A mistyped value is an error of one line."""
    with pytest.raises(ValueError, match="passes is 'both'; possible: forward, forward_backward"):
        explicit_attention(**SMALL, passes="both")
