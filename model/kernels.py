"""GPU operators that PyTorch does not offer: matrix products with a GELU or an addition at their
end, and kernels that do in one pass over memory what PyTorch does in two.

Autograd cannot differentiate an operator here; ``model.fast`` writes the gradients. Matrices are
contiguous and bf16 unless said otherwise. Sums are added up in fp32.

    gelu, before = linear_gelu(x, weight, bias)
    loss = cross_entropy(logits, targets)  # logits now hold their gradient
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op, triton_op, wrap_triton
from torch.utils.flop_counter import register_flop_formula

from model.cublaslt import ADD_BIAS, DGELU, GELU_AUX_BIAS, PLAIN, multiply


def _result(
    a: Tensor, b: Tensor, transpose_a: bool = False, transpose_b: bool = False, fp32: bool = False
) -> Tensor:
    shape = a.shape[1 if transpose_a else 0], b.shape[0 if transpose_b else 1]
    return a.new_empty(shape, dtype=torch.float32 if fp32 else a.dtype)


@custom_op("gpt2::product", mutates_args=())
def product(
    a: Tensor, b: Tensor, bias: Tensor | None = None, added: Tensor | None = None,
    transpose_a: bool = False, transpose_b: bool = False, fp32: bool = False,
) -> Tensor:  # fmt: skip
    """Return ``a @ b + bias + added``, rounded once; a and b are transposed on request."""
    out = _result(a, b, transpose_a, transpose_b, fp32)
    epilogue = PLAIN if bias is None else ADD_BIAS
    multiply(a, b, out, transpose_a, transpose_b, epilogue, bias, added=added)
    return out


product.register_fake(lambda a, b, bias=None, added=None, *kind: _result(a, b, *kind))


@custom_op("gpt2::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return tanh-GELU of ``x @ weight.T + bias``, and that sum, which is the GELU's input."""
    out, before = (_result(x, weight, transpose_b=True) for _ in range(2))
    multiply(x, weight, out, False, True, GELU_AUX_BIAS, bias, before)
    return out, before


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    return _result(x, weight, transpose_b=True), _result(x, weight, transpose_b=True)


