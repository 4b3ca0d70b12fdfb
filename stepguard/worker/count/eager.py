"""Counts of the step with the compiler out of the way: FLOPs, and operators with their places.

A compiled region is opaque to dispatch modes, so the compiler is asked to step aside
(``torch.compiler.set_stance``).
"""

import sys
from collections import Counter
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from stepguard.site import Site, merge
from stepguard.worker.clock import Step
from stepguard.worker.count.candidates import count_candidates
from stepguard.worker.count.locate import Place, frames, locate
from stepguard.worker.count.tally import ACTIVE_STEPS, CountedStep, Tally
from stepguard.worker.device import empty_cache, on_gpu

_CAST = "aten._to_copy.default"  # also a copy to another device


class OperatorCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts every ATen operator that reaches the dispatcher's Python key, backward included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._placed: Counter[tuple[str, Place]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if name == _CAST and result.dtype != args[0].dtype:  # costs and rounds as that type does
            name = f"aten._to_copy[{str(result.dtype).removeprefix('torch.')}].default"
        self.calls[name] += 1
        self._placed[name, locate(frames(sys._getframe()))] += 1
        return result

    def sites(self) -> tuple[Site, ...]:
        """Return a Site for each operator and line; of a backward pass the line that started it."""
        placed = [item for item in self._placed.items() if item[0][1].file]
        return merge(Site(name, *place, count=count) for (name, place), count in placed)


def count_eager(tally: Tally, counted: CountedStep) -> None:
    """Count FLOPs and operators of the step, and on a CPU what would make a host wait for a GPU.

    Raises torch.OutOfMemoryError with several ranks: those with memory wait for the one without.
    """
    gpu = on_gpu(counted.device)
    if gpu:
        empty_cache()
    counters: list[OperatorCounter] = []
    try:
        with torch.compiler.set_stance("force_eager"):
            counted.step()
            flops = [_flops(counted.step) for _ in range(ACTIVE_STEPS)]
            for _ in range(ACTIVE_STEPS):
                counters.append(OperatorCounter())
                with counters[-1]:
                    counted.step()
        if not gpu:
            count_candidates(tally, counted)
    except torch.OutOfMemoryError:
        if counted.world_size > 1:
            raise
        reason = "the eager step does not fit in this GPU's memory"
        tally.missing(reason, "flops_per_step", "operator_calls_per_step")
        return
    tally.add_parts("flops_per_step", flops)
    operators = [counter.calls for counter in counters]
    tally.add_parts("operator_calls_per_step", operators, counters[0].sites())


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
