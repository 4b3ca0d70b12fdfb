"""Find where bytes that outlive their step were allocated, and the storages of the tensors that
Python can reach, by the address of their data.

Between steps these are all bytes that are alive at the end of a step. For a leak they are the
storages of some steps that outlive the steps after them.

To find the lines the compiler is off, since a dispatch mode cannot see into its regions. What
torch's operators did not allocate has no line.
"""

import contextlib
import gc
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from stepguard.core.device import CPU
from stepguard.core.metrics import BETWEEN_STEPS, LEAK
from stepguard.core.site import Site
from stepguard.worker.counters.collector import live_objects, of_classes
from stepguard.worker.counters.locate import Origins, site_at
from stepguard.worker.counters.syncs import by_place, site_here
from stepguard.worker.counters.tally import LEAK_STEPS, RankStep, Tally, per_step
from stepguard.worker.counters.tensor_devices import storages
from stepguard.worker.rank_position import Phases

PLACES = 5  # the largest
_LIFTED = "aten.lift_fresh.default"  # the first operator of torch.tensor() that can be seen
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


def locate_kept(tally: Tally, counted: RankStep) -> None:
    """Add the lines of what lives between steps, in bytes, and of a leak, in bytes a step."""
    if BETWEEN_STEPS not in tally.values:  # several ranks on a CPU: a leak is not counted either
        return
    leaked = tally.values.get(LEAK, 0)
    any_leaked = counted.any_rank(leaked > 0)
    # With several ranks the error is raised: otherwise the other ranks would wait for this one.
    quiet = () if counted.world_size > 1 else (torch.OutOfMemoryError,)
    with contextlib.suppress(*quiet), torch.compiler.set_stance("force_eager"):
        of_one_step = _made_by(1, counted)
        # Gradients do not count, since a step may drop them at its end or its begin. Only their
        # keys are kept here, which keeps no gradient alive.
        kind = counted.device.type
        excluded = {storage._cdata for storage in gradients(counted.frozen, kind).values()}
        if sites := of_one_step.by_operator(excluded, len(counted.phases.micro_steps)):
            tally.sites[BETWEEN_STEPS] = tuple(sites)
        if not any_leaked:
            return
        made = _made_by(LEAK_STEPS, counted)
        counted.run_period()  # it replaces buffers that alternate between steps
        gc.collect()
        if leaked and (sites := made.left(len(counted.phases.micro_steps))):
            tally.sites[LEAK] = tuple(sites)


def _made_by(steps: int, counted: RankStep) -> "_Made":
    made = _Made(counted.phases, counted.device.type)
    for _ in range(steps):
        counted.phases.begin_step()
        with made:
            counted.step()
    return made


class _Made(TorchDispatchMode):  # type: ignore[misc]
    """Notes every storage that an operator allocates on a device, with the line that called it."""

    def __init__(self, phases: Phases, device: str) -> None:
        super().__init__()
        self._phases, self._device = phases, device
        self._origins = Origins()
        # The weak reference keeps the address from being given to another storage.
        self._made: dict[int, tuple[StorageWeakRef, Site]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(func)
        self._origins.note(name)
        given = {} if name == _LIFTED else storages(args, kwargs)
        result = func(*args, **kwargs)
        for key, storage in storages(result).items():
            if key in given or key in self._made or storage.device.type != self._device:
                continue
            if size := storage.nbytes():
                site = self._site(name.rpartition(".")[0], size)
                self._made[key] = StorageWeakRef(storage), site
        return result

    def _site(self, operator: str, size: int) -> Site:
        """Return the line that runs now; in autograd's own thread, the forward operator's."""
        site = site_here(operator, self._phases, size)
        if site.file or (made := self._origins.made()) is None:
            return site
        return site_at(operator, made[1], site.phase or "backward", size)

    def _alive(self, without: Collection[int] = ()) -> list[Site]:
        return [
            site
            for key, (storage, site) in self._made.items()
            if key not in without and not storage.expired()
        ]

    def by_operator(self, without: Collection[int], micro_steps: int) -> list[Site]:
        """Return the places of what still lives, ``without`` some storages. Each operator of a line
        has a site of its own, so one more operator of autograd's does not change the others.
        """
        operators: dict[str, list[Site]] = {}
        for site in self._alive(without):
            operators.setdefault(site.what, []).append(site)
        return [site for alike in operators.values() for site in by_place(alike, micro_steps)]

    def left(self, micro_steps: int) -> list[Site]:
        """Return the places of what still lives, in bytes a step, the largest first."""
        return per_step(by_place(self._alive(), micro_steps))[:PLACES]


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
    tensors = of_classes(live_objects(frozen), lambda its: issubclass(its, torch.Tensor))
    own = [_unwrapped(one) for one in tensors if _has_bytes(type(one))]
    return [one for one in own if _has_bytes(type(one)) and one.device.type == kind]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside of those of torch.func, torch.vmap and tracing."""
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
