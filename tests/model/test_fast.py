"""The fast pass has the reference's loss and gradients: model.fast on a CPU, its operators replaced
by PyTorch's, which round where they round. With TRITON_INTERPRET=1 the Triton operators stay.

python -m pytest tests/model/test_fast.py
"""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from model.config import GPTConfig
from model.gpt import GPT
from model.workloads import make_optimizer, train_step

pytest.importorskip("triton")

from model import fast, kernels
from model.cublaslt import FASTEST
from model.fast import FastGPT

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TINY = GPTConfig(n_layer=2, n_head=2, n_embd=48, block_size=32, vocab_size=8256)


def multiply(a, b, out, transpose_a, transpose_b, epilogue, bias=None, aux=None, added=None):
    """What model.cublaslt has cuBLASLt do. The fastest kernel is known for each kind of product."""
    assert (transpose_a, transpose_b, epilogue) in FASTEST
    exact = (a.t() if transpose_a else a).float() @ (b.t() if transpose_b else b).float()
    for one in (bias, added):
        exact = exact if one is None else exact + one.float()
    if epilogue == kernels.GELU_AUX_BIAS:
        aux.copy_(exact)
        exact = F.gelu(exact, approximate="tanh")
    if epilogue == kernels.DGELU:
        exact = torch.ops.aten.gelu_backward(exact, aux.float(), approximate="tanh")
    out.copy_(exact)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = logits.float().requires_grad_()
        loss = F.cross_entropy(leaf, targets)
        loss.backward()
    logits.copy_(leaf.grad)
    return loss.detach()


def norm_backward(
    grad_y: Tensor, grad_x: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    by_x, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
        grad_y.float(), x.float(), weight.shape, mean, rstd, weight, weight, [True] * 3
    )
    grad = grad_x.float() + by_x
    return grad.bfloat16(), torch.stack((by_weight, by_bias, grad.sum(0)))


def pack(*grads: Tensor) -> tuple[Tensor, Tensor]:
    grad = torch.cat(grads, dim=1)
    return grad, grad.float().sum(0)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "multiply", multiply)
    for function in () if INTERPRETED else (cross_entropy, norm_backward, pack):
        monkeypatch.setattr(fast.kernels, function.__name__, function)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids, targets = torch.randint(101, (2, 4, 17), generator=generator)
    targets[1, ::3] = -100
    return ids, targets


def gradient(model: GPT) -> Tensor:
    """The whole one, in fp64."""
    return torch.cat([one.grad.flatten().double() for one in model.parameters()])


def one_less_cosine(a: Tensor, b: Tensor) -> float:
    return float(1 - a @ b / a.norm() / b.norm())


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_is_the_references(seed):
    """Its error against fp32 is at most 2.5 times autocast's; all parameters get one in fp32."""
    gradients = {}
    for name in ("fp32", "autocast", "fast"):
        model = GPT(TINY, seed=seed)
        torch.manual_seed(seed)
        for parameter in model.parameters():  # else no bias would matter
            parameter.data += 0.05 * torch.randn_like(parameter)
        network = FastGPT(model) if name == "fast" else model
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            loss = network(*batch(seed))
        (loss / 2).backward()
        assert all(one.grad.dtype == torch.float32 for one in model.parameters())
        gradients[name] = gradient(model)
    exact = gradients["fp32"]
    assert float(gradients["fast"].norm()) == pytest.approx(float(exact.norm()), rel=1e-2)
    limit = 2.5 * one_less_cosine(gradients["autocast"], exact)
    assert one_less_cosine(gradients["fast"], exact) < limit < 1e-3


@pytest.mark.skipif(INTERPRETED, reason="takes minutes in Triton's interpreter")
def test_it_learns_alike():
    """Over 60 steps its losses are within 2e-3 nats of autocast's."""
    losses = {}
    for name in ("autocast", "fast"):
        model = GPT(TINY)
        network = FastGPT(model) if name == "fast" else model
        optimizer = make_optimizer(model, lr=5e-4, weight_decay=0.1)
        curve = []
        for step in range(60):
            with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
                loss = network(*batch(step % 4))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if name == "fast":
                network.renew()
            curve.append(loss.detach())
        losses[name] = torch.stack(curve)
    assert losses["fast"][-1] < 0.8 * losses["fast"][0]
    assert (losses["fast"] - losses["autocast"]).abs().max() < 2e-3


def test_without_renewal_it_reads_old_parameters():
    """The copies are what products read."""
    model = GPT(TINY)
    network = FastGPT(model)
    before = float(network(*batch(0)))
    with torch.no_grad():
        model.h[0].mlp.c_proj.weight.mul_(20)
    assert float(network(*batch(0))) == before
    network.renew()
    assert float(network(*batch(0))) != before


def test_it_has_no_parameters_of_its_own():
    """The optimizer and a checkpoint see the model's, in fp32."""
    model = GPT(TINY)
    assert [id(one) for one in FastGPT(model).parameters()] == [id(o) for o in model.parameters()]


def test_flops_are_counted():
    """torch's counter sees as many as in the reference."""
    model = GPT(TINY)
    counts = []
    for network in (model, FastGPT(model)):
        with FlopCounterMode(display=False) as counter:
            network(*batch(0)).backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_a_cpu_falls_back():
    """There, a step that is asked to be fast is the reference's, bit for bit."""
    common = {"size": "tiny", "batch": 2, "seq": 16, "precision": "bf16", "compile": False}
    reference, asked = (train_step(**common, device="cpu", fast=fast) for fast in (False, True))
    for _ in range(3):
        assert torch.equal(reference.step(), asked.step())
