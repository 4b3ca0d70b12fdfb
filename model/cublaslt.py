"""Matrix products by cuBLASLt that end with what PyTorch does not offer: a GELU whose input is
kept, a multiplication with the derivative of GELU, or the addition of another matrix.

    multiply(x, weight, out, False, True, GELU_AUX_BIAS, bias, before)

The first product of a shape times the kernels that cuBLASLt offers, and waits for the result. Later
products only enqueue the chosen kernel. On an H100 cuBLASLt's own first choice is up to 9 % slower
than the fastest kernel. For three of GPT-2's products it is 17 to 25 % slower.

The choice is kept in TORCHINDUCTOR_CACHE_DIR, in the folder ``cublaslt``, and later processes take
it. Torch sets that variable when it first compiles, if nobody else has. Without it each process
chooses anew. Another process on the GPU disturbs the timing, so processes that choose anew differ,
by 2 % of a step. To choose anew, remove the folder.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import hashlib
import math
import os
import statistics
import uuid
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
FIRST_ROUNDS = 3  # single runs of each kernel; a disturbed one does not count
FAR = 1.2  # times the fastest kernel's time, in single runs: slower kernels are not timed again
ROUNDS, ROUND_MS = 7, 1.0  # how often the others are timed again, and how long
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


class _Refused(RuntimeError):
    """cuBLASLt cannot do what was asked for."""


@functools.cache
def _library() -> ctypes.PyDLL:
    # PyTorch has loaded it already. PyDLL keeps the GIL: a call only enqueues work.
    return ctypes.PyDLL(f"libcublasLt.so.{str(torch.version.cuda).split('.')[0]}")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_library(), f"cublasLt{name}")(*arguments)
    if status:
        raise _Refused(f"cublasLt{name} returned status {status}")


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
            raise _Refused("cuBLASLt has no kernel for this product")
        return found[: count.value]


def _kept_in(device: torch.device, *product: object) -> Path | None:
    """Return the file for the number of the chosen kernel among those that are offered. Its name is
    made of all that a choice depends on.
    """
    if not (folder := os.environ.get("TORCHINDUCTOR_CACHE_DIR")):
        return None
    kernels = _library().cublasLtGetVersion(), torch.cuda.get_device_name(device)
    key = repr((_code(), kernels, product)).encode()
    return Path(folder, "cublaslt", hashlib.sha256(key).hexdigest())


@functools.cache
def _code() -> str:
    """Return this module's code. Comments and docstrings do not count: if they did, an edit of them
    would make the head of a pair choose anew, beside a base that keeps its choice.
    """
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    return ast.dump(tree)


def _chosen(
    enqueue: Callable[[_Algorithm], None], offered: list[_Algorithm], kept_in: Path | None
) -> _Algorithm:
    if kept_in and (kept := _kept(enqueue, offered, kept_in)):
        return kept
    number = _fastest([functools.partial(enqueue, one) for one in offered])
    if kept_in is None:
        return offered[number]
    _keep(number, kept_in)
    # If several processes chose at the same time, all take the choice that was kept first.
    return _kept(enqueue, offered, kept_in) or offered[number]


def _kept(
    enqueue: Callable[[_Algorithm], None], offered: list[_Algorithm], kept_in: Path
) -> _Algorithm | None:
    """Return the kept choice, if there is one that runs. Remove any other."""
    try:
        kernel = {str(n): one for n, one in enumerate(offered)}[kept_in.read_text()]
        enqueue(kernel)
    except OSError:
        return None
    except (ValueError, KeyError, _Refused):  # no text, no number of a kernel, or not for this GPU
        with suppress(OSError):
            kept_in.unlink()
        return None
    return kernel


def _keep(number: int, kept_in: Path) -> None:
    part = kept_in.with_suffix(f".{uuid.uuid4().hex}")
    with suppress(OSError):  # a choice is there already, or the disk is full or read-only
        kept_in.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(str(number))
        os.link(part, kept_in)  # a rename would replace another process's choice
    with suppress(OSError):
        part.unlink()


def _fastest(enqueues: list[Callable[[], None]]) -> int:
    # In turns, here and below: something else on the GPU slows down several runs in a row, and the
    # card's clock falls while it gets warm.
    first = [[_time_ms(one, 1) for one in enqueues] for _ in range(FIRST_ROUNDS)]
    once_ms = [min(of_one) for of_one in zip(*first, strict=True)]
    runs = max(1, int(ROUND_MS / min(once_ms)))
    left = [n for n, ms in enumerate(once_ms) if ms <= FAR * min(once_ms)]
    rounds = [[_time_ms(enqueues[n], runs) for n in left] for _ in range(ROUNDS)]
    times_ms = [statistics.median(of_one) for of_one in zip(*rounds, strict=True)]
    return next(n for n, ms in zip(left, times_ms, strict=True) if ms <= NEAR * min(times_ms))


def _time_ms(enqueue: Callable[[], None], runs: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    try:
        enqueue()
    except _Refused:  # a kernel that was offered may still refuse
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
