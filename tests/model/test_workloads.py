"""A step does the mathematics it names, waits for nothing, and refuses what it cannot do.

python -m pytest tests/model/test_workloads.py
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch._inductor.cpu_vec_isa import VecISA
from torch.profiler import ProfilerActivity, profile

from model.config import SIZES, GPTConfig, causal_flops_per_token, flops_per_token
from model.data.shards import STDLIB_SHARD, Tokens
from model.gpt import GPT
from model.workloads import Workload, forward, forward_backward, make_optimizer, train_step
from stepguard.worker.workload import BadWorkload, build

FACTORIES = [forward, forward_backward, train_step]
TINY = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=32, vocab_size=8256)
SMALL: dict[str, Any] = {
    "size": "tiny", "batch": 2, "seq": 16, "precision": "fp32", "compile": False, "device": "cpu",
}  # fmt: skip


def parameters(workload: Workload) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in workload.model.named_parameters()}


def plain_training(steps: int, *, micro_steps: int, batch: int, seq: int, clip: float) -> GPT:
    """The training loop as a textbook has it, gradient clipping and AdamW written out."""
    model = GPT(TINY, seed=1337)
    tokens = torch.from_numpy(Tokens.open(STDLIB_SHARD).read(0, 5000).astype("int64"))
    moments = {name: (0.0, 0.0) for name, _ in model.named_parameters()}
    start = 0
    for step in range(1, steps + 1):
        gradients = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        for _ in range(micro_steps):
            cut = tokens[start : start + batch * seq + 1]
            start += batch * seq
            logits = model(cut[:-1].view(batch, seq))
            likelihood = logits.log_softmax(-1).flatten(0, 1)[range(batch * seq), cut[1:]]
            loss = -likelihood.mean()
            for name, gradient in zip(
                gradients, torch.autograd.grad(loss, list(model.parameters())), strict=True
            ):
                gradients[name] += gradient / micro_steps
        norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients.values()))
        assert norm > clip, "the comparison is meant to include clipping"
        with torch.no_grad():
            for name, p in model.named_parameters():
                gradient = gradients[name] * (clip / (norm + 1e-6))
                first = 0.9 * moments[name][0] + 0.1 * gradient
                second = 0.95 * moments[name][1] + 0.05 * gradient**2
                moments[name] = (first, second)
                p.mul_(1 - 6e-4 * (0.1 if p.dim() >= 2 else 0.0))
                unbiased = (second / (1 - 0.95**step)).sqrt() + 1e-8
                p.sub_(6e-4 * (first / (1 - 0.9**step)) / unbiased)
    return model


def assert_same_function(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare parameters, less the key biases: softmax cancels them, so their gradient is rounding
    noise, which Adam's division blows up to a full update."""
    for name, tensor in expected.items():
        ours = found[name]
        if name.endswith("c_attn.bias"):
            keep = torch.ones_like(tensor, dtype=torch.bool)
            keep[TINY.n_embd : 2 * TINY.n_embd] = False
            ours, tensor = ours[keep], tensor[keep]
        torch.testing.assert_close(ours, tensor, rtol=1e-4, atol=5e-6, msg=name)


def test_train_step_is_the_plain_loop():
    """After 3 steps of 2 micro-steps with clipping the parameters are those of a textbook loop."""
    workload = train_step(**SMALL, micro_steps=2, grad_clip=0.5)
    for _ in range(3):
        workload.step()
    expected = plain_training(3, micro_steps=2, batch=2, seq=16, clip=0.5)
    assert_same_function(parameters(workload), dict(expected.named_parameters()))


def test_losses_of_the_workloads_agree():
    """On the first batch the three workloads report one loss: that of the bare model."""
    losses = [
        forward(**SMALL).step(),
        forward_backward(**SMALL).step(),
        train_step(**SMALL, micro_steps=1).step(),
    ]
    tokens = torch.from_numpy(Tokens.open(STDLIB_SHARD).read(0, 33).astype("int64"))
    expected = GPT(TINY, seed=1337)(tokens[:-1].view(2, 16), tokens[1:].view(2, 16))
    for loss in losses:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=0)
        assert loss.shape == ()
        assert not loss.requires_grad


def test_training_learns():
    """Thirty steps lower the loss: the tokens are real and the update has the right sign."""
    workload = train_step(**{**SMALL, "batch": 4, "seq": 32}, lr=1e-2)
    losses = [float(workload.step()) for _ in range(30)]
    assert losses[-1] < losses[0] - 1


def test_a_learning_rate_of_0_changes_no_parameter():
    """Not one bit, though the optimizer updates: a step that is timed stays the same step."""
    workload = train_step(**SMALL, lr=0.0)
    before = {name: value.clone() for name, value in parameters(workload).items()}
    for _ in range(3):
        workload.step()
    assert all(torch.equal(value, before[name]) for name, value in parameters(workload).items())
    moments = workload.optimizer.state.values()
    assert moments and all(one["step"] == 3 and one["exp_avg_sq"].any() for one in moments)


