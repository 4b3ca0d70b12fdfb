"""Matrix products by cuBLASLt that end with what PyTorch does not offer: a GELU whose input is
kept, a multiplication with the derivative of GELU, or the addition of another matrix.

    multiply(x, weight, out, False, True, GELU_AUX_BIAS, bias, before)

cuBLASLt offers up to eight kernels for a product. On an H100 its own first choice is up to 31 %
slower than the fastest of them. ``FASTEST`` names the kernel to take for each product of GPT-2.
Nothing is timed here, so every process on a machine takes the same kernels.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# The numbers of cublasLt.h: types, attributes of a product, epilogues.
FP32, BF16, COMPUTE_FP32 = 0, 14, 68
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS, AUX, AUX_WIDTH = 3, 4, 7, 8, 11, 12
PLAIN, ADD_BIAS, GELU_AUX_BIAS, DGELU = 1, 4, 164, 192
WORKSPACE_BYTES = 32 * 2**20  # as much as PyTorch grants on Hopper
MOST_WORKSPACE = 1  # an attribute of a preference
TILE, CLUSTER = (1, ctypes.c_uint32), (8, ctypes.c_uint16)  # attributes of a kernel, their types
OFFERED = 8  # kernels to ask for; on an H100 cuBLASLt offers no more
# The kernel to take, by (transpose_a, transpose_b, epilogue): its tile, and its cluster of thread
# blocks, as cublasLt.h numbers them. On an H100 with cuBLASLt 13.1 these are the fastest, or at
# most 4 % slower, for 64 and 128 sequences of GPT-2 124M (benchmarks/fast_step.md). If cuBLASLt
# does not offer it, its first choice is taken.
FASTEST = {
    (False, True, PLAIN): (201, 5),  # logits
    (False, True, ADD_BIAS): (24, 5),
    (False, True, GELU_AUX_BIAS): (28, 3),
    (False, False, PLAIN): (29, 3),  # gradients of inputs
    (False, False, DGELU): (20, 3),
    (True, False, PLAIN): (209, 3),  # gradients of weights
}
# The kernel of the two products that read the gradient of the logits. Only that matrix is so wide.
WIDE, FASTEST_OF_WIDE = 16_384, (23, 3)


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]

    def get(self, attribute: int, kind: type[ctypes.c_uint32 | ctypes.c_uint16]) -> int:
        """Return an attribute of the kernel."""
        value, written = kind(), ctypes.c_size_t()
        size = ctypes.c_size_t(ctypes.sizeof(value))
        where = attribute, ctypes.byref(value), size, ctypes.byref(written)
        _call("MatmulAlgoConfigGetAttribute", ctypes.byref(self), *where)
        return value.value


@functools.cache
def _library() -> ctypes.PyDLL:
    # PyTorch has loaded it already. PyDLL keeps the GIL: a call only enqueues work.
    return ctypes.PyDLL(f"libcublasLt.so.{str(torch.version.cuda).split('.')[0]}")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(), f"cublasLt{name}")(*arguments)
    if status:
        raise RuntimeError(f"cublasLt{name} returned status {status}")


def _create(name: str, *arguments: Any) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call(f"{name}Create", ctypes.byref(handle), *arguments)
    return handle


@functools.cache
def _handle(device: torch.device) -> ctypes.c_void_p:
    with torch.cuda.device(device):
        return _create("")  # cublasLtCreate


class _Product:
    """A matrix product of one shape, and its kernel.

    cuBLASLt stores matrices by columns, PyTorch by rows. So cuBLASLt sees our matrices transposed,
    and computes the transpose of our product: its A is our b, its B our a, its rows our columns.
    """

    def __init__(
        self, a: Tensor, b: Tensor, out: Tensor,
        transpose_a: bool, transpose_b: bool, epilogue: int,
    ) -> None:  # fmt: skip
        self._operation = _create("MatmulDesc", COMPUTE_FP32, FP32)
        self._set(TRANSPOSE_A, ctypes.c_int(transpose_b))
        self._set(TRANSPOSE_B, ctypes.c_int(transpose_a))
        self._set(EPILOGUE, ctypes.c_int(epilogue))
        self._layouts = [self._layout(tensor) for tensor in (b, a, out)]
        kind = transpose_a, transpose_b, epilogue
        self._wanted = FASTEST_OF_WIDE if a.shape[1] >= WIDE else FASTEST.get(kind)
        self._algorithm: _Algorithm | None = None

    @staticmethod
    def _layout(tensor: Tensor) -> ctypes.c_void_p:
        kind = FP32 if tensor.dtype == torch.float32 else BF16
        rows, columns = tensor.shape
        stride = ctypes.c_int64(columns)
        size = ctypes.c_uint64(columns), ctypes.c_uint64(rows)
        return _create("MatrixLayout", kind, *size, stride)

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _call("MatmulDescSetAttribute", self._operation, attribute, ctypes.byref(value), size)

    def run(
        self, a: Tensor, b: Tensor, out: Tensor,
        bias: Tensor | None, aux: Tensor | None, added: Tensor | None,
    ) -> None:  # fmt: skip
        """Enqueue the product."""
        if bias is not None:
            self._set(BIAS, ctypes.c_void_p(bias.data_ptr()))
        if aux is not None:
            self._set(AUX, ctypes.c_void_p(aux.data_ptr()))
            self._set(AUX_WIDTH, ctypes.c_int64(aux.shape[1]))
        if self._algorithm is None:  # what is offered depends on the attributes above
            self._algorithm = _choose(self._offered(_handle(a.device)), self._wanted)
        algorithm = self._algorithm
        # cuBLASLt computes out = alpha * product + beta * added.
        alpha, beta = ctypes.c_float(1.0), ctypes.c_float(0.0 if added is None else 1.0)
        added = out if added is None else added
        workspace = torch.empty(algorithm.workspace_bytes, dtype=torch.uint8, device=a.device)
        layout_b, layout_a, layout = self._layouts
        data_b, data_a, data_added, data, data_workspace = (
            ctypes.c_void_p(tensor.data_ptr()) for tensor in (b, a, added, out, workspace)
        )
        _call(
            "Matmul", _handle(a.device), self._operation, ctypes.byref(alpha), data_b, layout_b,
            data_a, layout_a, ctypes.byref(beta), data_added, layout, data, layout,
            ctypes.byref(algorithm), data_workspace, ctypes.c_size_t(algorithm.workspace_bytes),
            ctypes.c_void_p(torch.cuda.current_stream(a.device).cuda_stream),
        )  # fmt: skip

    def _offered(self, handle: ctypes.c_void_p) -> list[_Algorithm]:
        preference, most = _create("MatmulPreference"), ctypes.c_size_t(WORKSPACE_BYTES)
        size = ctypes.c_size_t(ctypes.sizeof(most))
        which = preference, MOST_WORKSPACE
        _call("MatmulPreferenceSetAttribute", *which, ctypes.byref(most), size)
        found, count = (_Algorithm * OFFERED)(), ctypes.c_int()
        layout_b, layout_a, layout = self._layouts
        _call(
            "MatmulAlgoGetHeuristic", handle, self._operation, layout_b, layout_a, layout, layout,
            preference, OFFERED, found, ctypes.byref(count),
        )  # fmt: skip
        if not count.value:
            raise RuntimeError("cuBLASLt has no kernel for this product")
        return found[: count.value]


def _choose(offered: Sequence[_Algorithm], wanted: tuple[int, int] | None) -> _Algorithm:
    for kernel in offered:
        if (kernel.get(*TILE), kernel.get(*CLUSTER)) == wanted:
            return kernel
    return offered[0]


_products: dict[tuple[object, ...], _Product] = {}


def multiply(
    a: Tensor, b: Tensor, out: Tensor, transpose_a: bool, transpose_b: bool, epilogue: int,
    bias: Tensor | None = None, aux: Tensor | None = None, added: Tensor | None = None,
) -> None:  # fmt: skip
    """Enqueue ``out = epilogue(a @ b + added)``; a and b are transposed on request.

    Args:
        a, b: contiguous bf16 matrices.
        out: contiguous, bf16 or fp32.
        epilogue: ``PLAIN``: nothing. ``ADD_BIAS``: adds ``bias``, a number for each column.
            ``GELU_AUX_BIAS``: adds ``bias``, writes the sum to ``aux`` and its tanh-GELU to
            ``out``. ``DGELU``: multiplies with the derivative of GELU at ``aux``, which it reads.
        added: a matrix of the shape and type of ``out``. All is added up in fp32.

    Raises:
        RuntimeError: a matrix is not contiguous, or cuBLASLt cannot do it.
    """
    if not (a.is_contiguous() and b.is_contiguous()):
        raise RuntimeError(f"strides are {a.stride()} and {b.stride()}; possible: contiguous")
    kind = transpose_a, transpose_b, epilogue
    key = (a.device, a.shape, b.shape, out.dtype, added is None, *kind)
    if key not in _products:
        _products[key] = _Product(a, b, out, *kind)
    _products[key].run(a, b, out, bias, aux, added)
