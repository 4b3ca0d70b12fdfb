"""Settings of the lab's tests: those of the gate's, and the lab's commands on the command line."""

from pathlib import Path

import pytest
from lab_commands import add_lab
from suite_settings import *  # noqa: F403  # its hooks and fixtures


@pytest.fixture(scope="module", autouse=True)
def lab(tmp_path_factory):
    """The lab as if it were installed."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        add_lab(monkeypatch, Path(tmp_path_factory.mktemp("installed")))
        yield
