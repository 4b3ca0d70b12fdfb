"""GPT-2, with its arithmetic beside it: how many parameters, how many FLOPs a token costs.

The network is the one that nanoGPT trains: pre-norm blocks with biases, tanh-approximated GELU,
learned positions, output weights tied to the token embedding, PyTorch's fused attention. Speeds
measured here are therefore comparable with what is published for "GPT-2 124M". The formulas are
pure functions of the configuration, so a time becomes a utilisation without a model or a GPU.

    model = GPT(SIZES["124m"], seed=1337, device="cuda")
    loss = model(inputs, targets)
    python -m model.gpt            # a table of sizes, parameters and FLOPs per token
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION_BACKENDS: dict[str, SDPBackend | None] = {
    "default": None,  # whatever PyTorch prefers on this device
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_EMPTY: AbstractContextManager[object] = nullcontext()


def attention_context(attention: str) -> AbstractContextManager[object]:
    """A context around the call of a compiled model that uses this attention backend.

    The model enters its backend itself. That is not enough for compiled code: the compiler
    recognises the plain products of "math" as attention and puts the fused operator back, outside
    of the model's context but inside of this one. For ``"default"`` the context is empty.
    """
    backend = ATTENTION_BACKENDS[attention]
    return _EMPTY if backend is None else sdpa_kernel(backend)


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT-2.

    Raises:
        ValueError: a field is not a positive int, or ``n_embd`` cannot be cut into ``n_head``.
    """

    n_layer: int
    n_head: int
    n_embd: int  # width C of the residual stream
    block_size: int = 1024  # longest sequence
    vocab_size: int = 50304  # GPT-2's 50257 rounded up to a multiple of 64, as nanoGPT does

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{field.name} is {value!r}; possible: an int of 1 or more")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd is {self.n_embd}; possible: a multiple of n_head, which is {self.n_head}"
            )


SIZES: dict[str, GPTConfig] = {
    # For a laptop's CPU. Its vocabulary just holds the repository's own encoding: with 50304 rows
    # nearly all of the time would go into the output layer.
    "nano": GPTConfig(n_layer=3, n_head=4, n_embd=128, vocab_size=8256),
    "124m": GPTConfig(n_layer=12, n_head=12, n_embd=768),
    "350m": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "774m": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "1.5b": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
    "2.7b": GPTConfig(n_layer=32, n_head=32, n_embd=2560),
}


def num_params(config: GPTConfig, *, non_embedding: bool = False) -> int:
    """Number of parameters, the tied output layer counted once.

    Args:
        config: the shape.
        non_embedding: leave out the position table (nanoGPT's convention: the token table stays
            in, because it is also the output layer and does the work of one).
    """
    width = config.n_embd
    norm = 2 * width
    attention = (3 * width * width + 3 * width) + (width * width + width)
    mlp = (4 * width * width + 4 * width) + (4 * width * width + width)
    blocks = config.n_layer * (2 * norm + attention + mlp)
    positions = 0 if non_embedding else config.block_size * width
    return config.vocab_size * width + positions + blocks + norm


def num_matmul_params(config: GPTConfig) -> int:
    """Number of parameters that stand in a matrix product: 12 C^2 a layer, and the output layer."""
    return config.n_layer * 12 * config.n_embd**2 + config.vocab_size * config.n_embd


def flops_per_token(config: GPTConfig, seq: int) -> float:
    """FLOPs of one forward and backward pass per token, for model FLOPs utilisation (MFU).

    ``6 N + 12 L H Q T``, N the parameters without the position table, L layers, H heads of Q
    channels, T = ``seq`` tokens: PaLM paper (Chowdhery et al. 2022), appendix B, as nanoGPT counts
    N. It charges attention for the full T x T square, though a causal kernel skips half of it, and
    counts biases and norms as if they were matrix products; both are conventions that published
    MFU figures share. 855.4e6 for 124m at T = 1024. The forward pass is a third.
    """
    _check_seq(config, seq)
    attention = 12 * config.n_layer * config.n_embd * seq  # H * Q is the width
    return float(6 * num_params(config, non_embedding=True) + attention)


def causal_flops_per_token(config: GPTConfig, seq: int) -> float:
    """The fewest FLOPs per token in which a causal forward and backward pass can be done.

    ``6 M + 6 L C T``: M the parameters in matrix products, and half of the attention square. A
    step faster than this at the device's peak rate was not measured correctly, which makes it a
    physical floor; it is no figure for MFU. 798.0e6 for 124m at T = 1024. The forward pass is a
    third.
    """
    _check_seq(config, seq)
    return float(6 * num_matmul_params(config) + 6 * config.n_layer * config.n_embd * seq)


def _check_seq(config: GPTConfig, seq: int) -> None:
    if isinstance(seq, bool) or not isinstance(seq, int) or not 1 <= seq <= config.block_size:
        raise ValueError(f"seq is {seq!r}; possible: an int from 1 to {config.block_size}")


