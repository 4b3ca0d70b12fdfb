"""The levers of the fast step. The gate should call each of them FASTER.

The base trains without the lever. HEAD is the fast step as it is.

    python -m benchmarks.power --only "cross-entropy in place" --seconds 200 --out levers.json
"""

from benchmarks.changes import FASTER
from benchmarks.shared import Change, Edit

CASE = "train_step[124m-bf16-fast]"
FAST, KERNELS, CUBLASLT = "model/fast.py", "model/kernels.py", "model/cublaslt.py"
_PRODUCT = "nvjet|gemm|cutlass"


def _without(named: str, *edits: Edit) -> Change:
    """Return the change that brings a lever back after these edits took it away. ``named`` matches
    the kernel that the verdict's first line should name.
    """
    return Change((), FASTER, named, base_edits=edits, needs_gpu=True, case=CASE)


_LOSS = """\
        logits = _linear(y, tokens16, None)
        loss = kernels.cross_entropy(logits, targets)  # logits are their gradient from here on
        ctx.save_for_backward(y, logits, tokens16)
        return loss
"""
_LOGITS = """\
        ctx.save_for_backward(y, tokens16)
        return _linear(y, tokens16, None)
"""
_LOSS_BACKWARD = """\
        y, grad_logits, tokens16 = ctx.saved_tensors
        by_y = kernels.product(grad_logits, tokens16) * grad
        return by_y, _weight_grad(grad_logits, y) * grad, None, None
"""
_LOGITS_BACKWARD = """\
        y, tokens16 = ctx.saved_tensors
        return kernels.product(grad, tokens16), _weight_grad(grad, y), None, None
"""
_LAST = "        return _Loss.apply(y, model.wte.weight, model16.wte.weight, targets.flatten())\n"
_PLAIN_LAST = """\
        logits = _Loss.apply(y, model.wte.weight, model16.wte.weight, targets)
        return F.cross_entropy(logits.float(), targets.flatten())
"""
_NORM = '@triton_op("gpt2::norm_backward", mutates_args=())\ndef norm_backward(\n'
_PLAIN_NORM = """\
def norm_backward(
    grad_y: Tensor, grad_x: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    by_x, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
        grad_y.float(), x.float(), weight.shape, mean, rstd, weight, weight, [True] * 3
    )
    grad = (grad_x.float() + by_x).to(x.dtype)
    return grad, torch.stack((by_weight, by_bias, grad.float().sum(0)))


@triton_op("gpt2::norm_backward", mutates_args=())
def _norm_backward(
"""
_PACK = "        grad, sums = kernels.pack(*(grad.contiguous() for grad in grads))\n"
_CAT = "        grad = torch.cat(grads, dim=1)\n        sums = grad.float().sum(0)\n"
_LINEAR = "    return kernels.product(x, weight, bias, added, transpose_b=True)\n"
_LINEAR_ADD = """\
    out = kernels.product(x, weight, bias, transpose_b=True)
    return out if added is None else (added.float() + out.float()).bfloat16()
"""
_GELU = "    multiply(x, weight, out, False, True, GELU_AUX_BIAS, bias, before)\n"
_PLAIN_GELU = """\
    multiply(x, weight, before, False, True, ADD_BIAS, bias)
    torch.ops.aten.gelu.out(before, approximate="tanh", out=out)
"""
_DGELU = "    multiply(grad, weight, out, False, False, DGELU, aux=before)\n"
_PLAIN_DGELU = """\
    multiply(grad, weight, out, False, False, PLAIN)
    torch.ops.aten.gelu_backward.grad_input(out, before, approximate="tanh", grad_input=out)
"""
_FP32 = "    return kernels.product(grad, x, transpose_a=True, fp32=True)\n"
_ROUNDED = "    return kernels.product(grad, x, transpose_a=True).float()\n"
_WANTED = "        self._wanted = FASTEST_OF_WIDE if a.shape[1] >= WIDE else FASTEST.get(kind)\n"
_USES = "        return bool(self.fast and"
# All levers together first, then each alone, the largest gain first by estimate.
LEVERS: dict[str, Change] = {
    "fast step": _without("", ("model/settings.py", _USES, "        return bool(False and")),
    "cross-entropy in place": _without(
        "log_s|cross_entropy|nll_loss",
        (FAST, _LOSS, _LOGITS),
        (FAST, _LOSS_BACKWARD, _LOGITS_BACKWARD),
        (FAST, _LAST, _PLAIN_LAST),
    ),
    "GELU backward in its product": _without("gelu", (KERNELS, _DGELU, _PLAIN_DGELU)),
    "fastest products": _without(_PRODUCT, (CUBLASLT, _WANTED, "        self._wanted = None\n")),
    "GELU in its product": _without("gelu", (KERNELS, _GELU, _PLAIN_GELU)),
    "norm backward with sums": _without("norm|sum", (KERNELS, _NORM, _PLAIN_NORM)),
    "norm backward by two rows": _without(
        "norm_backward",
        (KERNELS, "rows_here = 2 * triton.cdiv(rows, 2 *", "rows_here = 4 * triton.cdiv(rows, 4 *"),
        (KERNELS, "ROWS=2, BLOCK", "ROWS=4, BLOCK"),
    ),
    "residual in the product": _without("add", (FAST, _LINEAR, _LINEAR_ADD)),
    "packed dq, dk, dv": _without("cat|sum", (FAST, _PACK, _CAT)),
    "fp32 from weight products": _without("copy", (FAST, _FP32, _ROUNDED)),
}
