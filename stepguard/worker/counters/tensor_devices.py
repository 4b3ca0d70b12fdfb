"""Find out, on a CPU, where tensors would live on a machine with a GPU.

A tensor belongs to the device if it was made there (``device=`` of the workload's device), was sent
there (``.to(device)``), is a parameter, or was computed from such a tensor. All others belong to
the host: tensors made without a device, such as torch.tensor(0.0) and a loaded batch, tensors made
with "cpu" in the call, and what was computed only from these.

So the step number of an optimizer belongs to the host. That of a fused optimizer belongs to the
device, since the fused kernel writes it together with the parameters. A batch that the code never
sends, as a CPU does not need it, belongs to the device from the second step on: the first step
shows that an operator uses it together with a parameter.

Storages are followed, not tensors: a view, or a tensor that autograd saved, is another tensor with
the same bytes.
"""

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import overrides
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _device, _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from stepguard.worker.counters.locate import call_sources, frames, locate

# This must not match `"cpu" if ... else device`, which is the device on a machine with a GPU.
_CPU_WRITTEN = re.compile(r"""(\.to\(|device\s*=)\s*(torch\.device\(\s*)?["']cpu["'](?!\s+if\b)""")
_COPIES = ("aten.copy_.default", "aten._foreach_copy_.default")  # between devices, by design
_INDEX = "aten.index.Tensor"
_INDEXED = (_INDEX, "aten.index_put.default", "aten.index_put_.default")
# The result of these operators may be what code sends to a GPU. So if the result belongs to the
# device, the input may still belong to the host.
_STANDS_FOR_TRANSFER = re.compile(r"^aten\.(_to_copy|cat|clone|lift_fresh|stack)\.")
_PLAIN = {bool, float, int, str, type(None), torch.device, torch.dtype, torch.layout}
Sees = Callable[[Any, Any, Any], object]  # a function, its arguments, its keywords
Origin = tuple[str, str, int, int]  # operator, file, line, and the number of its call in a step


def _nothing(func: Any, args: Any, kwargs: Any) -> None:
    """See nothing."""


class Placement:
    """Knows where each storage that it saw being made would live: on the GPU or on the host."""

    def __init__(self) -> None:
        # The weak reference keeps the address from being given to another storage.
        self._known: dict[int, tuple[StorageWeakRef, bool]] = {}
        # The call that made each storage of the host, and the calls that made its inputs.
        self._made_by: dict[int, Origin] = {}
        self._given: dict[Origin, set[Origin]] = {}
        self._sent: set[Origin] = set()  # calls whose results are used with the device's tensors
        self._calls: Counter[tuple[str, str, int]] = Counter()

    @contextmanager
    def observed(
        self, copies: bool = False, on_operator: Sees = _nothing, on_call: Sees = _nothing
    ) -> Iterator[None]:
        """Follow all that is made and computed inside the block, which runs eagerly.

        With ``copies`` a move between host and device makes a copy, as on a machine with a GPU.
        Without, both are one tensor. The others see each operator, and each call of a function of
        torch's, before it runs.
        """
        self._calls.clear()
        follows, moves = _Follows(self, on_operator), _Moves(self, copies, on_call)
        with _eagerly(), moves, follows:
            yield
            _put_on_top(moves, overrides)
            _put_on_top(follows, _python_dispatch)

    def on_device(self, *things: Any) -> bool:
        """Return whether any tensor among ``things`` would live on the GPU."""
        return any(self._is_on_device(tensor) for tensor in _tensors(things))

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor was seen to be made on the host."""
        storage = _storage(tensor)
        known = self._known.get(storage._cdata) if storage is not None else None
        return known is not None and not self._is_on_device(tensor)

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        storage = _storage(tensor)
        # A tensor without a storage (sparse) cannot be followed, and must not hide a wait.
        if storage is None or self._known.get(storage._cdata, (None, False))[1]:
            return True
        # Parameters count, even if the code did not send them because this machine has no GPU.
        return isinstance(tensor, torch.nn.Parameter) or tensor.is_leaf and tensor.requires_grad

    def put(self, things: Any, on_device: bool) -> None:
        """Note where all tensors among ``things`` would live."""
        self._place(storages(things), on_device)

    def _place(self, found: dict[int, torch.UntypedStorage], on_device: bool) -> None:
        for key, storage in found.items():
            if self._known.get(key, (None, None))[1] is not on_device:
                self._known[key] = StorageWeakRef(storage), on_device

    def forget_freed(self) -> None:
        """Forget storages that were freed."""
        self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
        self._made_by = {key: maker for key, maker in self._made_by.items() if key in self._known}

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Note where an operator's result, and what it wrote, would live."""
        name = str(func)
        if name in _COPIES:
            return
        # Ranks exchange what lives on their GPUs, such as a bucket that a reducer made.
        on_device = func.namespace == "c10d" or self.on_device(args, kwargs)
        if on_device:
            joined = storages(*_joined(func, args, kwargs))
            self._learn(joined)
            self._place(joined, True)
        # Each key is looked up, since the difference of two key views goes through all known
        # storages. A script may make a thousand small tensors, and this runs for each of them.
        elif made := [key for key in storages(result) if key not in self._known]:
            on_device = self._note(made, name, (args, kwargs))
        # A view has the storage of its input, so it lives where its input does.
        self.put(result, on_device)

    def _note(self, made: Iterable[int], name: str, given: Any) -> bool:
        """Note which call made these storages of the host. Return whether an operator of an earlier
        step used the results of this call together with the device's tensors.
        """
        place = locate(frames(sys._getframe()))
        call = name, place.file, place.line
        self._calls[call] += 1
        origin = *call, self._calls[call]
        if not _STANDS_FOR_TRANSFER.match(name) and not (name == _INDEX and not _masks(given)):
            from_calls = {self._made_by.get(key) for key in storages(given)}
            self._given.setdefault(origin, set()).update(filter(None, from_calls))
        self._made_by |= dict.fromkeys(made, origin)
        return origin in self._sent

    def _learn(self, joined: Iterable[int]) -> None:
        """Note that the calls that made these, and their inputs, make tensors of the device."""
        waiting = [self._made_by[key] for key in joined if key in self._made_by]
        new: set[Origin] = set()
        while waiting:
            origin = waiting.pop()
            if origin not in self._sent:
                self._sent.add(origin)
                new.add(origin)
                waiting += self._given.get(origin, ())
        for key, origin in self._made_by.items() if new else ():
            if origin in new and key in self._known:  # such as the next batch, loaded ahead
                self._known[key] = self._known[key][0], True


