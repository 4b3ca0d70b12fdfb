"""The evidence of past runs: kept whole, the newest found, old runs pruned, damage ignored."""

import errno
import json
import os
from dataclasses import replace

import pytest
from builders import CASE_ID, evidence
from comparisons import alike

from stepguard import Case
from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.storage.json_file import FileError
from stepguard.storage.kept_runs import KEPT_RUNS, Store


@pytest.fixture
def store(tmp_path):
    """The store of an empty checkout."""
    return Store(tmp_path)


def a_run(store, name):
    """A run folder of that name."""
    folder = store.runs / name
    folder.mkdir(parents=True)
    return folder


def test_an_empty_checkout_has_nothing(store):
    """Without any run nothing is found and nothing raises, and nothing is made on disk."""
    assert (store.newest(), store.last_run(), store.last_wall_s([])) == ({}, [], {})
    assert not store.folder.exists()


def test_the_newest_of_every_case(store):
    """For each case the newest run that has it, even where a newer run measured other cases."""
    first, second = a_run(store, "20261120T1-1"), a_run(store, "20261121T1-1")
    store.keep(first, "a", evidence(case_id="a"))
    both = store.keep(first, "b", evidence(case_id="b"))
    newer = store.keep(second, "a", evidence(case_id="a", date="later"))
    assert store.newest() == {"a": newer, "b": both}
    assert store.last_run() == [newer]


def test_the_last_run_is_one_that_left_something(store):
    """Not one that was interrupted, or recorded a trace; pairs alone are something."""
    kept = store.keep(a_run(store, "20261120T1-1"), "a", evidence())
    assert store.is_newest(kept)
    (a_run(store, "20261121T1-1") / "a" / "trace-launch").mkdir(parents=True)
    assert store.last_run() == [kept] and not store.is_newest(kept)
    store.keep(a_run(store, "20261122T1-1"), "a", alike([0.1]))
    assert store.last_run() == []


@pytest.mark.parametrize("damage", ["", "{", "null", json.dumps({"schema": 2})])
def test_damaged_evidence_is_no_newest(store, damage):
    """A file that cannot be read does not hide the sound one before it."""
    sound = store.keep(a_run(store, "20261120T1-1"), "a", evidence())
    broken = store.keep(a_run(store, "20261121T1-1"), "a", evidence())
    broken.write_text(damage)
    assert store.newest() == {CASE_ID: sound}


def test_twenty_runs_are_kept(store):
    """Of 25 runs the newest 20 stay, the one that begins among them."""
    for number in range(24):
        store.keep(a_run(store, f"20250101T0000{number:02d}-1"), "a", evidence())
    fresh = store.new_run()
    names = sorted(folder.name for folder in store.runs.iterdir())
    assert KEPT_RUNS == len(names) == 20
    assert names[-1] == fresh.name
    assert names[0] == "20250101T000005-1"


def test_a_run_is_the_newest_although_the_clock_went_back(store):
    """Neither is an older run's evidence accepted for it, nor is its folder removed as the oldest:
    names of runs that began by the right clock sort before it.
    """
    for number in range(KEPT_RUNS):
        old = a_run(store, f"29991231T235959.{number:06d}Z-9")
        store.keep(old, "a", evidence(date="before"))
    for date in ("now", "later"):
        path = store.keep(store.new_run(), "a", evidence(date=date))
        assert store.last_run() == [path] and store.is_newest(path), date
    assert len(list(store.runs.iterdir())) == KEPT_RUNS


def test_the_last_sound_run_times_the_progress_line(store):
    """One that failed says nothing of how long a case takes, nor one of other parameters."""
    case, faults = Case("a", "m:f", {"n": 1}), (Fault(Reason.RAISED, "x"),)
    for run, fields in (
        ("1", {"wall_s": 55.0}),
        ("2", {"wall_s": 77.0}),
        ("3", {"faults": faults}),
    ):
        made = evidence(case_id=case.id, case=case.as_dict(), **fields)
        store.keep(a_run(store, f"20261120T{run}-1"), case.slug, made)
    assert store.last_wall_s([case]) == {case.id: 77.0}
    assert store.last_wall_s([Case("a", "m:f", {"n": 2})]) == {}, "under the same id"


def test_pairs_are_timed_by_pairs(store):
    """A comparison takes several times as long as the case alone."""
    case = Case("a", "m:f", {"n": 1})
    run, made = a_run(store, "20261120T1-1"), evidence(case_id=case.id, case=case.as_dict())
    store.keep(run, case.slug, replace(made, wall_s=20.0))
    assert store.last_wall_s([case], pairs=True) == {}
    found = replace(alike([0.0]), head=replace(made, wall_s=90.0), base=made)
    store.keep(run, case.slug, found)
    (a_run(store, "20261121T1-1") / case.slug / "comparison.json").mkdir(parents=True)
    assert store.last_wall_s([case], pairs=True) == {case.id: 90.0}
    assert store.last_wall_s([case]) == {case.id: 20.0}


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    """A file in place of .stepguard/ is an error that names it, not a run that goes nowhere."""
    (tmp_path / ".stepguard").write_text("")
    with pytest.raises(FileError, match="cannot be made"):
        Store(tmp_path).new_run()


def test_a_full_disk_loses_no_figure(tmp_path, monkeypatch):
    """Evidence that cannot be written is an error that holds the values, with no half file left."""
    store = Store(tmp_path)
    run = store.new_run()

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device.*'step_ms': "):
        store.keep(run, "x", evidence())
    assert not [path for path in run.rglob("*") if path.is_file()]


def test_evidence_does_not_dirty_the_tree(tmp_path):
    """The folder ignores itself, in whatever repository it is made."""
    Store(tmp_path).new_run()
    assert (tmp_path / ".stepguard" / ".gitignore").read_text() == "*\n"


def test_a_run_that_begins_does_not_dirty_anothers_tree(tmp_path):
    """The file is not written again, which would leave it empty for a moment; half a one is."""
    store = Store(tmp_path)
    store.new_run()
    path = tmp_path / ".stepguard" / ".gitignore"
    os.utime(path, (1_600_000_000, 1_600_000_000))
    store.new_run()
    assert path.stat().st_mtime == 1_600_000_000
    path.write_text("")
    store.new_run()
    assert path.read_text() == "*\n"


@pytest.mark.parametrize(("also_alone", "against"), [(False, "main"), (True, "")])
def test_a_run_was_compared_with_a_revision_if_all_its_cases_were(store, also_alone, against):
    """A folder of two runs that were put together may have both."""
    run = a_run(store, "20261120T1-1")
    store.keep(run, "a", replace(alike([0.1]), against="main"))
    if also_alone:
        store.keep(run, "b", evidence(case_id="b"))
    assert store.last_against() == (against, run)


def test_a_comparison_is_there_whole_or_not_at_all(store, monkeypatch):
    """Killed at any file that it would put in place, a run leaves nothing, or what counts."""
    made, put = alike([0.1]), os.replace

    class Killed(BaseException):
        """Stands for SIGKILL: nobody tidies up."""

    def find():
        return len(list(store.runs.glob("*/a/comparison.json")))

    def killed(*paths):
        if len(paths) == 2:  # renamed already
            put(*paths)
        raise Killed

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        store.keep(a_run(store, "20261120T1-1"), "a", made)
    assert find() == 1
    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(Killed):
        store.keep(a_run(store, "20261121T1-1"), "a", made)
    assert find() == 1
