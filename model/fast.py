"""The training forward and backward pass of a ``GPT`` on the operators of ``model.kernels``.

It is the same model: parameters and gradients are the GPT's own, in fp32. Products, and the
stream between the layers, are bf16. Products read copies of the parameters in bf16, whose names end
in 16. The copies are renewed after each update. An autograd function here takes the fp32 parameters
beside their copies, because autograd then fills their gradients.

    fast = FastGPT(model)
    fast(inputs, targets).backward()  # fills the gradients of model
    optimizer.step()
    fast.renew()
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from model import kernels
from model.gpt import GPT

Grads = tuple[Tensor | None, ...]
EPSILON = 1e-5  # of nn.LayerNorm


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, added: Tensor | None = None) -> Tensor:
    return kernels.product(x, weight, bias, added, transpose_b=True)


def _weight_grad(grad: Tensor, x: Tensor) -> Tensor:
    return kernels.product(grad, x, transpose_a=True, fp32=True)


def _norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = torch.native_layer_norm(x.float(), weight.shape, weight, bias, EPSILON)
    return y.bfloat16(), mean, rstd


class _Embed(Function):
    """Make the stream of token ids, and its first norm; both are (rows, width)."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, tokens: Tensor, positions: Tensor, norm: Tensor, norm_bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        x = (F.embedding(ids, tokens) + positions[: ids.shape[1]]).flatten(0, 1).bfloat16()
        y, mean, rstd = _norm(x, norm, norm_bias)
        ctx.save_for_backward(ids, x, mean, rstd, norm)
        ctx.sizes = tokens.shape[0], positions.shape[0]
        return x, y

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_y: Tensor) -> Grads:
        ids, *normed = ctx.saved_tensors
        grad, sums = kernels.norm_backward(grad_y, grad_x, *normed)
        grad = grad.float().view(*ids.shape, -1)
        tokens, positions = ctx.sizes
        by_token = torch.ops.aten.embedding_dense_backward(grad, ids, tokens, -1, False)
        by_position = F.pad(grad.sum(0), (0, 0, 0, positions - ids.shape[1]))
        return None, by_token, by_position, sums[0], sums[1]


class _Heads(Function):
    """Make query, key and value of the normed stream, each (rows, width)."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor, bias: Tensor, weight16: Tensor, bias16: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(y, weight16)
        return _linear(y, weight16, bias16).split(y.shape[1], dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Grads:
        y, weight16 = ctx.saved_tensors
        grad, sums = kernels.pack(*(grad.contiguous() for grad in grads))
        return kernels.product(grad, weight16), _weight_grad(grad, y), sums, None, None


class _Project(Function):
    """Project the result of attention, and add it to the stream. Return the stream and its norm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mixed: Tensor, norm: Tensor, norm_bias: Tensor,
        weight: Tensor, bias: Tensor, weight16: Tensor, bias16: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x = _linear(mixed, weight16, bias16, x)
        y, mean, rstd = _norm(x, norm, norm_bias)
        ctx.save_for_backward(mixed, weight16, x, mean, rstd, norm)
        return x, y

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_y: Tensor) -> Grads:
        mixed, weight16, *normed = ctx.saved_tensors
        grad, sums = kernels.norm_backward(grad_y, grad_x, *normed)
        by_mixed, by_weight = kernels.product(grad, weight16), _weight_grad(grad, mixed)
        return grad, by_mixed, sums[0], sums[1], by_weight, sums[2], None, None


class _MLP(Function):
    """Add the MLP of the normed stream to the stream. Return the stream and its norm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, norm: Tensor, norm_bias: Tensor,
        fc: Tensor, fc_bias: Tensor, fc16: Tensor, fc_bias16: Tensor,
        proj: Tensor, proj_bias: Tensor, proj16: Tensor, proj_bias16: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        inner, before = kernels.linear_gelu(y, fc16, fc_bias16)
        x = _linear(inner, proj16, proj_bias16, x)
        z, mean, rstd = _norm(x, norm, norm_bias)
        ctx.save_for_backward(y, inner, before, fc16, proj16, x, mean, rstd, norm)
        return x, z

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_z: Tensor) -> Grads:
        y, inner, before, fc16, proj16, *normed = ctx.saved_tensors
        grad, sums = kernels.norm_backward(grad_z, grad_x, *normed)
        grad_before = kernels.linear_gelu_backward(grad, proj16, before)
        by_fc = _weight_grad(grad_before, y), grad_before.float().sum(0), None, None
        by_proj = _weight_grad(grad, inner), sums[2], None, None
        return grad, kernels.product(grad_before, fc16), sums[0], sums[1], *by_fc, *by_proj


class _Loss(Function):
    """Return the mean cross-entropy of the output layer."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, tokens: Tensor, tokens16: Tensor, targets: Tensor) -> Tensor:
        logits = _linear(y, tokens16, None)
        loss = kernels.cross_entropy(logits, targets)  # logits are their gradient from here on
        ctx.save_for_backward(y, logits, tokens16)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Grads:
        y, grad_logits, tokens16 = ctx.saved_tensors
        by_y = kernels.product(grad_logits, tokens16) * grad
        return by_y, _weight_grad(grad_logits, y) * grad, None, None


class FastGPT(nn.Module):
    """A faster way to the loss and the gradients of ``model``, which keeps its parameters.

    Call it with (B, T) int64 ids and the ids that follow; it returns the mean cross-entropy.
    """

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        # In a tuple, so that the copies are no parameters of this module.
        self._copies = (copy.deepcopy(model).bfloat16().requires_grad_(False),)

    @torch.no_grad()
    def renew(self) -> None:
        """Copy the parameters again; call it whenever they have changed."""
        copies, originals = self._copies[0].parameters(), self.model.parameters()
        torch._foreach_copy_(list(copies), list(originals))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats, a scalar."""
        model, model16 = self.model, self._copies[0]
        norms = [norm for block in model.h for norm in (block.ln_1, block.ln_2)] + [model.ln_f]
        next_norm = iter([(norm.weight, norm.bias) for norm in norms])
        # x is the stream, y its newest norm.
        x, y = _Embed.apply(ids, model.wte.weight, model.wpe.weight, *next(next_norm))
        for block, block16 in zip(model.h, model16.h, strict=True):
            attn, attn16, mlp, mlp16 = block.attn, block16.attn, block.mlp, block16.mlp
            heads = _Heads.apply(y, *_pair(attn.c_attn, attn16.c_attn))
            mixed = F.scaled_dot_product_attention(
                *(one.view(*ids.shape, attn.n_head, -1).transpose(1, 2) for one in heads),
                is_causal=True,
            )
            mixed = mixed.transpose(1, 2).reshape(y.shape)
            x, y = _Project.apply(x, mixed, *next(next_norm), *_pair(attn.c_proj, attn16.c_proj))
            linears = *_pair(mlp.c_fc, mlp16.c_fc), *_pair(mlp.c_proj, mlp16.c_proj)
            x, y = _MLP.apply(x, y, *next(next_norm), *linears)
        return _Loss.apply(y, model.wte.weight, model16.wte.weight, targets.flatten())


def _pair(linear: nn.Linear, linear16: nn.Linear) -> tuple[Tensor, ...]:
    return linear.weight, linear.bias, linear16.weight, linear16.bias
