"""The file of a history: what is added is there once, and no other file is taken for one."""

import sqlite3

import pytest
from builders import CASE, CASE_ID, baseline_file, entry, epoch, evidence, recording, replace

from stepguard.judge.summarise_evidence import stored, summarise
from stepguard.report.document_json import as_json
from stepguard.storage.json_file import FileError
from stepguard_lab import history_store
from stepguard_lab.history_import import recorded_in
from stepguard_lab.history_store import measurement_of, open_store, series_of


def measured(found=None, reason=""):
    """What a history has of an evidence, or of a recording."""
    return measurement_of(found or summarise(evidence()), CASE_ID, "NVIDIA H200", CASE, reason)


def kept(path):
    """All that a file holds."""
    with open_store(path) as store:
        return list(store.measurements())


def test_what_is_added_comes_back(tmp_path):
    """Every figure, of every card, oldest first, in a file that another call opens."""
    path = tmp_path / "history.sqlite"
    late = measured(recording(251.0, 1, device_uuid="GPU-2"), "a new level")
    early = measured(recording(250.0))
    with open_store(path) as store:
        assert store.add([late, early]) == 2
    assert kept(path) == [early, late]
    found = {(one.card, one.metric): one.values for one in series_of(kept(path))}
    assert found["GPU-2", "step_ms"] == [pytest.approx(251.0)]
    assert found["GPU-1234", "graph_breaks"] == [1]


def test_a_measurement_is_there_once(tmp_path):
    """A recording and the evidence that it was made of are one measurement, whichever comes first,
    with the figures of both and the reason of the level that it began.
    """
    whole = measured(summarise(evidence()))
    recorded = measured(stored(evidence(gates=("graph_breaks",))), "first recording")
    assert "step_ms" not in recorded.values
    for name, order in (("a", [whole, recorded]), ("b", [recorded, whole])):
        with open_store(tmp_path / name) as store:
            assert [store.add([one]) for one in (*order, *order)] == [1, 0, 0, 0]
        (found,) = kept(tmp_path / name)
        assert found.values == pytest.approx(whole.values, rel=1e-5)  # recordings are rounded
        assert replace(found, values={}) == replace(recorded, values={})


def test_nothing_is_kept_of_an_import_that_fails(tmp_path):
    """A half of it would be taken for the whole by the next one."""
    path = tmp_path / "history.sqlite"
    with pytest.raises(ZeroDivisionError), open_store(path) as store:
        store.add([measured()])
        raise ZeroDivisionError
    assert kept(path) == []


@pytest.mark.parametrize(("statements", "said"), [
    (["CREATE TABLE others (x)"], "another program's database; name another file"),
    (["PRAGMA application_id = 7"], "another program's database"),
    (["PRAGMA application_id = 0x53544747", "PRAGMA user_version = 99"], ": update st"),
    (["PRAGMA application_id = 0x53544747", "PRAGMA user_version = 0"], "; put it as"),
])  # fmt: skip
def test_another_database_is_refused(tmp_path, statements, said):
    """And left as it is."""
    path = tmp_path / "others.sqlite"
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(FileError, match=said), open_store(path):
        pytest.fail("it was opened")
    assert path.read_bytes() == before


def locked(path, store):
    """By another command that writes."""
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    return other


def full(path, store):
    """A disk."""
    connect = store.sqlite3.connect

    def on_a_small_disk(*arguments, **keywords):
        connection = connect(*arguments, **keywords)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    store.sqlite3.connect = on_a_small_disk


def malformed(path, store):
    """From its second page on."""
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 4096)


def unreadable(path, store):
    """For SQLite, which cannot open a folder in place of its journal."""
    path.with_name(f"{path.name}-journal").mkdir()


@pytest.mark.parametrize(("harm", "said"), [
    (locked, "locked by another command, waited 0.1 s; again when that one has ended"),
    (full, "nothing was added, no space is left; free some space, then again"),
    (malformed, "is damaged: database disk image is malformed; put it aside, and "),
    (unreadable, "nothing was added: disk I/O error; make it readable"),
])  # fmt: skip
def test_what_is_wrong_has_its_own_sentence(tmp_path, monkeypatch, harm, said):
    """With what mends it. Nobody is told to remove a history: it may be whole."""
    path = tmp_path / "history.sqlite"
    with open_store(path) as store:
        store.add([measured()])
    before = path.read_bytes()
    monkeypatch.setattr(history_store, "WAIT_S", 0.1)
    monkeypatch.setattr(history_store.sqlite3, "connect", sqlite3.connect)
    held = harm(path, history_store)
    with pytest.raises(FileError) as raised, open_store(path) as store:
        store.add([measured(recording(250.0, at)) for at in range(100)])
    assert f"{path}: {said}" in str(raised.value) and "rm " not in str(raised.value)
    assert harm is malformed or path.read_bytes() == before
    if held:
        held.close()


@pytest.mark.parametrize("name", ["text.sqlite", "short.txt", ".", "/dev/null"])
def test_what_is_no_history_is_left_as_it_is(tmp_path, name):
    """Somebody named the wrong file: another one is to be named."""
    (tmp_path / "text.sqlite").write_text("no database, but a text of some bytes\n" * 100)
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(FileError, match=r"is no (history|file); name another file with --store$"):
        kept(tmp_path / name)
    assert (tmp_path / "short.txt").read_text() == "short"


def test_recordings_of_every_version_of_a_file_can_be_read():
    """Fields that nobody knows any more are dropped, and those that were not there yet are empty;
    the first recording of each level has its reason.
    """
    levels = [epoch((250.0, 251.0)), epoch((200.0,), reason="fused")]
    whole = as_json(baseline_file(cases={CASE_ID: entry(epochs=levels)}))
    older = whole.replace('"information"', '"formerly"').replace('"schema": 1', '"schema": 0')
    for text in (whole, older):
        found = recorded_in(text)
        assert [one.level_reason for one in found] == ["first recording", "", "fused"]
        assert [one.values["step_ms"] for one in found] == pytest.approx([250.0, 251.0, 200.0])
        assert {(one.case_id, one.machine, one.card) for one in found} == {
            (CASE_ID, "NVIDIA H200", "GPU-1234")
        }
    assert found[0].environment["torch"] == "2.11.0" and found[0].parameters == CASE


@pytest.mark.parametrize("text", ["[]", "{}", '{"machine": "CPU", "cases": {"a": 1}}', "<<<<<<<"])
def test_a_file_without_recordings_is_no_version(text):
    """As a merge left it, say."""
    with pytest.raises(ValueError):
        recorded_in(text)
