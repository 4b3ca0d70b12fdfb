"""Counting in this process, as in a worker."""

import gc
import importlib
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """torchrun gives a rank one thread; more of them wait for each other on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def own_heap() -> Iterator[None]:
    """What the test process holds anyway is not looked at, which takes most of the time: it stays
    frozen, and the engine is told that nothing is.
    """
    importlib.import_module("torch._inductor")  # as profilers do
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("freeze", "unfreeze"):
            monkeypatch.setattr(gc, name, lambda: None)
        monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)  # which walks through all of them
        yield
