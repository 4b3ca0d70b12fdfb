"""Real launches of a workload, made short."""

from pathlib import Path

import pytest
from short_launches import shorten_launches

from stepguard.machine.git.revision import Revision
from stepguard.measure.case_workers import Bench

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A place for short launches, from which tests/factories.py can be imported."""
    folder, revision = tmp_path_factory.mktemp("bench"), Revision("a" * 40, ())
    with pytest.MonkeyPatch.context() as monkeypatch:
        shorten_launches(monkeypatch)
        yield Bench(TESTS, folder / "cache", folder / "runs", (), revision, "pytest")
