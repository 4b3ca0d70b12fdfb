"""Find where bytes were allocated that are alive at the peak of a step, or outlive it.

Between steps these are all bytes that are alive at the end of a step. For a leak they are the
storages of some steps that outlive the steps after them.

The compiler is off, since a dispatch mode cannot see into its regions. What torch's operators did
not allocate has no line.
"""

import contextlib
import gc
from collections.abc import Collection
from typing import Any

import torch
from msgspec.structs import replace
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from stepguard.core.metrics import BETWEEN_STEPS, LEAK, PEAK
from stepguard.core.profile import grouped
from stepguard.core.site import Site
from stepguard.worker.counters.live_storages import gradients
from stepguard.worker.counters.locate import Origins, site_at
from stepguard.worker.counters.syncs import by_place, site_here
from stepguard.worker.counters.tally import LEAK_STEPS, RankStep, Tally
from stepguard.worker.counters.tensor_devices import storages
from stepguard.worker.rank_position import Phases

PLACES = 5  # the largest
# All living storages are looked at each time that the peak may have risen so much: with 3,000 of
# them after each allocation took 7 s.
PEAK_RISE = 1.01
_LIFTED = "aten.lift_fresh.default"  # the first operator of torch.tensor() that can be seen


def locate_kept(tally: Tally, counted: RankStep) -> None:
    """Add the lines of what lives at the peak and between steps, and of a leak that was counted. A
    Site's count is bytes, for a leak bytes a step.
    """
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
    """Run steps. Return what they allocated."""
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
                site = self._site(name.rpartition(".")[0])
                self._made[key] = StorageWeakRef(storage), replace(site, count=size)
                self._unfreed += size
        if self._unfreed > PEAK_RISE * self._peak:
            alive = self.alive()
            self._unfreed = sum(site.count for site in alive)
            if self._unfreed > self._peak:
                self._peak, self.at_peak = self._unfreed, alive
        return result

    def _site(self, operator: str) -> Site:
        """Return the line that runs now. On a GPU a backward pass runs in a thread of autograd's,
        which has no line: then it is the line of the forward operator.
        """
        site = site_here(operator, self._phases)
        if site.file or (made := self._origins.made()) is None:
            return site
        return site_at(operator, made[1], site.phase or "backward")

    def alive(self, without: Collection[int] = ()) -> list[Site]:
        """Return a site of each storage that still lives, ``without`` some."""
        return [
            site
            for key, (storage, site) in self._made.items()
            if key not in without and not torch.UntypedStorage._expired(storage.cdata)
        ]

    def left(self, micro_steps: int) -> list[Site]:
        """Return the places of what still lives, in bytes a step, the largest first."""
        each = [
            replace(site, count=-(-site.count // LEAK_STEPS))
            for site in by_place(self.alive(), micro_steps)
        ]
        return sorted(each, key=lambda site: -site.count)[:PLACES]


def _by_operator(sites: list[Site], micro_steps: int) -> list[Site]:
    """Return a site of each operator of a line, so one more operator of autograd's does not change
    the others.
    """
    alike = grouped(sites, lambda site: site.what).values()
    return [site for each in alike for site in by_place(each, micro_steps)]
