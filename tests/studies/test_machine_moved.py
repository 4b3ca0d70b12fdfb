"""The recordings of a faster card, as studies/machine_moved makes them."""

from pathlib import Path

import pytest

from stepguard.storage.baselines import load
from studies.machine_moved.measure import faster

BASELINE = Path(__file__).parents[2] / "baselines" / "h200x1.json"
CASE = "train_step[124m-bf16]"


def test_only_the_times_of_the_case_are_shorter(tmp_path):
    """Every launch of every recording takes that share; all else, and the file's form, is kept."""
    path = tmp_path / BASELINE.name
    path.write_text(faster(BASELINE.read_text(), CASE, 0.9))
    before, after = load(BASELINE), load(path)
    assert after.cases.keys() == before.cases.keys()
    for case, entry in before.cases.items():
        share = 0.9 if case == CASE else 1.0
        for old_epoch, new_epoch in zip(entry.epochs, after.cases[case].epochs, strict=True):
            for old, new in zip(old_epoch.recordings, new_epoch.recordings, strict=True):
                assert new.counters == old.counters and new.commit == old.commit
                for name, launches in old.times_ms.items():
                    expected = [share * ms for ms in launches]
                    assert new.times_ms[name] == pytest.approx(expected, rel=1e-6)


def test_a_case_that_is_not_there():
    """There is nothing to make faster."""
    with pytest.raises(KeyError):
        faster(BASELINE.read_text(), "train_step[none]", 0.9)
