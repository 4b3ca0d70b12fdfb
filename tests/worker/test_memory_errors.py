"""Which errors say that memory ran out: real ones, as Python and torch raise them."""

import pytest
import torch

from stepguard.worker.torch_device import out_of_memory

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
