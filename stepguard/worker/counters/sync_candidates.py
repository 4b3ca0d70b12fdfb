"""Candidates for host syncs: calls of the eager step, on a CPU, that would wait for a GPU.

Only a call that reads a tensor of the device waits; tensor_devices.py knows which those are.
"""

import sys
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils._pytree import tree_iter

from stepguard.core.metrics import CANDIDATES
from stepguard.core.site import Site
from stepguard.worker.counters.locate import Origins, torchs_phase
from stepguard.worker.counters.syncs import by_place, site_here
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally
from stepguard.worker.counters.tensor_devices import Placement, target
from stepguard.worker.rank_position import Phases

# Operators that hand a value of the device to the host, or need one to know their output's shape.
_WAITING = {
    "aten._local_scalar_dense.default": ".item()",
    "aten.nonzero.default": "nonzero",
    "aten.masked_select.default": "masked_select",
    "aten._unique2.default": "unique",
    "aten.unique_dim.default": "unique",
    "aten.unique_consecutive.default": "unique_consecutive",
    "aten.repeat_interleave.Tensor": "repeat_interleave",
    "aten.equal.default": "equal",
    "aten.allclose.default": "allclose",
    "aten.bincount.default": "bincount",
}
_INDEX = "aten.index.Tensor"
_INDEX_PUT = ("aten.index_put.default", "aten.index_put_.default", "aten._index_put_impl_.default")
_COPY = "aten.copy_.default"
# Methods that no operator shows on a CPU, where nothing is copied to the host.
_TO_HOST = {
    "cpu": "copy to the host",
    "numpy": ".numpy()",
    "tolist": ".tolist()",
    "__repr__": "print of a tensor",
}
# Calls that read the numbers in a list of tensors, without an operator that a dispatch mode sees.
_FROM_NUMBERS = ("tensor", "as_tensor", "new_tensor")
# After so many steps, all that a step reads was made in a step that was followed.
SETTLING_STEPS = 2
CANDIDATE_STEPS = 10  # a loop that logs every tenth step is seen, wherever the counting begins


def count_candidates(tally: Tally, counted: RankStep) -> None:
    """Count sync_candidates_per_step over CANDIDATE_STEPS steps, without the compiler."""
    steps: list[list[Site]] = []
    for _ in range(SETTLING_STEPS + CANDIDATE_STEPS):
        counted.phases.begin_step()
        counted.placement.forget_freed()
        waits = _Waits(counted.placement, counted.phases)
        with counted.placement.observed(True, waits.operator, waits.call):
            counted.step()
        steps.append(waits.sites)
    # Allowed candidates are kept, but do not count.
    del steps[:SETTLING_STEPS]
    counts = [sum(not site.allowed for site in of_step) for of_step in steps]
    sites = [by_place(of_step, len(counted.phases.micro_steps)) for of_step in steps]
    tally.add(CANDIDATES, counts, sites=sites)


class _Waits:
    """Notes operators that would wait, and calls that bring a tensor to the host."""

    def __init__(self, placement: Placement, phases: Phases) -> None:
        self.sites: list[Site] = []
        self.placement, self._phases = placement, phases
        self._origins = Origins()

    def operator(self, func: Any, args: Any, kwargs: Any) -> None:
        """Note an operator that would wait."""
        name = str(func)
        self._origins.note(name)
        if what := self._waits(name, args, kwargs):
            self._note(what)

    def call(self, func: Any, args: Any, kwargs: Any) -> None:
        """Note a call that would bring a tensor to the host."""
        name = getattr(func, "__name__", "")
        moves = (name in _TO_HOST or name == "to") and args and isinstance(args[0], torch.Tensor)
        if moves and self.placement.on_device(args[0]):
            if name in _TO_HOST:
                self._note(_TO_HOST[name])
            # With non_blocking torch copies into pinned memory, and the host goes on.
            elif target(func, args, kwargs) is False and not kwargs.get("non_blocking"):
                self._note("copy to the host")
        if name in _FROM_NUMBERS:
            given = (*args[name == "new_tensor" :], kwargs.get("data"))[0]
            for value in tree_iter(given) if isinstance(given, list | tuple) else ():
                if self.placement.on_device(value):
                    self._note(".item()")

    def _note(self, what: str) -> None:
        """Add a candidate at the line that runs now; in a backward pass, with its operator."""
        site = site_here(what, self._phases)
        if torchs_phase(sys._getframe()) == "backward" and (origin := self._origins.here()):
            site = replace(site, via=origin)
        self.sites.append(site)

    def _waits(self, name: str, args: Any, kwargs: Any) -> str:
        """Return why a call of an operator would make the host wait; empty if it would not."""
        if name in _WAITING:  # with an output_size repeat_interleave need not read its repeats
            spared = kwargs.get("output_size") is not None or not self.placement.on_device(args)
            return "" if spared else _WAITING[name]
        if name == _INDEX or name in _INDEX_PUT and not _fills(*args[2:4]):
            tensors = [index for index in args[1] if isinstance(index, torch.Tensor)]
            # torch accepts bytes as a mask, too.
            masks = [index for index in tensors if index.dtype in (torch.bool, torch.uint8)]
            return "nonzero of a mask" if self.placement.on_device(masks) else ""
        if name == _COPY and not _is_async(*args[2:3], **kwargs):
            to_host = self.placement.on_device(args[1]) and self.placement.on_host(args[0])
            return "copy to the host" if to_host else ""
        return ""


def _fills(values: Any, accumulate: bool = False) -> bool:
    """Return whether ``x[mask] = 0.0`` is a masked_fill on a GPU, which does not wait."""
    return values.dim() == 0 and not accumulate


def _is_async(non_blocking: bool = False) -> bool:
    return non_blocking


COUNTER = StepCounter("candidates for host syncs", (CANDIDATES,), count_candidates)
