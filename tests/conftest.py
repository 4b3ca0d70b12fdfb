"""Which tests come first."""

import pytest

SLOW = ("smoke", "faults")  # whole runs of the gate


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of the slow folders: whoever runs files in parallel ends with short ones."""
    items.sort(key=lambda item: item.path.parent.name not in SLOW)
