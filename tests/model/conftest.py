"""Tests of the model calculate in this process, and compare to the last digits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from model.config import SIZES


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """On one thread, since the first `torch.tanh` or `torch.sqrt` of a process may be off by 5e-5.

    MKL chooses a kernel at the first call; if several threads make that call at once, one of them
    may run a kernel of low accuracy, once (pytorch/pytorch issue 188792): with two threads on two
    cores that was so in 2 of 25 processes, with one thread in none.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def tiny_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer a module's TINY as a size, for which a step takes a few milliseconds, and leave no
    global state behind.
    """
    if tiny := getattr(request.module, "TINY", None):
        monkeypatch.setitem(SIZES, "tiny", tiny)
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
