"""The command line, for the tests in this folder."""

import pytest
from command_line import shell as shell

from stepguard_lab import sweep


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch):
    """As command_line has none."""
    monkeypatch.setattr(sweep, "visible_gpus", lambda: [])
