"""Which errors say that memory ran out: real ones, as Python and torch raise them. And the
allocator's setting that makes room.
"""

import pytest
import torch

from stepguard.worker import torch_device
from stepguard.worker.torch_device import growing_segments, out_of_memory

TOO_MUCH = 1 << 55  # bytes; more than a process can address

ERRORS = {
    "Python": (lambda: bytearray(TOO_MUCH), True),
    "torch's allocator": (lambda: torch.empty(TOO_MUCH, dtype=torch.uint8), True),
    "another error of torch": (lambda: torch.zeros(2) + torch.zeros(3), False),
    "no size at all": (lambda: torch.empty(-1), False),
}


@pytest.mark.parametrize(("fail", "expected"), ERRORS.values(), ids=ERRORS)
def test_an_error_of_memory_is_told_from_others(fail, expected):
    """On a CPU as on a GPU; torch raises a RuntimeError for both of its own."""
    with pytest.raises((MemoryError, RuntimeError)) as raised:
        fail()
    assert out_of_memory(raised.value) == expected


def test_the_words_alone_are_not_enough():
    """A workload's own error may quote torch's."""
    assert not out_of_memory(ValueError("DefaultCPUAllocator: can't allocate memory"))
    assert out_of_memory(torch.OutOfMemoryError("planted"))


def test_an_allocator_without_segments_is_left_alone(monkeypatch):
    """cudaMallocAsync refuses a snapshot, and a case with it would be BROKEN."""

    def refuse(*arguments):
        raise RuntimeError("Calling snapshot with cudaMallocAsync backend is not meaningful")

    monkeypatch.setattr(torch.cuda.memory, "get_allocator_backend", lambda: "cudaMallocAsync")
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", refuse)
    monkeypatch.setattr(torch_device, "empty_cache", refuse)
    with growing_segments():
        pass
