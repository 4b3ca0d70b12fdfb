"""Files by the thousand."""

import os

import pytest

import stepguard.storage.json_file


@pytest.fixture
def many_files(monkeypatch):
    """None of them has to outlive a crash of the machine, and git knows none: it is not asked."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(stepguard.storage.json_file, "is_tracked", lambda path: False)
