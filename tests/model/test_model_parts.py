"""The parts compute what their names say, whichever way they are run.

python -m pytest tests/model/test_model_parts.py
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from model import parts
from model.config import GPTConfig
from model.parts import attention, checkpointed, decode, loading, reading_step, tokenization
from model.workloads import forward_backward

TINY = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=64, vocab_size=8256)
SMALL: dict[str, Any] = {"size": "tiny", "batch": 2, "seq": 16, "precision": "fp32"}
SMALL |= {"compile": False, "device": "cpu"}


def test_every_kind_of_attention_is_the_same_function():
    """The three steps and PyTorch's fused kernels agree."""
    query, key, value = torch.randn(3, 2, 1, 20, 8).unbind()
    naive = parts._naive(query, key, value)
    for kind in ("default", "math", "flash"):
        torch.testing.assert_close(parts._fused(kind)(query, key, value), naive)


def test_attention_tells_what_it_keeps():
    """The phases come in order; the gradient is made anew in every step, or not at all."""
    seen: list[str] = []
    part = attention(width=8, seq=16, batch=2, device="cpu")
    part.on_phase = seen.append
    part.step()
    part.step()
    assert seen == ["forward", "saved", "backward"] * 2 and part.tokens_per_step == 32
    with pytest.raises(ValueError, match="kind is 'fast'; possible: naive, default"):
        attention(width=8, seq=16, kind="fast", device="cpu")


def test_decode_is_a_token_of_generation(monkeypatch: pytest.MonkeyPatch):
    """It is the likeliest next token of the model's own logits; compiled, the same."""
    # Its graph is what has to hold, and needs no kernels.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    expected = decode(size="tiny", room=32, precision="fp32", device="cpu").step()
    logits = parts.GPT(TINY, seed=1337)(torch.zeros((1, 16), dtype=torch.int64))[0, -1]
    assert expected.tolist() == [int(logits.argmax())]
    torch.compiler.reset()
    compiled = decode(size="tiny", room=32, precision="fp32", device="cpu", mode="compile")
    assert torch.equal(compiled.step(), expected)
    with pytest.raises(ValueError, match="mode is 'cuda-graph'; possible: eager, compile"):
        decode(size="tiny", room=32, device="cpu", mode="cuda-graph")


def test_checkpointing_changes_no_gradient():
    """Layers computed again give the same gradients, bit for bit."""
    plain, again = forward_backward(**SMALL), checkpointed(**SMALL)
    assert torch.equal(plain.step(), again.step())
    theirs = dict(again.model.named_parameters())
    for name, parameter in plain.model.named_parameters():
        name = name.replace("h.0.", "h.0.block.").replace("h.1.", "h.1.block.")
        assert torch.equal(parameter.grad, theirs[name].grad), name


def test_the_loss_is_read_as_often_as_asked(monkeypatch: pytest.MonkeyPatch):
    """Every third step of six: twice."""
    reads: list[None] = []
    monkeypatch.setattr(torch.Tensor, "item", lambda self: reads.append(None))
    part, seen = reading_step(every=3, **SMALL, micro_steps=1), set()
    part.on_phase = seen.add
    for _ in range(6):
        part.step()
    assert len(reads) == 2
    assert seen == set(part.phases)


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_hands_out_tokenized_batches(workers: int):
    """With worker processes or without, the step has its batch; phases say which part took long."""
    seen: list[str] = []
    part = loading(batch=2, seq=16, workers=workers, size="tiny", device="cpu")
    part.on_phase = seen.append
    part.step()
    assert seen == ["load", "forward"]


def test_tokenization_is_the_same_by_all_means():
    """Single, batched and cached ids are equal, and their number is the tokens of a step."""
    found = {how: tokenization(how=how, texts=3) for how in ("single", "batch", "cached")}
    ids = {how: part.step() for how, part in found.items()}
    assert ids["single"] == ids["batch"] == ids["cached"]
    assert {part.tokens_per_step for part in found.values()} == {sum(map(len, ids["single"]))}


def test_convolution_runs_in_both_layouts():
    """The same numbers, differently laid out."""
    for channels_last in (True, False):
        parts.convolution(channels_last=channels_last, batch=1, device="cpu").step()


def accumulated(total: torch.dtype, part: torch.dtype, widen: bool = False) -> float:
    """0.01 added a thousand times, as CS336 asks."""
    found = torch.tensor(0, dtype=total)
    for _ in range(1000):
        one = torch.tensor(0.01, dtype=part)
        found += one.type(torch.float32) if widen else one
    return float(found)


def test_accumulation_in_mixed_precision():
    """A sum in fp16 loses half a percent; in fp32 an addend in fp16 still costs 0.02 %."""
    single, half = torch.float32, torch.float16
    found = [
        accumulated(single, single),
        accumulated(half, half),
        accumulated(single, half),
        accumulated(single, half, widen=True),
    ]
    assert [f"{value:.4f}" for value in found] == ["10.0001", "9.9531", "10.0021", "10.0021"]


def test_types_under_autocast():
    """On a CPU products, norms and softmax are in bf16, loss and gradients in fp32; a GPU's rules,
    norms and softmax in fp32, are in tests/gpu/test_training.py.
    """
    linear, norm = nn.Linear(8, 8), nn.LayerNorm(8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = linear(torch.ones(2, 8))
        loss = nn.functional.cross_entropy(hidden, torch.zeros(2, dtype=torch.int64))
        assert (hidden.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
        assert {norm(hidden).dtype, torch.softmax(hidden, -1).dtype} == {torch.bfloat16}
    loss.backward()
    assert {p.grad.dtype for p in linear.parameters()} == {torch.float32}
    assert math.isfinite(loss.item())
