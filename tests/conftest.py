"""Settings of all tests: which come first, and what the compiler may leave out."""

import os

import pytest

SLOW = ("smoke", "faults", "studies", "tests", "model")  # they start processes, or compile

# Otherwise the first compilation in each cache builds and runs a program for every instruction set.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those of the slow folders first: files that run in parallel end with short ones."""
    items.sort(key=lambda item: item.path.parent.name not in SLOW)
