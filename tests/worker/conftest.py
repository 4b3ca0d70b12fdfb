"""Counting in this process, as in a worker."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """torchrun gives a rank one thread; more of them wait for each other on a busy machine."""
    torch.set_num_threads(1)