@custom_op("gpt2::linear_gelu_backward", mutates_args=())
def linear_gelu_backward(grad: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """Return the gradient of ``before``; ``grad`` is that of ``gelu(before) @ weight.T``."""
    out = torch.empty_like(before)
    multiply(grad, weight, out, False, False, DGELU, aux=before)
    return out


linear_gelu_backward.register_fake(lambda grad, weight, before: torch.empty_like(before))


@register_flop_formula(
    [torch.ops.gpt2.product, torch.ops.gpt2.linear_gelu, torch.ops.gpt2.linear_gelu_backward]
)
def _flops(a: Any, *_: Any, out_shape: Any, **__: Any) -> int:
    # a may be transposed, but always has rows * depth numbers.
    rows, columns = out_shape if isinstance(out_shape[0], int) else out_shape[0]
    return 2 * rows * columns * (a[0] * a[1] // rows)


@triton.jit
def _cross_entropy_row(
    logits, targets, weight_of_row, losses, columns: tl.constexpr, THREADS: tl.constexpr
):
    BLOCK: tl.constexpr = THREADS * 8
    # A thread keeps a maximum and a sum of its own, so that it waits for the others only once.
    at = tl.arange(0, THREADS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    row = tl.program_id(0)
    logits += row.to(tl.int64) * columns
    highest = tl.full((THREADS,), -1e30, tl.float32)
    total = tl.zeros((THREADS,), tl.float32)  # of exp(x - highest)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        # evict_last: the loop below reads the row once more, then from the L2 cache.
        x = tl.load(
            logits + start + at, mask=inside, other=-float("inf"), eviction_policy="evict_last"
        ).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, 1))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
        highest = higher
    highest_of_row = tl.max(highest, 0)
    total_of_row = tl.sum(total * tl.exp(highest - highest_of_row), 0)
    log_sum_exp = highest_of_row + tl.log(total_of_row)
    target = tl.load(targets + row)
    weight = tl.where(target >= 0, tl.load(weight_of_row), 0.0)
    target_logit = tl.load(logits + target, mask=target >= 0, other=0.0).to(tl.float32)
    tl.store(losses + row, (log_sum_exp - target_logit) * weight)
    tl.debug_barrier()  # no thread writes before all have read
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        x = tl.load(
            logits + start + at, mask=inside, other=-float("inf"), eviction_policy="evict_first"
        ).to(tl.float32)
        grad = (tl.exp(x - log_sum_exp) - tl.where(start + at == target, 1.0, 0.0)) * weight
        tl.store(logits + start + at, grad.to(logits.dtype.element_ty), mask=inside)


@triton_op("gpt2::cross_entropy", mutates_args={"logits"})
def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats, an fp32 scalar. Its gradient overwrites the logits.

    Args:
        logits: (rows, vocabulary).
        targets: (rows,) int64; a row whose target is negative does not count.
    """
    rows, columns = logits.shape
    weight_of_row = 1.0 / (targets >= 0).sum().float()
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    wrap_triton(_cross_entropy_row)[(rows,)](
        logits, targets, weight_of_row, losses, columns, THREADS=1024, num_warps=32
    )
    return losses.sum()


@triton.jit
def _norm_backward_rows(
    grad_y, grad_x, x, mean, rstd, weight, out, sums, rows,
    columns: tl.constexpr, rows_here: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    weight_here = tl.load(weight + column, mask=inside, other=0.0)[None, :]
    sum_weight = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    sum_out = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows_here, ROWS):
        row = program * rows_here + start + tl.arange(0, ROWS)[:, None]
        mask = (row < rows) & inside[None, :]
        at = row.to(tl.int64) * columns + column[None, :]
        dy = tl.load(grad_y + at, mask=mask, other=0.0).to(tl.float32)
        of_others = tl.load(grad_x + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        mean_here = tl.load(mean + row, mask=row < rows, other=0.0)
        rstd_here = tl.load(rstd + row, mask=row < rows, other=0.0)
        x_hat = (value - mean_here) * rstd_here
        dx_hat = dy * weight_here
        mean_dx_hat = tl.sum(dx_hat, 1, keep_dims=True) / columns
        mean_product = tl.sum(dx_hat * x_hat, 1, keep_dims=True) / columns
        dx = of_others + (dx_hat - mean_dx_hat - x_hat * mean_product) * rstd_here
        tl.store(out + at, dx.to(out.dtype.element_ty), mask=mask)
        sum_weight += tl.sum(dy * x_hat, 0)
        sum_bias += tl.sum(dy, 0)
        sum_out += tl.sum(dx, 0)
    sums += program * 3 * columns + column
    tl.store(sums, sum_weight, mask=inside)
    tl.store(sums + columns, sum_bias, mask=inside)
    tl.store(sums + 2 * columns, sum_out, mask=inside)


@triton_op("gpt2::norm_backward", mutates_args=())
def norm_backward(
    grad_y: Tensor, grad_x: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, which a LayerNorm and other operators read, and three rows of sums.

    Args:
        grad_y: the gradient of the norm's result.
        grad_x: the gradient of x by the other operators, which is added.
        mean, rstd: of each row of x, fp32.
        weight: of the norm.

    Returns:
        the gradient of x; and (3, columns) in fp32: the gradients of the norm's weight and bias,
        and the column sums of the gradient of x.
    """
    grad_y, grad_x = grad_y.contiguous(), grad_x.contiguous()
    rows, columns = x.shape
    rows_here = 2 * triton.cdiv(rows, 2 * 4 * 132)  # four programs on each SM of an H100
    programs = triton.cdiv(rows, rows_here)
    out = torch.empty_like(x)
    sums = torch.empty(programs, 3, columns, dtype=torch.float32, device=x.device)
    wrap_triton(_norm_backward_rows)[(programs,)](
        grad_y, grad_x, x, mean, rstd, weight, out, sums, rows, columns, rows_here,
        ROWS=2, BLOCK=triton.next_power_of_2(columns), num_warps=4,
    )  # fmt: skip
    return out, sums.sum(0)


@triton.jit
def _pack_rows(
    query, key, value, out, sums, rows,
    columns: tl.constexpr, rows_here: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    sums += tl.program_id(0) * 3 * columns + column
    sum_query = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_key = tl.zeros((ROWS, BLOCK), tl.float32)
    sum_value = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, rows_here, ROWS):
        row = tl.program_id(0) * rows_here + start + tl.arange(0, ROWS)[:, None]
        mask = (row < rows) & inside[None, :]
        at = row.to(tl.int64) * columns + column[None, :]
        grad_query = tl.load(query + at, mask=mask, other=0.0)
        grad_key = tl.load(key + at, mask=mask, other=0.0)
        grad_value = tl.load(value + at, mask=mask, other=0.0)
        at += row.to(tl.int64) * 2 * columns
        tl.store(out + at, grad_query, mask=mask)
        tl.store(out + at + columns, grad_key, mask=mask)
        tl.store(out + at + 2 * columns, grad_value, mask=mask)
        sum_query += grad_query.to(tl.float32)
        sum_key += grad_key.to(tl.float32)
        sum_value += grad_value.to(tl.float32)
    tl.store(sums, tl.sum(sum_query, 0), mask=inside)
    tl.store(sums + columns, tl.sum(sum_key, 0), mask=inside)
    tl.store(sums + 2 * columns, tl.sum(sum_value, 0), mask=inside)


@triton_op("gpt2::pack", mutates_args=())
def pack(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the three matrices side by side, (rows, 3 columns), and the column sums in fp32."""
    rows, columns = query.shape
    rows_here = 16 * triton.cdiv(rows, 16 * 132)
    programs = triton.cdiv(rows, rows_here)
    out = query.new_empty(rows, 3 * columns)
    sums = torch.empty(programs, 3 * columns, dtype=torch.float32, device=query.device)
    wrap_triton(_pack_rows)[(programs, triton.cdiv(columns, 128))](
        query, key, value, out, sums, rows, columns, rows_here, ROWS=16, BLOCK=128, num_warps=4
    )
    return out, sums.sum(0)
