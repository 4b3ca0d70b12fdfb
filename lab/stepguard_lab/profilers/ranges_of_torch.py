"""Ranges around what torch calls for a script."""

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from stepguard.worker.counters.profiled_steps import Open


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
