"""Finds where leaked bytes were allocated: the storages of some steps that outlive later ones.

Runs only where a leak was counted, and without the compiler, whose regions a dispatch mode cannot
see into. What was allocated beside torch's operators has no line.
"""

import contextlib
import gc
from typing import Any

import torch
from msgspec.structs import replace
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from stepguard.site import Site
from stepguard.worker.count.memory import LEAK_STEPS, PERIOD
from stepguard.worker.count.placement import storages
from stepguard.worker.count.syncs import by_place, site_here
from stepguard.worker.count.tally import CountedStep, Tally
from stepguard.worker.position import Phases

LEAK = "leaked_bytes_per_step"
PLACES = 5  # the largest
_LIFTED = "aten.lift_fresh.default"  # the first operator that is seen of torch.tensor()


def locate_leak(tally: Tally, counted: CountedStep) -> None:
    """Add the lines of the leak that was counted, if any: a Site's count is bytes a step."""
    leaked = tally.values.get(LEAK, 0)
    if not counted.any_rank(leaked > 0):
        return
    made = _Made(counted.phases, counted.device.type)
    # A rank without memory must not leave the others waiting for its exchanges.
    quiet = () if counted.world_size > 1 else (torch.OutOfMemoryError,)
    with contextlib.suppress(*quiet), torch.compiler.set_stance("force_eager"):
        for _ in range(LEAK_STEPS):
            counted.phases.begin_step()
            with made:
                counted.step()
        for _ in range(PERIOD):  # after which two buffers that alternate are others
            counted.step()
        gc.collect()
        sites = made.left(len(counted.phases.micro_steps)) if leaked else []
        if sites:
            tally.sites[LEAK] = tuple(sites)


class _Made(TorchDispatchMode):  # type: ignore[misc]
    """Notes every storage that an operator allocates on a device, and the line that called it."""

    def __init__(self, phases: Phases, device: str) -> None:
        super().__init__()
        self._phases, self._device = phases, device
        # The weak reference keeps the address from being given to another storage.
        self._made: dict[int, tuple[StorageWeakRef, Site]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(func)
        given = {} if name == _LIFTED else storages(args, kwargs)
        result = func(*args, **kwargs)
        for key, storage in storages(result).items():
            if key in given or key in self._made or storage.device.type != self._device:
                continue
            if size := storage.nbytes():
                site = replace(site_here(name.rpartition(".")[0], self._phases), count=size)
                self._made[key] = StorageWeakRef(storage), site
        return result

    def left(self, micro_steps: int) -> list[Site]:
        """Return the places of what still lives, the largest first."""
        alive = [site for storage, site in self._made.values() if not storage.expired()]
        each = [
            replace(site, count=-(-site.count // LEAK_STEPS))
            for site in by_place(alive, micro_steps)
        ]
        return sorted(each, key=lambda site: -site.count)[:PLACES]
