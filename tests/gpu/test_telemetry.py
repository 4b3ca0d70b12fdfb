"""Telemetry of a block that ran on two nodes: every node's samples, cut by its own clock."""

from dataclasses import asdict

import pytest
from builders import block
from msgspec import structs

from stepguard.core.replies import Timed
from stepguard.launch import nodes
from stepguard.machine.gpu import Sample, annotate
from stepguard.worker.rank_session import MachineSamples

EXPECTED = ((11, 12, 21, 22),)  # a group of two ranks on each of two nodes


def polls(first_ns, pids, **changes):
    """Twenty polls of a node's two GPUs, 50 ms apart."""
    known = {"sm_clock_mhz": 1600, "temperature_c": 65, "power_w": 700.0, "slowdown": ""} | changes
    return [
        [
            Sample(at_ns=at, energy_mj=700 * (at - first_ns) // 10**6, pids=on_gpu, **known)
            for on_gpu in pids
        ]
        for at in range(first_ns, first_ns + 10**9, 50 * 10**6)
    ]


def annotated(there, local=None, expected=EXPECTED):
    """A second on both nodes; the second node's clock began long before."""
    here = Timed(began_ns=0, ended_ns=10**9)
    elsewhere = Timed(began_ns=10**15, ended_ns=10**15 + 10**9)
    carried = [[asdict(sample) for sample in poll] for poll in there]
    ranks = [here, here, structs.replace(elsewhere, samples=carried), elsewhere]
    return annotate(block(), ranks, local or polls(0, ((11,), (12,))), expected, per_node=2)


def test_every_node_is_cut_by_its_own_clock():
    """All four GPUs were seen: the energy is theirs, the hottest one is told."""
    found = annotated(polls(10**15, ((21,), (22,)), temperature_c=80))
    assert (found.disturbance, found.temperature_c) == (None, 80)
    assert found.energy_j == pytest.approx(4 * 700.0)


@pytest.mark.parametrize(("there", "words", "reason"), [
    ([], "no telemetry of rank 2, 3", "MACHINE_UNREADABLE"),
    (polls(0, ((21,), (22,))), "no telemetry of rank 2, 3", "MACHINE_UNREADABLE"),  # another time
    ([poll[:1] for poll in polls(10**15, ((21,), (22,)))], "of rank 3", "MACHINE_UNREADABLE"),
    (polls(10**15, ((21,), (22, 99))), "process 99 on the GPU of node 1", "FOREIGN_PROCESS"),
    (polls(10**15, ((21,), (12, 22))), "process 12 on the GPU of node 1", "FOREIGN_PROCESS"),
    (polls(10**15, ((21,), (22,)), slowdown="power brake"), "power brake", "THROTTLED"),
])  # fmt: skip
def test_what_disturbs_another_node_disturbs_the_block(there, words, reason):
    """Nothing read there, a stranger there, a slowdown there: the block does not count."""
    found = annotated(there)
    assert words in found.disturbance.text and found.disturbance.reason == reason


def test_what_cannot_be_read_is_nothing():
    """Samples of another form are none."""
    ranks = [Timed(began_ns=0, ended_ns=10**9)]
    ranks.append(structs.replace(ranks[0], samples=[[{"at_ns": "x"}]]))
    found = annotate(block(), ranks, polls(0, ((11,),)), ((11, 21),), per_node=1)
    assert "no telemetry of rank 1" in found.disturbance.text


def test_two_groups_may_be_there_at_once():
    """In an A/B comparison both launches' ranks are on the GPUs of every node."""
    both = ((11, 12, 21, 22), (31, 32, 41, 42))
    assert not annotated(polls(10**15, ((41,), (22,))), expected=both).disturbance


def test_what_a_node_samples_reaches_the_block(tmp_path, monkeypatch):
    """From the process beside the ranks through a file and the first rank's answer to the host; a
    GPU that could not be read once is read the next time.
    """
    monkeypatch.setenv("STEPGUARD_SAMPLES", str(tmp_path / "samples"))
    sampled = [[None], *polls(10**15, ((22,),))]

    class Driver:
        def sample(self):
            return sampled.pop(0) if sampled else []

    carried = MachineSamples()
    with (tmp_path / "samples").open("ab", buffering=0) as file:
        for _ in range(30):
            nodes._sample(Driver(), file)
    began = 10**15
    elsewhere = Timed(began_ns=began, ended_ns=began + 10**9, samples=carried.since())
    ranks = [Timed(began_ns=0, ended_ns=10**9), elsewhere]
    found = annotate(block(), ranks, polls(0, ((11,),)), ((11, 22),), per_node=1)
    assert found.disturbance is None and found.energy_j == pytest.approx(2 * 700.0)