def test_only_matrices_decay():
    """Every parameter is optimised once; those with two dimensions decay, the others do not."""
    model = GPT(TINY)
    decayed, kept = make_optimizer(model, lr=1e-3, weight_decay=0.1).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert all(p.dim() >= 2 for p in decayed["params"])
    assert all(p.dim() < 2 for p in kept["params"])
    assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("factory", FACTORIES)
def test_two_identical_runs_are_bitwise_equal(factory):
    """Equal arguments give equal losses and parameters, to the last bit."""
    first, second = factory(**SMALL), factory(**SMALL)
    for _ in range(3):
        assert torch.equal(first.step(), second.step())
    found, expected = parameters(first), parameters(second)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_trains_like_single(precision: str):
    """Losses in reduced precision stay within 1 % of single precision over 5 steps, and are not
    all the same (one may be, by chance).
    """
    reduced, single = train_step(**{**SMALL, "precision": precision}), train_step(**SMALL)
    losses = [(float(reduced.step()), float(single.step())) for _ in range(5)]
    for found, expected in losses:
        assert found == pytest.approx(expected, rel=0.01)
    assert any(found != expected for found, expected in losses)


def test_an_overflow_in_fp16_skips_the_update():
    """A gradient that overflows leaves the parameters alone and halves the scale."""
    workload = train_step(**{**SMALL, "precision": "fp16"})
    workload.step()
    before, scale = parameters(workload), workload._scaler.get_scale()
    hook = workload.model.ln_f.weight.register_hook(lambda gradient: gradient * float("inf"))
    workload.step()
    hook.remove()
    assert all(torch.equal(before[name], now) for name, now in parameters(workload).items())
    assert workload._scaler.get_scale() == scale / 2


@pytest.mark.parametrize(
    ("precision", "expected"), [("fp32", "highest"), ("bf16", "high"), ("fp16", "high")]
)
def test_the_factory_sets_the_precision_of_products(precision: str, expected: str):
    """Single-precision products are exact in fp32 and may use TF32 otherwise."""
    assert forward(**{**SMALL, "precision": precision}).precision == precision
    assert torch.get_float32_matmul_precision() == expected


def test_phases_come_in_order():
    """A training step announces its phases in the order of its work, each named in ``phases``."""
    workload = train_step(**SMALL, micro_steps=2)
    seen: list[str] = []
    workload.on_phase = seen.append
    workload.step()
    micro = ["forward", "backward"]
    assert seen == ["micro_step_0", *micro, "micro_step_1", *micro, "clip_grad", "optimizer"]
    assert set(seen) == set(workload.phases)


@pytest.mark.parametrize(
    ("factory", "expected"), [(forward, ["forward"]), (forward_backward, ["forward", "backward"])]
)
def test_phases_of_the_smaller_workloads(factory, expected: list[str]):
    """forward and forward_backward announce just their passes."""
    workload = factory(**SMALL)
    seen: list[str] = []
    workload.on_phase = seen.append
    workload.step()
    assert seen == expected == list(workload.phases)


@pytest.mark.parametrize(("factory", "extra", "tokens", "share"), [
    (forward, {}, 32, 1 / 3),
    (forward_backward, {}, 32, 1),
    (train_step, {"micro_steps": 3}, 96, 1),
])  # fmt: skip
def test_work_of_a_step(factory, extra: dict[str, int], tokens: int, share: float):
    """Tokens count every micro-step; FLOPs follow the formulas, a third for a forward pass."""
    workload = factory(**SMALL, **extra)
    assert workload.tokens_per_step == tokens
    assert workload.flops_per_step == pytest.approx(tokens * flops_per_token(TINY, 16) * share)
    floor = tokens * causal_flops_per_token(TINY, 16) * share
    assert workload.floor_flops_per_step == pytest.approx(floor)


def test_a_closed_workload_keeps_its_facts_only():
    """After close, twice if need be, the model is gone, steps fail, and the facts remain."""
    workload = train_step(**SMALL)
    workload.close()
    workload.close()
    assert not hasattr(workload, "model")
    assert workload.tokens_per_step == 64
    with pytest.raises(AttributeError):
        workload.step()


@pytest.fixture
def one_layer(monkeypatch: pytest.MonkeyPatch):
    """As much as the compiler has to see. It changes the graphs as always, and calls torch's own
    kernels: to generate those of a step takes half a minute of a CPU. An older torch knows no way
    to leave that out. That it can build for this CPU is known, for which it would build three
    programs more.
    """
    monkeypatch.setitem(SIZES, "tiny", replace(TINY, n_layer=1))
    monkeypatch.setattr(VecISA, "check_build", lambda isa, code: True)
    # Not by monkeypatch, which would delete it at the end: torch then hides it for good.
    known = {"fallback_by_default": True} if hasattr(inductor, "fallback_by_default") else {}
    with inductor.patch(known):
        yield


