"""The numbers that steps compute: the loss, and norms of each parameter's gradient and update.

Steps that compute the same have the same numbers, but for the order of sums. A gradient counts as
it is when the optimizer steps: added up, exchanged, unscaled and clipped. Nothing is read from the
device before all steps have run, and no memory is taken but a few KiB.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from stepguard.worker.counters.collector import live_objects
from stepguard.worker.counters.tally import RankStep

LOSS, GRADIENT, UPDATE = "loss", "gradient of ", "update of "
# What changes the mathematics of an optimizer. fused, foreach and capturable do not.
OPTIONS = """
lr weight_decay decoupled_weight_decay betas momentum dampening nesterov eps amsgrad maximize
""".split()
# Single precision adds up so many squares at a time, double precision their sums. A tensor of
# doubles as large as a parameter would be memory that the step does not need.
ROW = 1024
SAMPLED = 1024  # elements of a parameter whose update is taken: a copy of all may be too large


@dataclass
class Numbers:
    """What some steps computed. Each list has the numbers in the order of the steps."""

    values: dict[str, list[float]] = field(default_factory=dict)  # "loss", "gradient of h.0.bias"
    options: list[str] = field(default_factory=list)  # "AdamW, group 0: lr = 0.001"


def take_numbers(counted: RankStep, steps: int) -> Numbers:
    """Run steps and return their numbers."""
    taking = _Taking()
    for _ in range(steps):
        with taking.listening():
            returned = counted.step()
        taking.end_step(returned, counted.frozen)
    return taking.numbers(counted.frozen)


class _Taking:
    """Takes numbers while steps run. They stay on the device until all have run."""

    def __init__(self) -> None:
        self._taken: list[tuple[str, Tensor | None, Tensor]] = []  # kind, its parameter, number
        self._roots: list[Tensor] = []  # losses of this step that a backward pass began with
        self._stepped = False
        self._before: list[tuple[Tensor, Tensor]] = []  # parameters and their sampled elements
        self._options: dict[str, None] = {}
        self._names: dict[int, str] = {}  # by the parameter's id
        self._parameters: list[Tensor] = []  # of all modules, once they are known

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear backward passes and optimizers inside the block."""
        backward = torch.autograd.backward

        def heard(tensors: Any, *args: Any, **kwargs: Any) -> None:
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            self._roots += [root.detach() for root in roots if _is_loss(root)]
            backward(tensors, *args, **kwargs)

        with ExitStack() as stack:
            stack.enter_context(patch.object(torch.autograd, "backward", heard))
            begin = torch_optimizer.register_optimizer_step_pre_hook(self._begin)
            stack.callback(begin.remove)
            stack.callback(torch_optimizer.register_optimizer_step_post_hook(self._end).remove)
            yield

    def _begin(self, optimizer: Any, args: object, kwargs: object) -> None:
        if not _not_now():
            with torch.no_grad():
                self._take_before(optimizer)

    def _take_before(self, optimizer: Any) -> None:
        self._stepped = True
        scale = getattr(optimizer, "grad_scale", None)  # the fused kernel will divide by it
        groups = optimizer.param_groups
        for index, group in enumerate(groups):
            said = {name: group[name] for name in OPTIONS if name in group}
            who = f"{type(optimizer).__name__}, group {index}"
            self._options |= {
                f"{who}: {name} = {_said(value)}": None for name, value in said.items()
            }
        owned = [parameter for group in groups for parameter in group["params"]]
        for parameter in owned:
            self._take_gradient(parameter, scale)
        self._before = [(parameter, _sample(parameter)) for parameter in owned if _has(parameter)]

    def _end(self, optimizer: Any, args: object, kwargs: object) -> None:
        if _not_now():
            return
        for parameter, before in self._before:
            moved = _norm(_sample(parameter).double() - before.double())
            self._taken.append((UPDATE, parameter, moved))
        self._before = []

    def end_step(self, returned: object, frozen: int) -> None:
        """Take the loss that the step returned, or those of its backward passes. If no optimizer
        stepped, take the gradients that the step left.
        """
        losses = [returned] if isinstance(returned, Tensor) and _is_loss(returned) else self._roots
        if losses:
            exact = [loss.detach().double().reshape(()) for loss in losses]
            self._taken.append((LOSS, None, torch.stack(exact).sum()))
        if self._roots and not self._stepped:
            if not self._parameters:
                self._know(frozen)
            for parameter in self._parameters:
                self._take_gradient(parameter, None)
        self._roots, self._stepped = [], False

    def _take_gradient(self, parameter: Tensor, scale: Tensor | None) -> None:
        if _has(parameter):
            norm = _norm(parameter.grad)
            norm = norm if scale is None else norm / scale.to(norm.device)
            self._taken.append((GRADIENT, parameter, norm))

    def _know(self, frozen: int) -> None:
        """Learn the names of the parameters that modules own."""
        modules = [thing for thing in live_objects(frozen) if _is_module(thing)]
        inner = {id(child) for module in modules for child in module.children()}
        for root in (module for module in modules if id(module) not in inner):
            for name, parameter in root.named_parameters():
                if id(parameter) not in self._names:
                    self._parameters.append(parameter)
                name = name.replace("_orig_mod.", "").removeprefix("module.")
                known = self._names.setdefault(id(parameter), name)
                self._names[id(parameter)] = min(known, name, key=lambda name: (len(name), name))

    def numbers(self, frozen: int) -> Numbers:
        """Read all numbers from the device, once, and return them."""
        if not self._names:
            self._know(frozen)
        names: dict[tuple[str, int], str] = {}
        values: dict[str, list[float]] = {}
        for (kind, parameter, _), value in zip(self._taken, self._read(), strict=True):
            key = kind, id(parameter)
            if key not in names:
                name = kind
                if parameter is not None:
                    shape = "x".join(map(str, parameter.shape))
                    name += self._names.get(id(parameter), f"a parameter {shape}")
                same = sum(one.partition(" #")[0] == name for one in values)
                names[key] = f"{name} #{same + 1}" if same else name
                values[names[key]] = []
            values[names[key]].append(value)
        return Numbers(values, list(self._options))

    def _read(self) -> Sequence[float]:
        if not self._taken:
            return []
        device = self._taken[-1][2].device
        read: list[float] = torch.stack([number.to(device) for *_, number in self._taken]).tolist()
        return read


