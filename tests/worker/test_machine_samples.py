"""Samples of another node's GPUs come along with the answers of the node's first rank."""

import json

import pytest

from stepguard.worker.rank_session import MachineSamples


@pytest.fixture
def samples(tmp_path, monkeypatch):
    """The file that the process beside the ranks writes."""
    path = tmp_path / "samples.jsonl"
    monkeypatch.setenv("STEPGUARD_SAMPLES", str(path))
    monkeypatch.setenv("LOCAL_RANK", "0")
    return path


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_each_sample_is_passed_on_once(samples):
    """Whole lines since the last answer; one that is just being written waits for the next."""
    append(samples, "[1]\n[2]\n[3")
    found = MachineSamples()
    assert found.since() == [[1], [2]]
    assert found.since() == []
    append(samples, "]\n" + json.dumps([None]) + "\n")
    assert found.since() == [[3], [None]]


def test_a_file_that_is_not_there_is_no_sample(samples):
    """The block does not count then; the launch goes on."""
    assert MachineSamples().since() == []


def test_only_a_nodes_first_rank_reads(samples, monkeypatch):
    """Nor does any rank beside pytest, which samples for itself."""
    append(samples, "[1]\n")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert MachineSamples().since() == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.delenv("STEPGUARD_SAMPLES")
    assert MachineSamples().since() == []
