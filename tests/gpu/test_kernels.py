"""Operators of model.kernels and the fast step, on a GPU.

python -m pytest tests/gpu/test_kernels.py
"""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from model.config import SIZES, GPTConfig
from model.gpt import GPT

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
if torch.cuda.is_available():
    from kernel_checks import check_cross_entropy, check_norm_backward, check_pack, near

    from model import kernels
    from model.fast import FastGPT
    from model.workloads import train_step

BF16_RTOL = 3e-3  # of a result's norm: one rounding to bf16 costs 1.7e-3, a rounded input as much


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows, columns", [(1, 8), (77, 1000), (301, 50304)])
def test_cross_entropy(rows, columns, seed):
    """Loss and gradient agree with fp64, also where targets are masked."""
    check_cross_entropy("cuda", rows, columns, seed, torch.bfloat16, BF16_RTOL)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows, columns", [(1, 8), (77, 100), (4099, 768)])
def test_norm_backward(rows, columns, seed):
    """All four results agree with fp64."""
    check_norm_backward("cuda", rows, columns, seed, torch.bfloat16, BF16_RTOL)


@pytest.mark.parametrize("rows, columns", [(1, 8), (77, 100), (4099, 768)])
def test_pack(rows, columns):
    """Exactly the concatenation, and its column sums."""
    check_pack("cuda", rows, columns, 0, torch.bfloat16)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows, width", [(8, 64), (1000, 768), (328, 72)])
def test_products(rows, width, seed):
    """Each product agrees with fp64 at shapes that are no multiple of a tile."""
    torch.manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    x, wide = random(rows, width), random(rows, 4 * width)
    bias, wide_bias = random(width), random(4 * width)
    fc, proj = random(4 * width, width) / width**0.5, random(width, 4 * width) / width**0.5
    gelu, before = kernels.linear_gelu(x, fc, wide_bias)
    exact = x.double() @ fc.double().t() + wide_bias.double()
    near(before, exact, BF16_RTOL)
    near(gelu, F.gelu(exact, approximate="tanh"), BF16_RTOL)

    leaf = before.double().requires_grad_()
    F.gelu(leaf, approximate="tanh").backward(x.double() @ proj.double())
    near(kernels.linear_gelu_backward(x, proj, before), leaf.grad, BF16_RTOL)

    added = kernels.product(wide, proj, bias, x, transpose_b=True)
    near(added, x.double() + wide.double() @ proj.double().t() + bias.double(), BF16_RTOL)
    grad = kernels.product(wide, x, transpose_a=True, fp32=True)
    assert grad.dtype == torch.float32
    near(grad, wide.double().t() @ x.double(), 1e-5)


def test_flops_are_counted():
    """torch's counter sees the FLOPs of the reference in the fast pass."""
    model = GPT(GPTConfig(2, 2, 64, 32, 256), device="cuda")
    ids = torch.randint(0, 256, (4, 32), device="cuda")
    counts = []
    for network in (model.bfloat16(), FastGPT(model.float())):
        with FlopCounterMode(display=False) as counter:
            network(ids, ids).backward()
        counts.append(counter.get_total_flops())
        model.zero_grad()
    assert counts[0] == counts[1] > 0


def test_the_gradient_is_the_references():
    """Of GPT-2 124M as it is initialised; its error is at most 2.5 times that of autocast."""
    torch.manual_seed(0)
    ids, targets = torch.randint(0, 50257, (2, 4, 1024), device="cuda")
    gradients = {}
    for name in ("fp32", "autocast", "fast"):
        torch.set_float32_matmul_precision("highest")
        model = GPT(SIZES["124m"], device="cuda")
        network = FastGPT(model) if name == "fast" else model
        with torch.autocast("cuda", torch.bfloat16, enabled=name == "autocast"):
            loss = network(ids, targets)
        loss.backward()
        gradients[name] = torch.cat([one.grad.flatten().double() for one in model.parameters()])

    def apart(a, b):
        return 1 - torch.dot(gradients[a], gradients[b]) / gradients[a].norm() / gradients[b].norm()

    assert apart("fast", "autocast") < 1e-4
    assert apart("fast", "fp32") < 2.5 * apart("autocast", "fp32")


def test_an_update_is_adamw_of_the_gradient():
    """Parameters after a fast step are those of AdamW in fp32 with the same gradient, bit for bit,
    and the copies are those parameters rounded.
    """
    step = train_step(size="nano", batch=4, seq=64, precision="bf16", compile=False, fast=True)
    twin = [one.detach().clone() for one in step.model.parameters()]
    seen = []
    step.optimizer.register_step_pre_hook(
        lambda *_: seen.extend(one.grad.clone() for one in step.model.parameters())
    )
    step.step()
    decayed = [{"params": [p for p in twin if p.dim() >= 2], "weight_decay": 0.1}]
    rest = [{"params": [p for p in twin if p.dim() < 2], "weight_decay": 0.0}]
    for one, grad in zip(twin, seen, strict=True):
        one.grad = grad
    torch.optim.AdamW(decayed + rest, lr=6e-4, betas=(0.9, 0.95), fused=True).step()
    for one, other in zip(twin, step.model.parameters(), strict=True):
        assert torch.equal(one, other)
    for one, half in zip(twin, step._fast._copies[0].parameters(), strict=True):
        assert torch.equal(one.bfloat16(), half)


def test_checkpoints_are_interchangeable():
    """Either step goes on from what the other one saved."""
    common = {"size": "nano", "batch": 4, "seq": 64, "precision": "bf16", "compile": False}
    reference, fast = train_step(**common), train_step(**common, fast=True)
    for one, other in ((reference, fast), (fast, reference)):
        for _ in range(3):
            one.step()
        other.load_state_dict(one.state_dict())
        assert abs(float(one.step()) - float(other.step())) < 0.02


def test_it_compiles_once_and_learns_alike():
    """No graph break and no second compilation; over 30 steps its losses are as near to those in
    fp32 as the reference's are, within a factor of 2.5.
    """
    torch._dynamo.reset()
    common = {"size": "nano", "batch": 8, "seq": 128, "micro_steps": 1}
    steps = [
        train_step(**common, precision="fp32", compile=False),
        train_step(**common, precision="bf16", compile=False),
        train_step(**common, precision="bf16", compile=True, fast=True),
    ]
    torch._dynamo.utils.counters.clear()
    exact, reference, fast = torch.tensor([[float(s.step()) for _ in range(30)] for s in steps])
    assert (fast - exact).abs().mean() < 2.5 * (reference - exact).abs().mean()
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