def test_a_compiled_step_agrees_with_eager(one_layer):
    """Compiled and eager training steps give equal losses and parameters, without graph breaks,
    also while somebody watches the phases."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    compiled, eager = train_step(**{**SMALL, "compile": True}), train_step(**SMALL)
    seen: list[str] = []
    compiled.on_phase = seen.append
    for _ in range(2):
        torch.testing.assert_close(compiled.step(), eager.step(), rtol=1e-5, atol=0)
    assert len(seen) == 16
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    found, expected = parameters(compiled), parameters(eager)
    for name in ("wte.weight", "h.0.attn.c_proj.weight", "h.0.mlp.c_fc.weight", "ln_f.bias"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def attention_operators(workload: Workload) -> set[str]:
    workload.step()
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        workload.step()
    return {event.key for event in trace.key_averages() if "dot_product_flash" in event.key}


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "compiled"])
def test_the_attention_backend_is_the_one_asked_for(compile: bool, one_layer):
    """Asked for "math", no fused kernel runs: the compiler neither takes the graph that it cached
    for the default, nor puts the fused operator back where it recognises attention."""
    asked = {"default": True, "math": False} | ({} if compile else {"flash": True})
    for attention, fused in asked.items():
        torch.compiler.reset()
        workload = forward(**{**SMALL, "compile": compile}, attention=attention)
        assert bool(attention_operators(workload)) == fused, attention


@pytest.mark.parametrize(("change", "message"), [
    ({"size": "3b"}, "size is '3b'; possible: nano, 124m, 350m, 774m, 1.5b, 2.7b"),
    ({"size": ["nano"]}, "size is "),
    ({"batch": 0}, "batch is 0; possible: an int of 1 or more"),
    ({"batch": -3}, "batch is -3"),
    ({"batch": True}, "batch is True"),
    ({"batch": 2.0}, "batch is 2.0"),
    ({"seq": 33}, "seq is 33; possible: an int from 1 to 32"),
    ({"seq": "16"}, "seq is '16'"),
    ({"precision": "int8"}, "precision is 'int8'; possible: fp32, tf32, bf16, fp16"),
    ({"precision": "tf32"}, "precision on cpu is 'tf32'; possible: fp32, bf16"),
    ({"compile": 1}, "compile is 1; possible: True, False"),
    ({"attention": "fast"}, "attention is 'fast'; possible: default, flash, efficient"),
    ({"attention": "cudnn"}, "attention on cpu in fp32 is 'cudnn'; possible: default, flash"),
    ({"seed": -1}, "seed is -1; possible: an int of 0 or more"),
    ({"device": "tpu"}, "device is 'tpu'; possible: cpu"),
])  # fmt: skip
@pytest.mark.parametrize("factory", FACTORIES)
def test_an_impossible_parameter_is_refused(factory, change: dict[str, object], message: str):
    """It is a ValueError of one line with the value found and the values possible."""
    with pytest.raises(ValueError) as caught:
        factory(**{**SMALL, **change})
    assert message in str(caught.value)
    assert "possible: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [
    {"micro_steps": 0}, {"micro_steps": True}, {"grad_clip": 0}, {"grad_clip": math.nan},
    {"lr": -1e-3}, {"lr": "fast"}, {"weight_decay": math.inf}, {"weight_decay": False},
])  # fmt: skip
def test_an_impossible_training_parameter_is_refused(change: dict[str, object]):
    """The same for the parameters that only train_step has."""
    (name,) = change
    with pytest.raises(ValueError, match=f"^{name} is .*; possible: .*$"):
        train_step(**SMALL, **change)


@pytest.mark.parametrize("factory", ["forward", "forward_backward", "train_step"])
def test_a_misspelt_parameter_is_named(factory: str):
    """Before the factory is called, though all factories share these parameters."""
    with pytest.raises(BadWorkload, match="no parameter 'bacth'.*did you mean batch"):
        build(f"model.workloads:{factory}", {"bacth": 2}, "cpu")


def test_what_is_left_out_is_what_the_device_can_do():
    """A step without parameters takes a CPU a fraction of a second, where 124m takes minutes."""
    workload = train_step(device="cpu", micro_steps=1)
    assert workload.tokens_per_step == 8 * 128
    assert len(workload.model.h) == SIZES["nano"].n_layer
    assert train_step(device="cpu", micro_steps=1, seq=64).tokens_per_step == 8 * 64


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_without_a_gpu_is_refused():
    """Nothing runs on the CPU that was asked for on a GPU."""
    with pytest.raises(ValueError, match="device is 'cuda'; possible: cpu$"):
        train_step()
