"""The numbers that a step computes: its loss, the norms of its gradients and of its update.

Steps that compute the same have the same numbers, but for the order of sums. A gradient counts as
it is when the optimizer steps: added up, exchanged, unscaled and clipped. Those of one name,
or that a step takes several times, count together. Nothing is read from the device before all steps
have run, and no memory is taken but a few KiB.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from numbers import Real
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import optimizer as torch_optimizer

from stepguard.core.metrics import NUMBERS, setting
from stepguard.core.step_numbers import (
    GRADIENT,
    LOSS,
    THIRDS,
    UPDATE,
    UPDATES,
    WHOLE,
    StepNumbers,
)
from stepguard.worker.counters.collector import live_objects, of_classes
from stepguard.worker.counters.tally import RankStep, Tally

STEPS = 2  # the second one computes with what the first one's update left
# What of a group of an optimizer does not change its mathematics.
FORM = "params param_names initial_lr fused foreach capturable differentiable".split()
# Single precision adds up so many squares at a time, double precision their sums. A tensor of
# doubles as large as a parameter would be memory that the step does not need.
ROW = 1024
SAMPLED = 1024  # elements of a parameter whose update is taken: a copy of all may be too large
INPUTS = 3  # the argument behind the roots of a backward pass: what the gradients are of
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def count_numbers(tally: Tally, counted: RankStep) -> None:
    """Run STEPS steps and take their numbers. The optimizers' options are their parts."""
    numbers = StepReader(counted)
    for _ in range(STEPS):
        numbers.step()
    tally.numbers = StepNumbers(listed=[*numbers.read().items()])
    tally.values[NUMBERS] = len(tally.numbers.listed)
    tally.detail[NUMBERS] = dict.fromkeys(numbers.options(), 1)


