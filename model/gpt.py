"""GPT-2 as nanoGPT trains it: pre-norm blocks with biases, tanh-approximated GELU, learned
positions, output weights tied to the token embedding, PyTorch's fused attention.

Speeds measured here are therefore comparable with what is published for "GPT-2 124M".

    model = GPT(SIZES["124m"], seed=1337, device="cuda")
    loss = model(inputs, targets)
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from model.config import GPTConfig

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
