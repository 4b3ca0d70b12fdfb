"""Files by the thousand."""

import pytest

import stepguard.storage.json_file


@pytest.fixture
def many_files(monkeypatch):
    """Git knows none of them: it is not asked."""
    monkeypatch.setattr(stepguard.storage.json_file, "is_tracked", lambda path: False)
