"""Find where bytes were allocated that are alive at the peak of a step, or outlive it: between
steps those alive at the end of a step, for a leak the storages of some steps that outlive the steps
after them. And find who keeps nodes of autograd's graph: ``total = total + loss`` keeps the graph
of every step so far. The backward pass frees its tensors, so no byte leaks, but the nodes take host
memory.

To find the lines the compiler is off, since a dispatch mode cannot see into its regions. What
torch's operators did not allocate has no line.
"""

import contextlib
import gc
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from stepguard.core.device import CPU
from stepguard.core.metrics import BETWEEN_STEPS, GRAPH_NODES, LEAK, PEAK
from stepguard.core.profile import grouped
from stepguard.core.site import Site
from stepguard.worker.counters.collector import live_objects, of_classes
from stepguard.worker.counters.locate import Origins, locate, qualified, site_at
from stepguard.worker.counters.syncs import by_place, site_here
from stepguard.worker.counters.tally import LEAK_STEPS, RankStep, Tally, per_step
from stepguard.worker.counters.tensor_devices import storages
from stepguard.worker.rank_position import Phases

PLACES = 5  # the largest
# All living storages are looked at each time that the peak may have risen so much: with 3,000 of
# them after each allocation took 7 s.
PEAK_RISE = 1.01
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
# Attributes of a node: torch's record of where it was made (in anomaly mode), and ours.
_MADE_AT, _STEP = "traceback_", "stepguard.step"
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
# Inside this block a subclass of torch.Tensor cannot refuse or record what is asked of its tensors.
_unheard = torch._C.DisableTorchFunctionSubclass


def locate_kept(tally: Tally, counted: RankStep) -> None:
    """Add the lines of bytes that live at the peak, between steps, and longer (a leak, a step)."""
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
        micro_steps = len(counted.phases.micro_steps)
        kept = of_one_step.alive(excluded)
        for metric, sites in ((BETWEEN_STEPS, kept), (PEAK, of_one_step.at_peak)):
            if sites:
                tally.sites[metric] = tuple(_by_operator(sites, micro_steps))
        if not any_leaked:
            return
        made = _made_by(LEAK_STEPS, counted)
        counted.run_period()  # it replaces buffers that alternate between steps
        gc.collect()
        if leaked and (sites := made.left(micro_steps)):
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
        self._unfreed = 0  # bytes that were made and are not known to be freed
        self._peak = 0  # the most bytes that lived at once
        self.at_peak: list[Site] = []

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
                self._unfreed += size
        if self._unfreed > PEAK_RISE * self._peak:
            alive = self.alive()
            self._unfreed = sum(site.count for site in alive)
            if self._unfreed > self._peak:
                self._peak, self.at_peak = self._unfreed, alive
        return result

    def _site(self, operator: str, size: int) -> Site:
        """Return the line that runs now; in autograd's own thread, the forward operator's."""
        site = site_here(operator, self._phases, size)
        if site.file or (made := self._origins.made()) is None:
            return site
        return site_at(operator, made[1], site.phase or "backward", size)

    def alive(self, without: Collection[int] = ()) -> list[Site]:
        """Return a site of each storage that still lives, ``without`` some. Forget the others."""
        # Else a step of many small tensors would look at all that it ever made, each time.
        self._made = {key: it for key, it in self._made.items() if not it[0].expired()}
        return [site for key, (_, site) in self._made.items() if key not in without]

    def left(self, micro_steps: int) -> list[Site]:
        """Return the places of what still lives, in bytes a step, the largest first."""
        return per_step(by_place(self.alive(), micro_steps))[:PLACES]


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


def nodes_alive(frozen: int) -> int:
    """Return the number of nodes that living tensors and living Python objects lead to."""
    return len(_nodes(frozen))


def locate_graph_nodes(tally: Tally, counted: RankStep) -> None:
    """Add the lines that made graphs that grow, in nodes a step, without the compiler."""
    if not counted.any_rank(tally.values.get(GRAPH_NODES, 0) > 0):
        return
    with torch.compiler.set_stance("force_eager"):
        for number in range(LEAK_STEPS):
            with torch.autograd.set_detect_anomaly(True, check_nan=False):
                counted.step()
            for node in _nodes(counted.frozen).values():
                node.metadata.setdefault(_STEP, number)
        counted.run_period()  # it replaces what is not kept for good
    kept = [n for n in _nodes(counted.frozen).values() if _MADE_AT in n.metadata]
    if sites := _places(kept):
        tally.sites[GRAPH_NODES] = tuple(sites)


def _nodes(frozen: int) -> dict[int, Any]:
    """Return, by id(), the nodes that living tensors and Python objects lead to."""
    nodes: dict[int, Any] = {}
    waiting = list(_held(live_objects(frozen)))
    while waiting:
        node = waiting.pop()
        if id(node) not in nodes:
            nodes[id(node)] = node  # keeps the node alive, so that its identity is not reused
            waiting += _following(node)
    return nodes


def _held(things: list[Any]) -> Iterator[Any]:
    with _unheard():
        for thing in of_classes(things, _may_hold):
            if not issubclass(type(thing), torch.Tensor):
                yield thing
            elif (node := thing.grad_fn) is not None:
                yield node


def _may_hold(kind: Any) -> bool:
    return issubclass(kind, torch.Tensor) or hasattr(kind, "next_functions")


def _following(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _places(kept: Sequence[Any]) -> list[Site]:
    """Return where the last node of each step's graph was made. A Site's count is in nodes a step:
    those of its own step that the last node leads to. In a sum over steps the last node is the
    addition. In a list of losses it is the loss.
    """
    sites: list[Site] = []
    for nodes in grouped(kept, lambda node: node.metadata.get(_STEP, LEAK_STEPS)).values():
        inside = {id(node) for node in nodes}
        followed = {id(following) for node in nodes for following in _following(node)}
        for last in (node for node in nodes if id(node) not in followed):
            if count := _take(last, inside):
                sites.append(_site(last, count))
    return per_step(sites)[:PLACES]


def _take(last: Any, inside: set[int]) -> int:
    """Remove the nodes that ``last`` leads to, and itself. Return how many they are."""
    waiting, taken = [last], 0
    while waiting:
        node = waiting.pop()
        if id(node) in inside:
            inside.remove(id(node))
            taken += 1
            waiting += _following(node)
    return taken


def _site(node: Any, count: int) -> Site:
    """Return where a node was made. torch's record of the stack ends with the innermost frame."""
    called = [frame for text in reversed(node.metadata[_MADE_AT]) for frame in _FRAME.findall(text)]
    stack = [(file, int(line), name) for file, line, name in called]
    place = locate((file, line, qualified(file, line, name)) for file, line, name in stack)
    return site_at(f"graph kept by {node.name()}", place, count=count)


def _by_operator(sites: list[Site], micro_steps: int) -> list[Site]:
    """Return a site of each operator of a line, so one more operator of autograd's does not change
    the others.
    """
    alike = grouped(sites, lambda site: site.what).values()
    return [site for each in alike for site in by_place(each, micro_steps)]
