"""Counts of the step without the compiler: FLOPs, and operators with their places.

Dispatch modes cannot see into a compiled region, so the compiler is switched off for these steps
(``torch.compiler.set_stance``).
"""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from msgspec import structs
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from stepguard.core.metrics import FLOPS, OPERATORS
from stepguard.core.site import Site, merge
from stepguard.worker.block_timer import Step
from stepguard.worker.counters.changed_settings import flags
from stepguard.worker.counters.locate import Origins, Place, frames, locate, site_at, torchs_phase
from stepguard.worker.counters.tally import ACTIVE_STEPS, RankStep, StepCounter, Tally
from stepguard.worker.torch_device import on_gpu

SINGLE_BYTES = 4
LABELS = "profiler"  # the namespace of record_function: a label is no work of a step
_CAST = "aten._to_copy.default"  # also a copy to another device


class OperatorCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts every operator that is dispatched; ``by_form`` also by its arguments' form."""

    def __init__(self, by_form: bool = True) -> None:
        super().__init__()
        self._by_form = by_form
        self._origins = Origins()
        self.calls: Counter[str] = Counter()
        self.single = True  # no operator has returned floats of less precision
        self._placed: Counter[tuple[str, Place]] = Counter()
        self._phases: dict[tuple[str, Place], set[str]] = {}
        self._callers: dict[str, Counter[str]] = {}  # by file and function of the tree

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == LABELS:
            return func(*args, **(kwargs or {}))
        self._origins.note(str(func))
        result = func(*args, **(kwargs or {}))
        self.single = self.single and not _is_coarse(result)
        name = str(func)
        # The cost and the rounding of a cast depend on the new type.
        if name == _CAST and result.dtype != args[0].dtype:
            name = f"aten._to_copy[{str(result.dtype).removeprefix('torch.')}].default"
        elif self._by_form and (form := _form(func, args, kwargs or {})):
            front, _, overload = name.rpartition(".")
            name = f"{front}[{form}].{overload}"
        self.calls[name] += 1
        stack, phase = frames(sys._getframe()), torchs_phase(sys._getframe())
        place = inner = locate(stack)
        while (caller := locate(stack)).file:  # ``stack`` goes on where the last call ended
            self._note_caller(inner, caller, direct=inner is place)
            inner = caller
        if phase == "backward" and (origin := self._origins.here()):
            place = place._replace(via=origin)
        self._placed[name, place] += 1
        self._phases.setdefault((name, place), set()).add(phase)
        return result

    def _note_caller(self, place: Place, caller: Place, direct: bool) -> None:
        callers = self._callers.setdefault(f"{place.file} {place.function}", Counter())
        callers[f"{caller.function} ({caller.file}:{caller.line}): {caller.text}"] += direct

    def callers(self) -> dict[str, dict[str, int]]:
        """Return the callers of each "file function", with the operators it calls for each."""
        return {function: dict(counts) for function, counts in self._callers.items()}

    def sites(self) -> tuple[Site, ...]:
        """Return a Site for each operator and line. The line of a backward pass is the one that
        starts it, beside the forward operator.
        """
        return merge(
            site_at(name, place, min(self._phases[name, place]), count)
            for (name, place), count in self._placed.items()
            if place.file
        )


def _form(func: Any, args: Any, kwargs: Any) -> str:
    """Return the form of an operator that its arguments choose: a text argument ("tanh" of a GELU),
    or that an attention is causal. Numbers and other flags are left out: some are torch's own, and
    change with its version.
    """
    # Texts of another library may name anything, such as a process group.
    if func.namespace != "aten":
        return ""
    named = {
        argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
    }
    texts = [value for value in (named | kwargs).values() if isinstance(value, str)]
    return ",".join([*texts, *(["causal"] if (named | kwargs).get("is_causal") else [])])


def count_operators(tally: Tally, counted: RankStep) -> None:
    """Count the step's FLOPs and operators."""
    counters: list[OperatorCounter] = []
    with torch.compiler.set_stance("force_eager"):
        flops = [_flops(counted.step) for _ in range(ACTIVE_STEPS)]
        for _ in range(ACTIVE_STEPS):
            # On a GPU the time shows the cost of another form, and recordings do not have forms.
            counters.append(OperatorCounter(by_form=not on_gpu(counted.device)))
            with counters[-1]:
                counted.step()
    tally.add_parts(FLOPS, flops)
    operators, sites = zip(*((counter.calls, counter.sites()) for counter in counters), strict=True)
    tally.add_parts(OPERATORS, operators, sites)
    tally.callers = counters[0].callers()
    if tally.numbers:
        single = all(counter.single for counter in counters) and not _rounds(counted, operators[0])
        tally.numbers = structs.replace(tally.numbers, single=single)


def _rounds(counted: RankStep, operators: Iterable[str]) -> bool:
    """Tell whether GEMMs or convolutions may round their operands, by torch's settings."""
    now = flags()
    of_products = now["get_float32_matmul_precision"]
    if not on_gpu(counted.device):  # torch 2.8 has one setting for both
        of_products = now["backends.mkldnn.matmul.fp32_precision"] or of_products
        return of_products not in ("none", "ieee", "highest")
    convolves = any("convolution" in name for name in operators)
    rounds = convolves and now["backends.cudnn.allow_tf32"] == "True"
    return rounds or of_products != "highest"


def _is_coarse(result: Any) -> bool:
    tensors = result if isinstance(result, (tuple, list)) else (result,)
    return any(
        isinstance(it, torch.Tensor) and it.is_floating_point() and it.dtype.itemsize < SINGLE_BYTES
        for it in tensors
    )


def _flops(step: Step) -> dict[str, int]:
    mapping = _cpu_sdpa()
    flops = flop_counter.FlopCounterMode(display=False, custom_mapping=mapping)
    flops.mod_tracker = _NoModules()
    with flops:
        step()
    counted = flops.get_flop_counts().get("Global", {})  # missing if there is no product
    return {str(op): int(n) for op, n in counted.items()}


class _NoModules(ModuleTracker):  # type: ignore[misc]
    """Follows no module: torch's hooks that do refuse torch.autograd.grad of a leaf."""

    def __enter__(self) -> "_NoModules":
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _cpu_sdpa() -> dict[Any, Any]:
    """Return formulas for the CPU's fused attention, of which torch 2.13 counts no FLOPs."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    formulas = {
        name: lambda q, k, v, *a, **kw: flop_counter.sdpa_flop_count(q, k, v),
        f"{name}_backward": lambda grad, q, k, v, *a, **kw: flop_counter.sdpa_backward_flop_count(
            grad, q, k, v
        ),
    }
    by_operator = {
        getattr(torch.ops.aten, name, None): formula for name, formula in formulas.items()
    }
    known = {None, *flop_counter.flop_registry}
    return {operator: formula for operator, formula in by_operator.items() if operator not in known}


COUNTER = StepCounter("operators", (FLOPS, OPERATORS), count_operators)
