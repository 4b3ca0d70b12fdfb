"""How golden files are written, and the day on which scenarios are judged.

python -m pytest tests/scenarios --write-golden             sentences alone
python -m pytest tests/scenarios --write-golden=verdicts    verdicts, too: of a new scenario
"""

from datetime import UTC, datetime

import pytest
from scenario import shown

import stepguard.storage.baseline_files


def pytest_addoption(parser):
    """Add the option that writes what scenarios say today, to be reviewed as a diff."""
    parser.addoption(
        "--write-golden",
        nargs="?",
        const="texts",
        choices=("texts", "verdicts"),
        help="write tests/scenarios/golden instead of comparing with it",
    )


class Judged(datetime):
    """A clock that stands at the day of the scenarios' evidence: waivers end by the day."""

    @classmethod
    def now(cls, tz=None):
        """Return that day."""
        return cls(2026, 11, 25, 12, tzinfo=UTC).astimezone(tz)


@pytest.fixture(scope="session")
def judged():
    """What was shown of scenarios so far, and the folder, by name: each is judged once."""
    return {}


@pytest.fixture
def found(scenario, judged, tmp_path, monkeypatch):
    """What is shown of a scenario, judged on that day in a folder of its own, which is entered."""
    if scenario.name not in judged:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(stepguard.storage.baseline_files, "datetime", Judged)
        judged[scenario.name] = shown(scenario), tmp_path
    found, folder = judged[scenario.name]
    monkeypatch.chdir(folder)
    return found


@pytest.fixture
def write(request):
    """What is to be written: "", "texts" or "verdicts"."""
    return request.config.getoption("--write-golden", default=None) or ""
