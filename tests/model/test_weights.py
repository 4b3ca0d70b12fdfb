"""Weights of other programs give the text that they give there, or are refused.

python -m pytest tests/model/test_weights.py
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from model import checkpoint, weights
from model.checkpoint import CheckpointError, Checkpoints
from model.config import GPTConfig
from model.generate import Sampling, generate, main
from model.gpt import GPT
from model.weights import load_model

TINY = GPTConfig(n_layer=2, n_head=2, n_embd=128, block_size=40, vocab_size=97)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A GPT-2 of transformers, saved as it saves it, and as older versions did."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=TINY.vocab_size, n_positions=TINY.block_size, n_embd=TINY.n_embd,
        n_layer=TINY.n_layer, n_head=TINY.n_head, bos_token_id=None,
        eos_token_id=None)  # fmt: skip
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also those that start constant
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder)
    old = {f"h.{i}.attn.bias": torch.ones(1, 1, 40, 40) for i in range(2)}
    torch.save(model.state_dict() | old, folder / "pytorch_model.bin")
    return folder, model


@pytest.mark.parametrize("name", ["", "model.safetensors", "pytorch_model.bin"])
def test_gpt2_of_transformers_says_the_same_here(theirs: tuple[Path, nn.Module], name: str):
    """Every parameter arrives, the logits are theirs, and so is each likeliest token."""
    folder, reference = theirs
    model, encoding = load_model(folder / name)
    assert (model.config, encoding) == (TINY, "gpt2")
    ids = torch.arange(20)[None] % TINY.vocab_size
    with torch.no_grad():
        torch.testing.assert_close(model(ids), reference(ids).logits, rtol=1e-5, atol=1e-5)
        mask = torch.ones_like(ids)
        expected = reference.generate(
            ids, attention_mask=mask, max_new_tokens=15, do_sample=False, pad_token_id=0
        )
    assert generate(model, ids.tolist(), 15, Sampling(0.0)) == expected.tolist()


def test_the_number_of_heads_is_configured(theirs: tuple[Path, nn.Module], tmp_path: Path):
    """By the config.json beside; without one by the width of a head of every published GPT-2."""
    (tmp_path / "model.safetensors").write_bytes((theirs[0] / "model.safetensors").read_bytes())
    assert load_model(tmp_path)[0].config.n_head == 128 // 64
    (tmp_path / "config.json").write_text('{"n_head": 8}')
    assert load_model(tmp_path)[0].config.n_head == 8


def test_our_checkpoint_is_loaded(tmp_path: Path):
    """Bit for bit, with its encoding, from the file or from the run's folder."""
    model = GPT(TINY, seed=4)
    content: dict[str, Any] = dict.fromkeys(checkpoint._KEYS - {"format"}, 0)
    content |= {"config": asdict(TINY), "encoding": "stdlib8k"}
    content["state"] = {"model": model.state_dict()}
    path = Checkpoints(tmp_path).save(7, content)
    for where in (path, tmp_path):
        found, encoding = load_model(where)
        assert encoding == "stdlib8k"
        for name, parameter in model.named_parameters():
            assert torch.equal(found.get_parameter(name), parameter)


def named() -> dict[str, torch.Tensor]:
    """A state as build-nanogpt saves it."""
    model = GPT(TINY, seed=4)
    found = {f"transformer.{name}": value for name, value in model.state_dict().items()}
    return found | {"lm_head.weight": model.wte.weight.detach()}


def test_a_checkpoint_with_objects_is_read_on_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A script's own class of configuration, pickled from ``__main__``, as build-nanogpt's."""

    @dataclass
    class TheirConfig:
        n_layer: int = 2
        n_head: int = 4
        n_embd: int = 128
        block_size: int = 40
        vocab_size: int = 97

    TheirConfig.__module__, TheirConfig.__qualname__ = "__main__", "GPTConfig"
    monkeypatch.setattr(sys.modules["__main__"], "GPTConfig", TheirConfig, raising=False)
    path = tmp_path / "model_00100.pt"
    torch.save({"model": named(), "config": TheirConfig(), "step": 100, "val_loss": 3.0}, path)
    monkeypatch.delattr(sys.modules["__main__"], "GPTConfig")
    with pytest.raises(CheckpointError, match="more than tensors.*if you trust.*--allow-pickle"):
        load_model(path)
    model, encoding = load_model(path, allow_pickle=True)
    assert (model.config.n_head, encoding) == (4, "gpt2")
    assert torch.equal(model.wpe.weight, named()["transformer.wpe.weight"])


@pytest.mark.parametrize(("change", "message"), [
    ({"transformer.h.1.ln_2.bias": None}, "missing h.1.ln_2.bias; unknown nothing"),
    ({"transformer.h.0.rotary": torch.ones(2)}, "missing nothing; unknown h.0.rotary"),
    ({"transformer.wpe.weight": None}, "holds no GPT-2"),
    ({"transformer.ln_f.bias": torch.ones(3)}, r"ln_f.bias has shape \(3,\), wanted is \(128"),
    ({"lm_head.weight": torch.ones(97, 128)}, "lm_head.weight is not wte.weight"),
    ({"transformer.h.0.x": 3}, "holds no weights of a GPT-2"),
])  # fmt: skip
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], message: str):
    """A name too few or too many, another shape, an untied output layer: each is named."""
    whole = {n: v.t() if ".h." in n and v.dim() == 2 else v for n, v in named().items()}
    state = {name: v for name, v in (whole | change).items() if v is not None}
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "x.pt"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str):
    """Whatever it is called."""
    (tmp_path / name).write_bytes(b"nothing of the kind")
    with pytest.raises(CheckpointError, match=f"{name} (cannot be read|is truncated)"):
        load_model(tmp_path / name)


def test_the_command_prints_a_continuation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Of each prompt, in the model's encoding, with tokens per second; errors are one line."""
    model = GPT(GPTConfig(n_layer=1, n_head=2, n_embd=16, block_size=64, vocab_size=8256))
    monkeypatch.setattr(weights, "load_model", lambda *_, **__: (model, "stdlib8k"))
    monkeypatch.setattr("model.generate.load_model", weights.load_model)
    prompts = ["--prompt", "def step", "--prompt", "import torch as"]
    assert main(["x", *prompts, "--tokens", "20", "--device", "cpu", "--top-k", "5"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("def step") and "---\nimport torch as" in said.out
    assert "40 tokens in" in said.err and "tokens/s" in said.err
    assert main(["x", *prompts, "--tokens", "200", "--device", "cpu"]) == 1
    assert "possible: at most 64" in capsys.readouterr().err
