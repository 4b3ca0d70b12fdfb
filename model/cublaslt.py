"""Matrix products by cuBLASLt that end with what PyTorch does not offer: a GELU whose input is
kept, a multiplication with the derivative of GELU, or the addition of another matrix.

    multiply(x, weight, out, False, True, GELU_AUX_BIAS, bias, before)

The first product of a shape times cuBLASLt's kernels and waits for the result; later ones only
enqueue. On an H100 cuBLASLt's own first choice is up to 9 % slower than the fastest kernel. For
three of GPT-2's products it is 17 to 25 % slower. The choice is kept where torch keeps compiled
kernels, if TORCHINDUCTOR_CACHE_DIR says where that is. Another process on the GPU disturbs the
timing, and so two launches that timed anew would choose differently: by 2 % of a step.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import statistics
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# The numbers of cublasLt.h: types, attributes of a product, epilogues.
FP32, BF16, COMPUTE_FP32 = 0, 14, 68
TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS, AUX, AUX_WIDTH = 3, 4, 7, 8, 11, 12
PLAIN, ADD_BIAS, GELU_AUX_BIAS, DGELU = 1, 4, 164, 192
WORKSPACE_BYTES = 32 * 2**20  # as much as PyTorch grants on Hopper
MOST_WORKSPACE = 1  # an attribute of a preference
CANDIDATES = 8  # kernels that are timed for a product; on an H100 cuBLASLt offers no more
FAR = 1.2  # times the fastest kernel's time, in one run: slower ones are not timed again
ROUNDS, ROUND_MS = 7, 1.0  # how often a kernel is timed again, and how long
NEAR = 1.02  # times the fastest kernel's time: the first kernel within it is chosen


class _Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


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
    """A matrix product of one shape, and the kernel that was chosen for it.

    cuBLASLt stores matrices by columns. What it reads of ours is the transpose, so it computes the
    transpose of our product: its A is our b, its B our a, and its rows are our columns.
    """

    def __init__(
        self, a: Tensor, b: Tensor, out: Tensor,
        transpose_a: bool, transpose_b: bool, epilogue: int, kept_in: Path | None,
    ) -> None:  # fmt: skip
        self._operation = _create("MatmulDesc", COMPUTE_FP32, FP32)
        self._set(TRANSPOSE_A, ctypes.c_int(transpose_b))
        self._set(TRANSPOSE_B, ctypes.c_int(transpose_a))
        self._set(EPILOGUE, ctypes.c_int(epilogue))
        self._layouts = [self._layout(tensor) for tensor in (b, a, out)]
        self._algorithm: _Algorithm | None = None
        self._kept_in = kept_in

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
        """Enqueue the product. The first call chooses its kernel, and waits for the device."""
        if bias is not None:
            self._set(BIAS, ctypes.c_void_p(bias.data_ptr()))
        if aux is not None:
            self._set(AUX, ctypes.c_void_p(aux.data_ptr()))
            self._set(AUX_WIDTH, ctypes.c_int64(aux.shape[1]))
        enqueue = functools.partial(self._enqueue, a, b, out, added)
        if self._algorithm is None:
            self._algorithm = _chosen(enqueue, self._offered(_handle(a.device)), self._kept_in)
        enqueue(self._algorithm)

    def _enqueue(
        self, a: Tensor, b: Tensor, out: Tensor, added: Tensor | None, algorithm: _Algorithm
    ) -> None:
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
        found, count = (_Algorithm * CANDIDATES)(), ctypes.c_int()
        layout_b, layout_a, layout = self._layouts
        _call(
            "MatmulAlgoGetHeuristic", handle, self._operation, layout_b, layout_a, layout, layout,
            preference, CANDIDATES, found, ctypes.byref(count),
        )  # fmt: skip
        if not count.value:
            raise RuntimeError("cuBLASLt has no kernel for this product")
        return found[: count.value]


def _kept_in(device: torch.device, *product: object) -> Path | None:
    """Return the file with the number of the chosen kernel, among those that are offered."""
    if not (folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR")):
        return None
    kernels = _library().cublasLtGetVersion(), torch.cuda.get_device_name(device)
    key = Path(__file__).read_bytes() + repr((kernels, product)).encode()
    return Path(folder, "cublaslt", hashlib.sha256(key).hexdigest())


def _chosen(
    enqueue: Callable[[_Algorithm], None], offered: list[_Algorithm], kept_in: Path | None
) -> _Algorithm:
    with suppress(OSError, ValueError, IndexError):
        if kept_in:
            return offered[int(kept_in.read_text())]
    number = _fastest([functools.partial(enqueue, one) for one in offered])
    with suppress(OSError):  # a disk that is full or cannot be written to
        if kept_in:
            kept_in.parent.mkdir(parents=True, exist_ok=True)
            part = kept_in.with_suffix(f".{os.getpid()}")
            part.write_text(str(number))
            part.replace(kept_in)
    return offered[number]


def _fastest(enqueues: list[Callable[[], None]]) -> int:
    once_ms = [_time_ms(one, 1) for one in enqueues]
    runs = max(1, int(ROUND_MS / min(once_ms)))
    left = [n for n, ms in enumerate(once_ms) if ms <= FAR * min(once_ms)]
    # In turns: the card's clock falls while it gets warm, and all should have the same.
    rounds = [[_time_ms(enqueues[n], runs) for n in left] for _ in range(ROUNDS)]
    times_ms = [statistics.median(of_one) for of_one in zip(*rounds, strict=True)]
    return next(n for n, ms in zip(left, times_ms, strict=True) if ms <= NEAR * min(times_ms))


def _time_ms(enqueue: Callable[[], None], runs: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    try:
        enqueue()
    except RuntimeError:  # a kernel that was offered may still refuse
        return math.inf
    begin.record()
    for _ in range(runs):
        enqueue()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / runs


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
    kind = (transpose_a, transpose_b, epilogue)
    key = (a.device, a.shape, b.shape, out.dtype, added is None, *kind)
    if key not in _products:
        _products[key] = _Product(a, b, out, *kind, _kept_in(*key))
    _products[key].run(a, b, out, bias, aux, added)
