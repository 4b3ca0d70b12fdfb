"""Counts of the step with the compiler out of the way: FLOPs, operators, candidates for host syncs.

A compiled region is opaque to dispatch modes, so the compiler is asked to step aside
(``torch.compiler.set_stance``).
"""

import re
import sys
from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from stepguard.device import CPU
from stepguard.site import Site
from stepguard.worker.clock import Step
from stepguard.worker.count.locate import call_source
from stepguard.worker.count.syncs import by_place, site_here
from stepguard.worker.count.tally import ACTIVE_STEPS, CountedStep, Tally
from stepguard.worker.device import empty_cache, on_gpu
from stepguard.worker.position import Phases

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
# Methods that no operator shows on a CPU, where the copy to the host is none.
_TO_HOST = {"cpu": "copy to the host", "tolist": ".tolist()", "__repr__": "print of a tensor"}
_TO_CPU = re.compile(r"""\.to\(\s*(device\s*=\s*)?(torch\.device\(\s*)?["']cpu["']""")
CANDIDATE_STEPS = 10  # whoever logs every tenth step is seen, whatever step the counting begins at


class OperatorCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts every ATen operator that reaches the dispatcher's Python key, backward included."""

    def __init__(self, phases: Phases) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.candidates: list[Site] = []
        self._phases = phases

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self.calls[name] += 1
        kwargs = kwargs or {}
        if what := _waits(name, args, kwargs):
            self.note(what)
        return func(*args, **kwargs)

    def note(self, what: str) -> None:
        """Add a candidate: the line that is running now."""
        self.candidates.append(site_here(what, self._phases))


def _waits(name: str, args: Any, kwargs: Any) -> str:
    """Return what would make the host wait in a call of an operator; empty if nothing would."""
    if name in _WAITING:  # an output_size spares repeat_interleave reading its repeats
        return "" if kwargs.get("output_size") is not None else _WAITING[name]
    if name == _INDEX or name in _INDEX_PUT and not _fills(*args[2:4]):
        tensors = [index for index in args[1] if isinstance(index, torch.Tensor)]
        # torch takes bytes as a mask, too.
        masked = any(index.dtype in (torch.bool, torch.uint8) for index in tensors)
        return "nonzero of a mask" if masked else ""
    return ""


def _fills(values: Any, accumulate: bool = False) -> bool:
    """Return whether torch makes a masked_fill of it on a GPU, as of ``x[mask] = 0.0``: no wait."""
    return values.dim() == 0 and not accumulate


class HostCopies(TorchFunctionMode):  # type: ignore[misc]
    """Notes the calls that bring a tensor to the host, which on a CPU dispatch nothing."""

    def __init__(self, counter: OperatorCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _TO_HOST and args and isinstance(args[0], torch.Tensor):
            self._counter.note(_TO_HOST[name])
        elif name == "to" and any(map(_is_cpu, (*args[1:2], kwargs.get("device")))):
            # x.to(device) is no copy to the host because this run's device happens to be a CPU.
            if _TO_CPU.search(call_source(sys._getframe())):
                self._counter.note("copy to the host")
        return func(*args, **kwargs)


def _is_cpu(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device) == CPU


def count_eager(tally: Tally, counted: CountedStep) -> None:
    """Count FLOPs and operators of the step, and on a CPU what would make a host wait for a GPU."""
    gpu, phases = on_gpu(counted.device), counted.phases
    if gpu:
        empty_cache()
    counters: list[OperatorCounter] = []
    try:
        with torch.compiler.set_stance("force_eager"):
            counted.step()
            flops = [_flops(counted.step) for _ in range(ACTIVE_STEPS)]
            for _ in range(ACTIVE_STEPS if gpu else CANDIDATE_STEPS):
                phases.begin_step()
                counters.append(OperatorCounter(phases))
                with HostCopies(counters[-1]), counters[-1]:
                    counted.step()
    except torch.OutOfMemoryError:
        reason = "the eager step does not fit in this GPU's memory"
        tally.missing(reason, "flops_per_step", "operator_calls_per_step")
        return
    tally.add_parts("flops_per_step", flops)
    calls = [counter.calls for counter in counters[:ACTIVE_STEPS]]
    tally.add_parts("operator_calls_per_step", calls)
    if not gpu:  # allowed candidates are kept, and do not count
        counts = [sum(not site.allowed for site in counter.candidates) for counter in counters]
        most = counters[counts.index(max(counts))].candidates
        sites = by_place(most, len(phases.micro_steps))
        tally.add("sync_candidates_per_step", counts, sites=sites)


def _flops(step: Step) -> dict[str, int]:
    mapping = _cpu_sdpa()
    with flop_counter.FlopCounterMode(display=False, custom_mapping=mapping) as flops:
        step()
    counted = flops.get_flop_counts().get("Global", {})  # absent without any product
    return {str(op): int(n) for op, n in counted.items()}


def _cpu_sdpa() -> dict[Any, Any]:
    """Return formulas for the CPU's fused attention, zero FLOPs to torch 2.13 and older."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    formulas = {
        name: lambda q, k, v, *a, **kw: flop_counter.sdpa_flop_count(q, k, v),
        f"{name}_backward": lambda grad, q, k, v, *a, **kw: flop_counter.sdpa_backward_flop_count(
            grad, q, k, v
        ),
    }
    found = {getattr(torch.ops.aten, name, None): formula for name, formula in formulas.items()}
    known = {None, *flop_counter.flop_registry}
    return {operator: formula for operator, formula in found.items() if operator not in known}
