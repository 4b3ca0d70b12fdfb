"""planted_ranks.py: what it refuses before anything is measured, and when it fails."""

import sys

import pytest
from undefined_names import undefined_names

from stepguard.verdict import Status
from studies.planted_ranks import measure as planted_ranks
from studies.planted_ranks.measure import PLANTS, arguments, as_expected, clone


def asked(monkeypatch, *given):
    """The options of this command line."""
    monkeypatch.setattr(sys, "argv", ["planted_ranks.py", *given])
    return arguments()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--device", "cpu", "--only", "a slower rank"), "not on a CPU"),
        (("--ranks", "1"), "possible: 2 up"),
        (("--ranks", "0"), "possible: 2 up"),
        (("--out", "nowhere/planted.json"), "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(monkeypatch, capsys, given, problem):
    """Status 2, before minutes are spent on it."""
    with pytest.raises(SystemExit) as ended:
        asked(monkeypatch, *given)
    assert ended.value.code == 2 and problem in capsys.readouterr().err


def test_every_plant_is_the_default(monkeypatch, tmp_path):
    """On a CPU all but the slower rank; --out has a place that git does not know."""
    monkeypatch.setattr(planted_ranks, "default_path", lambda name: tmp_path / name)
    assert asked(monkeypatch).only == list(PLANTS)
    found = asked(monkeypatch, "--device", "cpu")
    assert set(PLANTS) - set(found.only) == {"a slower rank"}
    assert found.out == tmp_path / "planted_ranks.json"


@pytest.mark.parametrize("name", [name for name, plant in PLANTS.items() if plant.edits])
def test_every_name_of_a_plant_is_known(tmp_path, name):
    """The one of time runs on GPUs alone."""
    assert undefined_names(clone(tmp_path, name) / "model" / "workloads.py") == ""


@pytest.mark.parametrize("status", list(Status))
def test_only_a_named_failure_counts(status):
    """A plant is SLOWER or CHANGED, and nothing is `same`; what could not be judged is neither."""
    assert as_expected("nothing", status.value) is (status is Status.SAME)
    caught = status in (Status.SLOWER, Status.CHANGED)
    assert as_expected("a slower rank", status.value) is caught