class StepReader:
    """Takes the numbers of each step that step() runs. They stay on the device until read()."""

    def __init__(self, counted: RankStep) -> None:
        self._counted = counted
        self._names = _names(counted.frozen)  # of each parameter, by its id
        self._taken: list[dict[str, Tensor]] = []  # of each step
        self._roots: list[Tensor] = []  # losses of this step that a backward pass began with
        self._returned: dict[str, Tensor] = {}  # norms of this step's torch.autograd.grad
        self._stepped = False
        self._before: list[tuple[Tensor, Tensor]] = []  # parameters and their sampled elements
        self._options: dict[str, list[object]] = {}  # of the optimizers, with their values

    def step(self) -> None:
        """Run a step and take its numbers."""
        self._taken.append({})
        self._roots, self._returned, self._stepped = [], {}, False
        with self._listening():
            returned = self._counted.step()
        losses: list[Any] = [returned] if _is_loss(returned) else self._roots
        if losses:
            exact = [_local(loss).double().to(losses[0].device) for loss in losses]
            self._taken[-1][LOSS] = torch.cat(exact).sum()
        if not self._stepped:
            if WHOLE in self._taken[-1]:
                self._take_gradients(self._parameters(), None)
            else:
                self._taken[-1] |= self._returned
        if moved := [it for name, it in self._taken[-1].items() if name.startswith(UPDATE)]:
            self._taken[-1][UPDATES] = _together(moved)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hear backward passes and optimizers inside the block."""
        run = torch.autograd._engine_run_backward  # both torch.autograd.backward and .grad

        def heard(roots: Any, *args: Any, **kwargs: Any) -> Any:
            returned = run(roots, *args, **kwargs)
            # A pass inside of another, as of a checkpoint, does a part of that one's work.
            inside = torch._C._current_graph_task_id() != -1
            if inside or any(map(_is_mapped, (*roots, *(returned or ())))):
                return returned
            self._roots += [root.detach().clone() for root in roots if _is_loss(root)]
            if returned:
                for one, gradient in zip(args[INPUTS], returned, strict=True):
                    if gradient is not None and id(one) in self._names:
                        self._add(self._returned, GRADIENT, one, _thirds(gradient))
            elif not self._stepped:
                norms = [_norm(_local(one.grad)) for one in self._parameters() if _has(one)]
                if norms:
                    self._taken[-1][WHOLE] = _together(norms)
            return returned

        with ExitStack() as stack:
            stack.enter_context(patch.object(torch.autograd, "_engine_run_backward", heard))
            begin = torch_optimizer.register_optimizer_step_pre_hook(_outside(self._begin))
            stack.callback(begin.remove)
            end = torch_optimizer.register_optimizer_step_post_hook(_outside(self._end))
            stack.callback(end.remove)
            yield

    def _begin(self, optimizer: Any, closure: bool) -> None:
        self._stepped = True
        if not closure:
            self._take(optimizer)
        owned = (one for group in optimizer.param_groups for one in group["params"])
        self._before = [(one, _sample(one)) for one in owned if closure or _has(one)]

    def _end(self, optimizer: Any, closure: bool) -> None:
        if closure:  # it has computed the gradients that the optimizer used
            self._take(optimizer)
        for one, before in self._before:
            moved = _norm(_sample(one).double() - before.double())
            self._add(self._taken[-1], UPDATE, one, moved.view(1))
        self._before = []

    def _take(self, optimizer: Any) -> None:
        for index, group in enumerate(optimizer.param_groups):
            who = f"{type(optimizer).__name__}, group {index}"
            said = {name: it for name, it in group.items() if name not in FORM and _is_option(it)}
            # Without a gradient an optimizer leaves a parameter alone, frozen or forgotten.
            elements = sum(one.numel() for one in group["params"] if _has(one))
            for name, it in {**said, "elements": str(elements)}.items():
                value = it.detach().clone() if isinstance(it, Tensor) else it
                self._options.setdefault(f"{who}: {name}", []).append(value)
        owned = [one for group in optimizer.param_groups for one in group["params"]]
        # The fused kernel will divide by it.
        self._take_gradients(owned, getattr(optimizer, "grad_scale", None))

    def _take_gradients(self, parameters: list[Tensor], scale: Tensor | None) -> None:
        for one in filter(_has, parameters):
            norms = _thirds(one.grad)
            if scale is not None:
                norms = norms / scale.to(norms.device)
            self._add(self._taken[-1], GRADIENT, one, norms)

    def _add(self, known: dict[str, Tensor], what: str, parameter: Tensor, norms: Tensor) -> None:
        if id(parameter) not in self._names:
            self._names[id(parameter)] = f"parameter {len(self._names)}", parameter
        name = what + self._names[id(parameter)][0]
        if (earlier := known.get(name)) is not None:
            sides = earlier, norms.to(earlier.device)
            parts = max(map(len, sides))
            norms = torch.hypot(*(pad(side, (0, parts - len(side))) for side in sides))
        known[name] = norms

    def _parameters(self) -> list[Tensor]:
        return [parameter for _, parameter in self._names.values()]

    def options(self) -> list[str]:
        """Return "AdamW, group 0: lr = 0.001, 0.002" for each option, with the values of steps."""
        return [
            setting(name, ", ".join(dict.fromkeys(str(_said(value)) for value in values)))
            for name, values in sorted(self._options.items())
        ]

    def read(self) -> dict[str, list[list[float | None]]]:
        """Read all numbers from the device, once. Return by name those of each step."""
        each = [
            (step, name, it.reshape(-1))
            for step, taken in enumerate(self._taken)
            for name, it in taken.items()
        ]
        if not each:
            return {}
        device = each[-1][2].device
        read = iter(torch.cat([it.to(device) for _, _, it in each]).tolist())
        by_name: dict[str, list[list[float | None]]] = {}
        for step, name, it in each:
            known = [number if math.isfinite(number) else None for number in islice(read, len(it))]
            by_name.setdefault(name, [[0.0] * len(it) for _ in self._taken])[step] = known
        return by_name


def _names(frozen: int) -> dict[int, tuple[str, Tensor]]:
    modules = of_classes(live_objects(frozen), lambda its: issubclass(its, torch.nn.Module))
    inner = {id(child) for module in modules for child in module.children()}
    names: dict[int, tuple[str, Tensor]] = {}
    for root in (module for module in modules if id(module) not in inner):
        for name, parameter in root.named_parameters():
            for wrapper in WRAPPERS:
                name = name.replace(wrapper, "")
            name = name.removeprefix("module.")
            known = names.get(id(parameter), (name, parameter))[0]
            names[id(parameter)] = min(known, name, key=lambda one: (len(one), one)), parameter
    return names


def _outside(hook: Callable[[Any, bool], None]) -> Callable[..., None]:
    """Return a hook of an optimizer's step that does nothing while the step is only being compiled,
    or captured in a CUDA graph. It is told whether the step has a closure.
    """

    def called(optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        if not (torch.compiler.is_compiling() or capturing):
            with torch.no_grad():
                hook(optimizer, any(map(callable, (*args[1:], kwargs.get("closure")))))

    return called


def _is_loss(root: Any) -> bool:
    return isinstance(root, Tensor) and root.numel() == 1 and root.is_floating_point()


def _has(parameter: Tensor) -> bool:
    return parameter.grad is not None


def _local(tensor: Any) -> Tensor:
    """Return a tensor's elements; this rank's share of a sharded one."""
    whole = tensor.detach()
    if whole.is_sparse:
        whole = whole.coalesce().values()
    if whole.is_complex():
        whole = torch.view_as_real(whole.resolve_conj())
    share: Tensor = whole.to_local() if hasattr(whole, "to_local") else whole
    return share.reshape(-1)


def _is_mapped(value: Any) -> bool:
    """Tell whether a value stands for many: inside torch.func, or for a batch of gradients."""
    keys = str(torch._C._dispatch_keys(value)) if isinstance(value, Tensor) else ""
    return "FuncTorch" in keys or "Batched" in keys


def _thirds(gradient: Any) -> Tensor:
    """Return the norm of each third of a gradient."""
    return torch.stack([*map(_norm, _local(gradient).chunk(len(THIRDS)))])


def _norm(flat: Tensor) -> Tensor:
    exact = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=exact)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=exact)
    return torch.linalg.vector_norm(torch.cat([rows.double(), rest.double().view(1)]))


def _together(norms: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def _sample(parameter: Tensor) -> Tensor:
    flat = _local(parameter)
    return flat[:: -(-flat.numel() // SAMPLED) or 1].clone()


def _is_option(value: object) -> bool:
    """Tell whether a group's value is an option: plain, or a tensor with one number."""
    if isinstance(value, list | tuple):
        return all(map(_is_option, value))
    return _is_loss(value) or isinstance(value, Real | str | None)


def _said(value: object) -> object:
    """Return an option's value in one form. A schedule's last digits follow from the order."""
    if isinstance(value, list | tuple):
        return tuple(map(_said, value))
    if isinstance(value, Tensor):
        value = value.item()
    return value if isinstance(value, bool | str | None) else float(f"{value:.6g}")
