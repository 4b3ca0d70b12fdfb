"""The suite's cases and the baselines that are committed with it belong together."""

import importlib
from pathlib import Path

import pytest

from stepguard import Case
from stepguard.storage.baseline_files import load

ROOT = Path(__file__).resolve().parents[1]
FILES = [path for path in sorted((ROOT / "baselines").glob("*.json")) if path.stem != "waivers"]


def suite_cases() -> dict[str, Case]:
    """Every case of perf_tests/, by id."""
    found = {}
    for path in sorted((ROOT / "perf_tests").glob("test_*.py")):
        module = importlib.import_module(f"perf_tests.{path.stem}")
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", []):
                found |= {one.values[0].id: one.values[0] for one in mark.args[1]}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_committed_levels_are_of_the_suites_cases(path):
    """Whoever changes a case's parameters records it anew: each entry is what a case is now, and
    none is of a case that is gone.
    """
    baseline, cases = load(path), suite_cases()
    assert baseline and len(cases) > 10
    for name, entry in baseline.cases.items():
        assert entry.case == cases[name].as_dict(), name