class CausalSelfAttention(nn.Module):
    """Multi-head attention to the past: (B, T, C) to (B, T, C)."""

    def __init__(self, config: GPTConfig, device: str | torch.device) -> None:
        super().__init__()
        self.n_head = config.n_head
        # Query, key and value in one product.
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, device=device)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, device=device)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        query, key, value = (
            part.view(batch, seq, self.n_head, width // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, seq, width))


class MLP(nn.Module):
    """Two linear layers with a GELU between, four times as wide inside."""

    def __init__(self, config: GPTConfig, device: str | torch.device) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, device=device)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    """One layer; the norm stands before each branch, the branch is added to the stream."""

    def __init__(self, config: GPTConfig, device: str | torch.device) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, device=device)
        self.attn = CausalSelfAttention(config, device)
        self.ln_2 = nn.LayerNorm(config.n_embd, device=device)
        self.mlp = MLP(config, device)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2 with the parameter names of its published checkpoints.

    Args:
        config: the shape.
        seed: decides the initial parameters, whatever the state of the global generators. Equal
            seeds give equal parameters on devices of one type.
        device: where the parameters are made; ``"meta"`` makes shapes only.
        attention: a key of ``ATTENTION_BACKENDS``. ``"default"`` leaves the choice to PyTorch. A
            compiled model must also be called under ``attention_context(attention)``.

    Raises:
        ValueError: there is no such attention backend.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        seed: int = 1337,
        device: str | torch.device = "cpu",
        attention: str = "default",
    ) -> None:
        super().__init__()
        if attention not in ATTENTION_BACKENDS:
            possible = ", ".join(ATTENTION_BACKENDS)
            raise ValueError(f"attention is {attention!r}; possible: {possible}")
        self.config = config
        self.attention = ATTENTION_BACKENDS[attention]
        # Shapes first, memory later: PyTorch's own initialisation of the layers would be thrown
        # away, and drawing 2.7 billion numbers on a CPU takes half a minute.
        self.wte = nn.Embedding(config.vocab_size, config.n_embd, device="meta")
        self.wpe = nn.Embedding(config.block_size, config.n_embd, device="meta")
        self.h = nn.ModuleList(Block(config, "meta") for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, device="meta")
        self.to_empty(device=device)
        if torch.device(device).type != "meta":
            self.init_weights(seed)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Draw the parameters as GPT-2 does.

        Weights are normal with deviation 0.02, biases 0, norms 1. The projections that write into
        the residual stream are narrower by 1 / sqrt(2 L), since 2 L of them add up.
        """
        generator = torch.Generator(self.wte.weight.device).manual_seed(seed)
        residual_deviation = 0.02 / math.sqrt(2 * self.config.n_layer)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif ".ln_" in f".{name}":
                parameter.fill_(1.0)
            else:
                deviation = residual_deviation if name.endswith("c_proj.weight") else 0.02
                parameter.normal_(0.0, deviation, generator=generator)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """Predict every next token, or say how well the given ones were predicted.

        Args:
            idx: (B, T) int64 token ids, T at most ``block_size``.
            targets: (B, T) int64, the ids that follow.

        Returns:
            logits (B, T, vocab_size) without targets; with them the mean cross-entropy in nats, a
            scalar, and it alone: the compiler gives a backward pass for every tensor returned, so
            that unused logits would cost a zero gradient of their size and a read of it.
        """
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.wte(idx) + self.wpe(positions)
        x = self.ln_f(self._blocks(x))
        # The output layer is the token table itself, so the two cannot come untied.
        logits = F.linear(x, self.wte.weight)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def _blocks(self, x: Tensor) -> Tensor:
        if self.attention is None:
            return self._blocks_in_order(x)
        # Entered here, inside what torch.compile sees, the choice becomes part of the graph. Only
        # around the compiled call it would not: the graph cache, whose key leaves these flags out,
        # then hands back whichever backend was compiled first.
        with sdpa_kernel(self.attention):
            return self._blocks_in_order(x)

    def _blocks_in_order(self, x: Tensor) -> Tensor:
        for block in self.h:
            x = block(x)
        return x


def main() -> None:
    """Print the sizes with their parameters and FLOPs per token at the longest sequence."""
    print(
        f"{'size':6} {'layers':>6} {'width':>6} {'parameters':>14} {'MFLOP/token':>12} {'floor':>9}"
    )
    for name, config in SIZES.items():
        seq = config.block_size
        print(
            f"{name:6} {config.n_layer:6d} {config.n_embd:6d} {num_params(config):14,d} "
            f"{flops_per_token(config, seq) / 1e6:12.1f} "
            f"{causal_flops_per_token(config, seq) / 1e6:9.1f}"
        )


if __name__ == "__main__":
    main()
