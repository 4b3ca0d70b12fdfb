"""GPT-2 with attention in its parts, so that a profile shows what each of them takes.

    explicit_attention(size="124m", batch=4, seq=512, precision="bf16")

The parts are what CS336's annotated attention has: projections of query, key and value, rotary
positions, scores and mask, softmax, attention times V, output projection. Scores are kept whole, T
by T for each head, as before fused attention. GPT-2 has learned positions; ``rope`` adds rotary
ones, which makes another model of it.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import CausalSelfAttention
from model.phases import phase
from model.settings import check_choice
from model.workloads import Workload, forward, forward_backward

PARTS = ("qkv_projection", "rope", "scores_and_mask", "softmax", "attention_times_v",
         "output_projection")  # fmt: skip
REST = "outside_attention"  # norms, MLP and head, from the end of one attention to the next


class ExplicitAttention(nn.Module):
    """The same attention as ``fused``, with its parameters, part by part."""

    def __init__(self, fused: CausalSelfAttention, workload: Workload, rope: bool) -> None:
        super().__init__()
        self.n_head, self.c_attn, self.c_proj = fused.n_head, fused.c_attn, fused.c_proj
        self.rope = rope
        self._workload = (workload,)  # a tuple, since a module would take a module for its own

    def _phase(self, name: str) -> AbstractContextManager[object]:
        return phase(name, self._workload[0].on_phase)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        batch, seq, width = x.shape
        with self._phase("qkv_projection"):
            query, key, value = (
                part.view(batch, seq, self.n_head, width // self.n_head).transpose(1, 2)
                for part in self.c_attn(x).split(width, dim=2)
            )
        if self.rope:
            with self._phase("rope"):
                query, key = rotated(query), rotated(key)
        with self._phase("scores_and_mask"):
            scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.n_head)
            past = torch.ones(seq, seq, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~past, -math.inf)
        with self._phase("softmax"):
            weights = F.softmax(scores, dim=-1)
        with self._phase("attention_times_v"):
            mixed = weights.to(value.dtype) @ value
        with self._phase("output_projection"):
            mixed = self.c_proj(mixed.transpose(1, 2).reshape(batch, seq, width))
        with self._phase(REST):
            pass
        return mixed


def rotated(x: Tensor) -> Tensor:
    """Turn pairs of (B, H, T, D) by angles that grow with the position (RoFormer, eq. 34)."""
    seq, width = x.shape[-2:]
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, device=x.device) / width)
    angle = torch.arange(seq, device=x.device)[:, None] * frequency
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.complex(first, second) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def explicit_attention(
    *, rope: bool = False, passes: str = "forward_backward", **params: Any
) -> Workload:
    """``forward`` or ``forward_backward`` of the eager model whose attention is in its parts.

    Raises:
        ValueError: an impossible parameter; see ``model.settings.Settings`` for the others.
    """
    check_choice("passes", passes, ("forward", "forward_backward"))
    check_choice("rope", rope, (True, False))
    make = forward if passes == "forward" else forward_backward
    workload = make(**params, compile=False)
    for block in workload.model.h:
        block.attn = ExplicitAttention(block.attn, workload, rope)
    parts = PARTS if rope else tuple(name for name in PARTS if name != "rope")
    head, *rest = workload.phases
    workload.phases = (head, *parts, REST, *rest)
    return workload
