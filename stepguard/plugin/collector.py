"""A pytest plugin that writes which cases a suite declares, for commands that measure them.

    STEPGUARD_CASES=FILE pytest perf_tests --collect-only -p stepguard.plugin.collector

FILE then holds the cases as JSON, in the order of collection.
"""

import os
from pathlib import Path

import msgspec
import pytest

from stepguard.plugin.items import case_of

TARGET = "STEPGUARD_CASES"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write them; other tests do not matter."""
    found = [case for item in session.items if (case := case_of(item))]
    Path(os.environ[TARGET]).write_bytes(msgspec.json.encode(found))
