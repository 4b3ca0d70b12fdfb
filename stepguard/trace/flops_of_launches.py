"""FLOPs and bytes of launches, from the shapes of the operators that launched them.

The work of these is known:

* Matrix products: 2 M N K FLOPs, and each of the three matrices is moved once.
* Fused attention: two products forward and five backward, and half of that if it is causal.
* Kernels that Triton generated: each tensor is moved once.

The work of all others is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated

import msgspec

from stepguard.core.profile import Work, type_of
from stepguard.trace.api_calls import DTYPE_BYTES

_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
# Index of the query, of the causal flag, and of the dimension of tokens.
_ATTENTION = {
    "aten::_flash_attention_forward": (0, 8, 1),
    "aten::_flash_attention_backward": (1, 11, 1),
    "aten::_cudnn_attention_forward": (0, 10, 2),
    "aten::_cudnn_attention_backward": (1, 14, 2),
    "aten::_scaled_dot_product_cudnn_attention": (0, 6, 2),
    "aten::_scaled_dot_product_cudnn_attention_backward": (1, 14, 2),
}
_TRITON = "triton_"
Shape = list[Annotated[int, msgspec.Meta(ge=0)]]


@dataclass(frozen=True)
class Inputs:
    """The inputs of an operator, as JSON, as the file has them."""

    operator: str
    dims: bytes
    types: bytes
    values: bytes


def is_known(operator: str) -> bool:
    """Return whether the work of an operator is known."""
    return operator in _PRODUCTS or operator in _ATTENTION or operator.startswith(_TRITON)


def work_of(inputs: Inputs) -> Work:
    """Return the work of one call; none if shapes and types are not as expected."""
    try:
        dims = msgspec.json.decode(inputs.dims)
        types = msgspec.json.decode(inputs.types, type=list[str])
        values = msgspec.json.decode(inputs.values or b"[]", type=list[str])
        if inputs.operator in _PRODUCTS:
            at = _PRODUCTS[inputs.operator]
            return _product(_shape(dims[at]), _shape(dims[at + 1]), types[at])
        if inputs.operator.startswith(_TRITON):
            return Work(bytes=_bytes([_shape(dim) for dim in dims], types))
        first, causal, tokens = _ATTENTION[inputs.operator]
        query, key = (_shape(dim) for dim in dims[first : first + 2])
        products = 5 if first else 2  # the first input of the backward pass is the gradient
        return _attention(query, key, tokens, products, types[first], values[causal] == "True")
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError, OverflowError):
        return Work()


def _shape(dim: object) -> Shape:
    """Return a tensor's shape. Raises ValidationError if it is none, such as a list of shapes."""
    return msgspec.convert(dim, type=Shape)


def _size(dtype: str) -> int:
    return DTYPE_BYTES.get(dtype.lower(), 0)


def _bytes(dims: Sequence[Shape], types: Sequence[str]) -> float:
    # Inputs that are no tensors have the shape [] and do not count.
    both = zip(dims, types, strict=True)
    return float(sum(prod(shape) * _size(dtype) for shape, dtype in both if shape))


def _product(left: Shape, right: Shape, dtype: str) -> Work:
    *batch, m, k = left
    if k != right[-2]:
        return Work()
    n, many = right[-1], prod(batch)
    moved = many * (m * k + k * n + m * n) * _size(dtype)
    return Work(2.0 * many * m * n * k, float(moved), type_of(dtype))


def _attention(
    query: Shape, key: Shape, tokens: int, products: int, dtype: str, causal: bool
) -> Work:
    flops = products * 2.0 * prod(query) * key[tokens] * (0.5 if causal else 1.0)
    # Query, key, value and output; in the backward pass also the gradients of these four.
    moved = (prod(query) + prod(key)) * (2 if products == 2 else 4) * _size(dtype)
    return Work(flops, float(moved), type_of(dtype))
