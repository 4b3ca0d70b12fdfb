"""Weights of other programs, as a ``GPT`` of ours.

Names and shapes are checked before anything is copied: all parameters must be there, and nothing
else but the masks that old files carry.

    model, encoding = load_model(Path("gpt2/model.safetensors"), device="cuda")
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model import checkpoint
from model.checkpoint import CheckpointError
from model.config import GPTConfig
from model.gpt import GPT

# Hugging Face's causal masks, which are no parameters, and the output layer, which is the token
# table once more.
_NO_PARAMETER = re.compile(r"h\.\d+\.attn\.(masked_)?bias|lm_head\.weight")
_PREFIXES = re.compile(r"^(module\.|_orig_mod\.)*(transformer\.)?")
_HEAD_WIDTH = 64  # of every published GPT-2; a config.json beside the file overrides it


def load_model(
    path: Path, *, device: str | torch.device = "cpu", allow_pickle: bool = False
) -> tuple[GPT, str]:
    """Load a checkpoint of ``model.train``, Hugging Face's GPT-2, or build-nanogpt's checkpoint.

    Args:
        path: ``checkpoint_*.pt``, ``model.safetensors`` or ``pytorch_model.bin``, or a folder with
            one of them.
        device: where the model is made.
        allow_pickle: read files that can run a program when they are read.

    Returns:
        the model, and the name of the encoding that its ids are of.

    Raises:
        CheckpointError: not to be read, or names or shapes are not those of a GPT-2.
    """
    path = _file_in(path)
    if path.suffix == ".safetensors":
        return _from_transformers(path, _safetensors(path), device), "gpt2"
    content = checkpoint.read(path, allow_pickle=allow_pickle)
    if isinstance(content, dict) and content.get("format") == checkpoint.FORMAT:
        content = checkpoint.load(path)
        model = GPT(GPTConfig(**content["config"]), device=device)
        _copy(path, model, content["state"]["model"], transposed=False)
        return model, content["encoding"]
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        named = {_PREFIXES.sub("", name): value for name, value in content["model"].items()}
        config = content.get("config")
        heads = config.n_head if isinstance(config, GPTConfig) else None
        model = GPT(_config_of(path, named, heads), device=device)
        _copy(path, model, named, transposed=False)
        return model, "gpt2"
    return _from_transformers(path, content, device), "gpt2"


def _file_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (path / name).is_file():
            return path / name
    newest = checkpoint.Checkpoints(path).newest()
    if newest is None:
        raise CheckpointError(f"{path} has no checkpoint, model.safetensors or pytorch_model.bin")
    return newest


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise CheckpointError(f"{path}: reading it takes: pip install safetensors") from None
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _from_transformers(path: Path, content: Any, device: str | torch.device) -> GPT:
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"{path} holds no weights of a GPT-2")
    named = {_PREFIXES.sub("", name): value for name, value in content.items()}
    beside = path.parent / "config.json"
    heads = json.loads(beside.read_text()).get("n_head") if beside.is_file() else None
    model = GPT(_config_of(path, named, heads), device=device)
    _copy(path, model, named, transposed=True)
    return model


def _config_of(path: Path, named: dict[str, Tensor], heads: int | None) -> GPTConfig:
    try:
        vocab, width = named["wte.weight"].shape
        block_size = named["wpe.weight"].shape[0]
    except (KeyError, ValueError):
        found = ", ".join(sorted(named)[:3])
        raise CheckpointError(
            f"{path} holds no GPT-2: it has {found}, ...; wanted: wte.weight, wpe.weight, h.0...."
        ) from None
    layers = {int(m[1]) for name in named if (m := re.match(r"h\.(\d+)\.", name))}
    return GPTConfig(
        n_layer=max(layers, default=0) + 1,
        n_head=heads or max(1, width // _HEAD_WIDTH),
        n_embd=width,
        block_size=block_size,
        vocab_size=vocab,
    )


@torch.no_grad()
def _copy(path: Path, model: GPT, named: dict[str, Tensor], *, transposed: bool) -> None:
    """Copy by name; ``transposed``: the layers' matrices are (in, out), ours are (out, in)."""
    ours = dict(model.named_parameters())
    absent = sorted(ours.keys() - named.keys())
    foreign = sorted(n for n in named.keys() - ours.keys() if not _NO_PARAMETER.fullmatch(n))
    if absent or foreign:
        raise CheckpointError(
            f"{path} is not this GPT-2: missing {', '.join(absent[:3]) or 'nothing'}; "
            f"unknown {', '.join(foreign[:3]) or 'nothing'}"
        )
    head = named.get("lm_head.weight")
    if head is not None and not torch.equal(head, named["wte.weight"]):
        raise CheckpointError(f"{path}: lm_head.weight is not wte.weight; GPT-2 ties the two")
    for name, parameter in ours.items():
        theirs = named[name]
        if transposed and name.startswith("h.") and theirs.dim() == 2:
            theirs = theirs.t()
        if theirs.shape != parameter.shape:
            found, wanted = tuple(theirs.shape), tuple(parameter.shape)
            raise CheckpointError(f"{path}: {name} has shape {found}, wanted is {wanted}")
        parameter.copy_(theirs)
