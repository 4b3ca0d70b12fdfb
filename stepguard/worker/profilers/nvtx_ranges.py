"""Make ranges for a profiler: from phases, which a workload only enters and never leaves, or around
what torch calls for a script.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from stepguard.worker.rank_position import MICRO_STEP

Open = Callable[[str], AbstractContextManager[object]]


class Ranges:
    """Opens a range at each phase, and closes it at the next phase or at the step's end.

    A micro-step's range contains those of its phases. A phase that comes once after several
    micro-steps (clipping, the optimizer) is in none of them; that is known from the second step on.
    A single micro-step gets no range, since it would contain all phases.
    """

    def __init__(self, open_range: Open) -> None:
        self._open = open_range
        self._ranges: list[AbstractContextManager[object]] = []
        self._micro_step = ""
        self._seen_in: dict[str, set[str]] = {}  # by phase: this step's micro-steps
        self._after: set[str] = set()  # phases outside of micro-steps

    def __call__(self, name: str) -> None:
        """Enter a phase."""
        if name.startswith(MICRO_STEP):
            self._close(0)
            self._micro_step = name
        else:
            self._close(1 if self._micro_step and name not in self._after else 0)
            self._seen_in.setdefault(name, set()).add(self._micro_step)
        opened = self._open(name)
        opened.__enter__()
        self._ranges.append(opened)

    def _close(self, kept: int) -> None:
        while len(self._ranges) > kept:
            self._ranges.pop().__exit__(None, None, None)

    def end_step(self) -> None:
        """Close what is open."""
        self._close(0)
        self._after = {name for name, micro_steps in self._seen_in.items() if len(micro_steps) == 1}
        self._seen_in, self._micro_step = {}, ""


@contextmanager
def ranges_of_torch(open_range: Open) -> Iterator[None]:
    """Open a range "backward" around each backward pass inside the block, and "optimizer" around
    each optimizer's step. A forward pass gets none: a hook of a module would compile it anew.
    """
    plain = torch.autograd.backward
    opened: list[AbstractContextManager[object]] = []

    @functools.wraps(plain)
    def backward(*args: Any, **kwargs: Any) -> None:
        with open_range("backward"):
            plain(*args, **kwargs)

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling():
            opened.append(open_range("optimizer"))
            opened[-1].__enter__()

    def ends(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling() and opened:
            opened.pop().__exit__(None, None, None)

    hooks = (
        torch_optimizer.register_optimizer_step_pre_hook(begins),
        torch_optimizer.register_optimizer_step_post_hook(ends),
    )
    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = plain
        for hook in hooks:
            hook.remove()
