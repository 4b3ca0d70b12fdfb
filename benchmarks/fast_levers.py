"""What the fast step does without one of its levers, for ``benchmarks.fast_step --levers``.

Most of the alternatives are exchanged below the compiled code, inside an operator. Four change what
is compiled; those get a copy of ``model.fast`` of their own.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model import cublaslt, fast, kernels

Patch = Callable[[ModuleType], None]
MULTIPLY = kernels.multiply


@dataclass
class Lever:
    """One lever's absence.

    Attributes:
        multiply: what stands for ``kernels.multiply`` meanwhile.
        better: what stands for ``cublaslt.BETTER`` meanwhile.
        patch: changes a copy of ``model.fast``, which is compiled anew.
        products: what cuBLASLt was found to do best under that rule.
    """

    multiply: Callable[..., None] | None = None
    better: float | None = None
    patch: Patch | None = None
    products: dict[Any, Any] = field(default_factory=dict)

    def put_into(self, workload: Any) -> None:
        """Let ``workload`` train on a changed copy of ``model.fast``."""
        # The compiler finds globals by the name of the module: the copy has its own.
        name = f"fast_{id(self)}"
        spec = importlib.util.spec_from_file_location(name, fast.__file__)
        assert spec and spec.loader and self.patch
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.patch(module)
        workload._fast = module.FastGPT(workload.model)
        workload._network = torch.compile(workload._fast, dynamic=False)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Exchange what the lever stands for."""
        before = kernels.multiply, cublaslt.BETTER, cublaslt._products
        kernels.multiply = self.multiply or kernels.multiply
        cublaslt.BETTER = cublaslt.BETTER if self.better is None else self.better
        if self.better is not None:
            cublaslt._products = self.products
        try:
            yield
        finally:
            kernels.multiply, cublaslt.BETTER, cublaslt._products = before


def _separate_gelu(
    a: Tensor, b: Tensor, out: Tensor, ta: bool, tb: bool, epilogue: int,
    bias: Any = None, aux: Any = None, added: Any = None,
) -> None:  # fmt: skip
    if epilogue != kernels.GELU_AUX_BIAS:
        return MULTIPLY(a, b, out, ta, tb, epilogue, bias, aux, added)
    MULTIPLY(a, b, aux, ta, tb, kernels.ADD_BIAS, bias)
    torch.ops.aten.gelu.out(aux, approximate="tanh", out=out)


def _separate_gelu_backward(
    a: Tensor, b: Tensor, out: Tensor, ta: bool, tb: bool, epilogue: int,
    bias: Any = None, aux: Any = None, added: Any = None,
) -> None:  # fmt: skip
    if epilogue != kernels.DGELU:
        return MULTIPLY(a, b, out, ta, tb, epilogue, bias, aux, added)
    MULTIPLY(a, b, out, ta, tb, kernels.PLAIN)
    torch.ops.aten.gelu_backward.grad_input(out, aux, approximate="tanh", grad_input=out)


def _rounded_weight_grads(
    a: Tensor, b: Tensor, out: Tensor, ta: bool, tb: bool, epilogue: int,
    bias: Any = None, aux: Any = None, added: Any = None,
) -> None:  # fmt: skip
    if out.dtype != torch.float32:
        return MULTIPLY(a, b, out, ta, tb, epilogue, bias, aux, added)
    rounded = torch.empty_like(out, dtype=torch.bfloat16)
    MULTIPLY(a, b, rounded, ta, tb, epilogue)
    out.copy_(rounded)


def _norm_backward(
    grad_y: Tensor, grad_x: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    by_x, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
        grad_y.float(), x.float(), weight.shape, mean, rstd, weight, weight, [True] * 3
    )
    grad = (grad_x.float() + by_x).bfloat16()
    return grad, torch.stack((by_weight, by_bias, grad.float().sum(0)))


def _pack(*grads: Tensor) -> tuple[Tensor, Tensor]:
    grad = torch.cat(grads, dim=1)
    return grad, grad.float().sum(0)


def _plain_loss(module: ModuleType) -> None:
    class Head(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor, tokens: Tensor, tokens16: Tensor) -> Tensor:
            ctx.save_for_backward(y, tokens16)
            return module._linear(y, tokens16, None)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
            y, tokens16 = ctx.saved_tensors
            return module.kernels.product(grad, tokens16), module._weight_grad(grad, y), None

    class Loss:
        @staticmethod
        def apply(y: Tensor, tokens: Tensor, tokens16: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(Head.apply(y, tokens, tokens16).float(), targets)

    module._Loss = Loss


def _added_in_the_norm(module: ModuleType) -> None:
    product = module._linear

    def linear(x: Tensor, weight: Tensor, bias: Any, added: Any = None) -> Tensor:
        out = product(x, weight, bias)
        return out if added is None else (added.float() + out.float()).bfloat16()

    module._linear = linear


def _exchange(**operators: Any) -> Patch:
    def patch(module: ModuleType) -> None:
        module.kernels = ModuleType("kernels")
        module.kernels.__dict__.update({**vars(kernels), **operators})

    return patch


LEVERS = {
    "choice by time": Lever(better=0.0),
    "GELU in its product": Lever(multiply=_separate_gelu),
    "GELU backward in its product": Lever(multiply=_separate_gelu_backward),
    "fp32 from weight products": Lever(multiply=_rounded_weight_grads),
    "cross-entropy in place": Lever(patch=_plain_loss),
    "packed dq, dk, dv": Lever(patch=_exchange(pack=_pack)),
    "norm backward with sums": Lever(patch=_exchange(norm_backward=_norm_backward)),
    "residual in the product": Lever(patch=_added_in_the_norm),
}
