"""A pytest plugin that tells which cases a suite declares, for commands that measure them.

    STEPGUARD_CASES=FILE pytest perf_tests --collect-only -p stepguard.plugin.collector

FILE then holds the cases as JSON, in the order of collection.
"""

import os
from pathlib import Path
from typing import Any

import msgspec

from stepguard.case import Case

TARGET = "STEPGUARD_CASES"


def pytest_collection_finish(session: Any) -> None:
    """Write them; what is collected besides is none of ours."""
    found: list[Case] = []
    for item in session.items:
        callspec = getattr(item, "callspec", None)
        case = callspec.params.get("case") if callspec else None
        if isinstance(case, Case) and "perf" in item.fixturenames:
            found.append(case)
    Path(os.environ[TARGET]).write_bytes(msgspec.json.encode(found))
