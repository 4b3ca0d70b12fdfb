"""Two nodes on one machine, for real: pytest on the one, a node agent on the other.

Both keep their scratch folders in the run's temporary directory, so that what is left of either is
found there.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_faults_worker import PAIR, case

KEY = "a key for the tests, and no other"
COUNTED = '    Case("counted", "factories:ranks", device="cpu", launches=1, world_size=2),\n'
ALONE = '    Case("alone", "factories:linear", device="cpu", launches=1),\n'
EXPECTED = {
    "far-kill": ("KILLED", r"rank 1 was killed by SIGKILL in block, step \d+, phase backward, on "),
    "far-raise": ("RAISED", r"rank 1 in block, step \d+, phase backward: ValueError: planted, on "),
    "near-raise": ("RAISED", r"rank 0 in block, step \d+, phase backward: ValueError: planted$"),
    "far-hang": (
        "NO_ANSWER",
        r"rank 0 in block, step \d+, phase all_reduce; rank 1 in block, step \d+, phase backward",
    ),
    "far-launcher": ("AGENT_DIED", r"torchrun ended with -9 while rank 1 was in .*, on node "),
}


class Agent:
    """A node agent as a process, in the folder of a run."""

    def __init__(self, run, port):
        self.output = run.folder / "node.txt"
        command = [sys.executable, "-m", "stepguard", "node", "--endpoint", f"127.0.0.1:{port}"]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                command, cwd=run.folder, env=run.env, stdout=file, stderr=file
            )

    def ended(self):
        """Its exit status."""
        return self.process.wait(60)


@pytest.fixture(scope="module")
def two_nodes(gate_run):
    """Starts a run on two nodes: two_nodes(cases) -> the run, the agent."""
    agents = []

    def start(cases):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = ("--perf-nnodes=2", f"--perf-rdzv-endpoint=127.0.0.1:{port}")
        run = gate_run(cases, *options, STEPGUARD_NODE_KEY=KEY)
        agents.append(Agent(run, port))
        return run, agents[-1]

    yield start
    for agent in agents:
        agent.process.kill()
        agent.process.wait()


@pytest.fixture(scope="module")
def finished(two_nodes):
    """A run of sound and faulty cases that is over, and its agent."""
    cases = COUNTED + case("far-kill", world_size=2, how="kill", rank=1, at_step=9)
    cases += case("far-raise", PAIR, world_size=2, how="raise", rank=1, at_step=9)
    cases += case("near-raise", PAIR, world_size=2, how="raise", rank=0, at_step=9)
    cases += case("far-hang", PAIR, world_size=2, how="hang", rank=1, at_step=9)
    cases += case("far-launcher", PAIR, world_size=2, how="agent", rank=1, at_step=9)
    run, agent = two_nodes(cases + ALONE)
    assert run.finish() == 1, run.text
    return run, agent


def metrics(run, name):
    """The counters of a case, by name."""
    return {m["metric"]: m["new"] for m in run.verdicts()[name]["metrics"] if m["gated"]}


def test_two_nodes_count_what_two_ranks_of_one_count(finished, gate_run):
    """Every counter of the training step is the same, and the figures are kept apart."""
    run, _ = finished
    one = gate_run(COUNTED)
    assert one.finish() == 1, one.text
    assert run.verdicts()["counted"]["reason"] == "NOT_RECORDED", run.text
    found = metrics(run, "counted")
    assert found["collectives_per_step"] > 1
    assert found == metrics(one, "counted")
    cases = json.loads((run.folder / "run.json").read_text())["cases"]
    files = [Path(case["baseline"]).name for case in cases]
    assert files.count("cpu-2-nodes.json") == len(EXPECTED) + 1


def test_each_node_ran_its_own_rank(finished):
    """The other node's log holds rank 1 alone, this one's rank 0; one rank alone ran here."""
    run, _ = finished
    (launch,) = run.folder.glob(".stepguard/runs/*/ranks-counted/launch-1")
    assert [path.name for path in launch.glob("note-*")] == ["note-0"]
    assert [path.name for path in launch.glob("node-1/note-*")] == ["note-1"]
    (alone,) = run.folder.glob(".stepguard/runs/*/linear-alone/launch-1")
    assert not (alone / "node-1").exists()
    assert run.verdicts()["alone"]["reason"] == "NOT_RECORDED"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_fault_on_either_node_is_named(finished, name):
    """Rank, step, phase and node; a rank that only lost its peer is not the cause."""
    run, _ = finished
    verdict = run.verdicts()[name]
    code, words = EXPECTED[name]
    assert (verdict["status"], verdict["reason"]) == ("BROKEN", code), verdict["message"]
    assert re.search(words, verdict["message"]), verdict["message"]
    if name in ("far-raise", "far-hang"):
        assert re.search(r'File ".*factories.py", line \d+', verdict["detail"]), verdict["detail"]


def test_nothing_is_left_on_either_node(finished):
    """No process, folder or socket of any launch when its test is over; the agent ends in order."""
    run, agent = finished
    for name, record in run.aftermath().items():
        assert record["tokens"], name
        assert record["leftovers"] == [], name
    assert agent.ended() == 0, agent.output.read_text()
    assert list(run.tmpdir.iterdir()) == []


HANGING = case("hang", PAIR, world_size=2, how="hang", rank=1, at_step=9).replace("=7)", "=100)")


@pytest.fixture(scope="module")
def hanging(two_nodes):
    """Runs in which rank 1 hangs, by what will be killed."""
    return {who: two_nodes(HANGING + ALONE) for who in ("pytest", "agent")}


def reach_the_hang(run):
    """Wait until rank 1 hangs on the other node; the launch's tokens."""
    run.wait_for("hang", lambda: any(run.folder.glob(".stepguard/runs/*/*/*/node-1/failed-at")))
    return run.tokens()


def test_a_killed_pytest_takes_the_other_node_along(hanging):
    """The agent notices, kills what it started, says so and ends with 1."""
    run, agent = hanging["pytest"]
    tokens = reach_the_hang(run)
    far = {token for token in tokens if token.endswith("-1")}
    assert far, "a node that kills by its own token spares the other's launcher, which cleans up"
    assert {token.removesuffix("-1") for token in far} <= set(tokens)
    run.process.send_signal(signal.SIGKILL)
    run.finish()
    assert agent.ended() == 1
    assert "the first node is gone" in agent.output.read_text()
    run.gone(tokens)
    assert list(run.tmpdir.iterdir()) == []


def test_a_killed_agent_is_a_lost_node(hanging):
    """Named at once; cases of one rank are still measured, and nothing is left of the others."""
    run, agent = hanging["agent"]
    tokens = reach_the_hang(run)
    began = time.monotonic()
    agent.process.kill()
    assert run.finish() == 1
    verdict = run.verdicts()["hang"]
    assert (verdict["status"], verdict["reason"]) == ("UNFIT", "NODE_LOST"), verdict["message"]
    assert "node " in verdict["message"] and "connection" in verdict["message"]
    assert run.aftermath()["hang"]["at"] - began < 30
    assert run.verdicts()["alone"]["reason"] == "NOT_RECORDED"
    run.gone(tokens)
    assert list(run.tmpdir.iterdir()) == []