def _masks(given: Any) -> bool:
    return any(tensor.dtype == torch.bool for tensor in _tensors(given))


def _joined(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a call that must all be on one device: those that the operator writes,
    and those with a dimension. Only a tensor without one, a number, may come from the host.
    """
    for place, name, written, fused in _arguments(func):
        given = args[place] if place < len(args) else kwargs.get(name)
        whole = written or fused and isinstance(given, list | tuple)
        yield from (tensor for tensor in _tensors(given) if whole or tensor.dim())


@functools.cache  # to read a schema takes as long as a small operator
def _arguments(func: Any) -> tuple[tuple[int, str, bool, bool], ...]:
    """Return an operator's arguments, without indices that torch copies to the device: place, name,
    whether it is written, and whether the operator is fused. A fused kernel accepts no number from
    the host in its lists.
    """
    operator, arguments = str(func), enumerate(func._schema.arguments)
    return tuple(
        (place, one.name, bool(one.alias_info and one.alias_info.is_write), "_fused_" in operator)
        for place, one in arguments
        if not (one.name == "indices" and operator in _INDEXED)
    )


def _eagerly() -> AbstractContextManager[None]:
    """Switch the compiler off if it is there: it would give up frames that it meets."""
    there = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if there else nullcontext()


def _put_on_top(mode: Any, stack: Any) -> None:
    """Let the mode be the one that is left first: a workload may have left modes of its own on."""
    later = []
    while (one := stack._pop_mode()) is not mode:
        later.append(one)
    for one in [*reversed(later), mode]:
        stack._push_mode(one)


class _Follows(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, placement: Placement, before: Sees) -> None:
        super().__init__()
        self._placement, self._before = placement, before

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import the compiler, only to switch it off

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._before(func, args, kwargs)
        result = func(*args, **kwargs)
        self._placement.follow(func, args, kwargs, result)
        return result


class _Moves(TorchFunctionMode):  # type: ignore[misc]
    """Follows calls that name a device. On a CPU no operator shows such a move."""

    def __init__(self, placement: Placement, copies: bool, before: Sees) -> None:
        super().__init__()
        self._placement, self._copies, self._before = placement, copies, before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._before(func, args, kwargs)
        result = func(*args, **kwargs)
        if func is torch.Tensor.__deepcopy__:  # no operator shows this copy
            self._placement.put(result, self._placement.on_device(args[0]))
            return result
        wanted = target(func, args, kwargs)
        if wanted is None or self._placement.on_device(result) is wanted:
            return result
        if self._copies and any(result is argument for argument in args):
            result = result.clone()
        self._placement.put(result, wanted)
        return result


def target(func: Any, args: Any, kwargs: Any) -> bool | None:
    """Return whether a call wants its result on the device or the host; None if neither."""
    name = getattr(func, "__name__", "")
    if name == "cpu" and args:
        return False
    named = kwargs.get("device")
    if name == "to" and named is None:
        named = next((a for a in args[1:2] if isinstance(a, str | torch.device)), None)
    if named is None:
        return True if _made_on_default_device(name, args, kwargs) else None
    # In the call itself, or in one of torch's own calls within it.
    return not any(map(_CPU_WRITTEN.search, call_sources(sys._getframe())))


def _made_on_default_device(name: str, args: Any, kwargs: Any) -> bool:
    makers = _device._device_constructors() if _device.CURRENT_DEVICE is not None else ()
    return any(getattr(maker, "__name__", "") == name for maker in makers)


def _tensors(things: Any) -> list[torch.Tensor]:
    """Return all tensors among ``things``, in order. It runs for each operator: tree_iter() alone
    would take as long as all else that is done for one.
    """
    if isinstance(things, torch.Tensor):
        return [things]
    kind = type(things)
    if kind in _PLAIN:
        return []
    if kind in (dict, list, tuple):
        parts = things.values() if kind is dict else things
        return [tensor for part in parts for tensor in _tensors(part)]
    return [thing for thing in tree_iter(things) if isinstance(thing, torch.Tensor)]


def storages(*things: Any) -> dict[int, torch.UntypedStorage]:
    """Return the storages of all tensors among ``things``, by address."""
    of_tensors = filter(None, (_storage(tensor) for tensor in _tensors(things)))
    return {storage._cdata: storage for storage in of_tensors}


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