def _not_now() -> bool:
    """Tell whether an optimizer's step is only being compiled, or captured in a CUDA graph."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def _is_loss(thing: object) -> bool:
    return isinstance(thing, Tensor) and thing.numel() == 1 and thing.is_floating_point()


def _is_module(thing: object) -> bool:
    return issubclass(type(thing), torch.nn.Module)


def _has(parameter: Tensor) -> bool:
    """Tell whether the parameter has a gradient whose norm is taken."""
    return parameter.grad is not None and parameter.grad.is_floating_point()


def _local(tensor: Tensor) -> Tensor:
    """Return a tensor's elements; this rank's share of a sharded one."""
    whole = tensor.detach()
    if whole.is_sparse:
        return whole.coalesce().values().reshape(-1)
    share: Tensor = whole.to_local() if hasattr(whole, "to_local") else whole
    return share.reshape(-1)


def _norm(tensor: Tensor) -> Tensor:
    """Return the norm of all elements, in double precision, on the device."""
    flat = _local(tensor)
    exact = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.numel() // ROW * ROW
    rows = torch.linalg.vector_norm(flat[:whole].view(-1, ROW), dim=1, dtype=exact)
    rest = torch.linalg.vector_norm(flat[whole:], dtype=exact)
    return torch.linalg.vector_norm(torch.cat([rows.double(), rest.double().view(1)]))


def _sample(parameter: Tensor) -> Tensor:
    """Return a copy of some elements, evenly spaced."""
    flat = _local(parameter)
    return flat[:: -(-flat.numel() // SAMPLED) or 1].clone()


def _said(value: object) -> object:
    """Return an option's value; of a tensor, which an optimizer may change on the device, none."""
    return "a tensor" if isinstance(value, Tensor) else value
