"""The storages of the tensors that Python can reach, by the address of their data."""

from collections.abc import Iterable
from typing import Any

import torch

from stepguard.core.device import CPU
from stepguard.worker.counters.collector import live_objects, of_classes

_BY_ROW = ("crow_indices", "col_indices", "values")
_BY_COLUMN = ("ccol_indices", "row_indices", "values")
_PARTS = {  # the methods that return a sparse tensor's dense ones
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _BY_ROW,
    torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN,
    torch.sparse_bsc: _BY_COLUMN,
}
# Inside this block a subclass of torch.Tensor cannot refuse or record what is asked of its tensors.
_unheard = torch._C.DisableTorchFunctionSubclass


def live_tensor_bytes(frozen: int = 0) -> int:
    """Return the bytes of all CPU storages that Python can reach through tensors."""
    return bytes_of(live_storages(frozen))


def bytes_of(storages: dict[int, torch.UntypedStorage]) -> int:
    """Return the bytes of all of them."""
    return sum(storage.nbytes() for storage in storages.values())


def live_storages(frozen: int) -> dict[int, torch.UntypedStorage]:
    """Return all CPU storages that Python can reach through tensors, with those of gradients."""
    with _unheard():
        tensors = _reachable(frozen, CPU)
        return _by_data(tensors) | _by_data(_gradients(tensors))


def gradients(frozen: int, kind: str) -> dict[int, torch.UntypedStorage]:
    """Return the storages of gradients on that kind of device, by the address of their data."""
    with _unheard():
        return _by_data(_gradients(_reachable(frozen, kind)))


def _gradients(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    # A gradient may have no Python object yet. Only leaves are asked, since torch warns for others.
    grads = (tensor.grad for tensor in tensors if tensor.is_leaf)
    return [grad for grad in grads if grad is not None and grad.layout == torch.strided]


def _by_data(tensors: Iterable[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    storages = (part.untyped_storage() for tensor in tensors for part in _dense(tensor))
    return {storage.data_ptr(): storage for storage in storages}


def _dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the dense tensors that have a tensor's bytes; none for an opaque one (MKL-DNN)."""
    if tensor.layout == torch.strided:
        return [tensor]
    return [getattr(tensor.detach(), part)() for part in _PARTS.get(tensor.layout, ())]


def _reachable(frozen: int, kind: str) -> list[torch.Tensor]:
    """Return the tensors on a kind of device that Python can reach."""
    tensors = of_classes(live_objects(frozen), lambda its: issubclass(its, torch.Tensor))
    own = [_unwrapped(one) for one in tensors if _has_bytes(type(one))]
    return [one for one in own if _has_bytes(type(one)) and one.device.type == kind]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of those that torch.func, torch.vmap and torch's tracing put around
    it. Only the inner one has a storage.
    """
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    functional = torch._is_functional_tensor(tensor)
    return torch._from_functional_tensor(tensor) if functional else tensor


def _has_bytes(kind: Any) -> bool:
    """Tell whether tensors of a class have the bytes that they report. A class with its own
    __torch_dispatch__ wraps other tensors, or has no bytes (FakeTensor).
    """
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
