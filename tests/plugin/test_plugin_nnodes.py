"""--perf-nnodes and --perf-rdzv-endpoint: what is refused, what is shared out, what is skipped."""

import dataclasses

import pytest

import stepguard.plugin.session
from stepguard.launch.likeness import describe
from stepguard.launch.nodes import NodesError

ENDPOINT = "--perf-rdzv-endpoint=127.0.0.1:29400"


class Others:
    """In place of Nodes: nobody is there, and each would have so many GPUs."""

    def __init__(self, count, gpus=0):
        self.count, self.each, self.lost, self.closed = count, gpus, "", 0

    def gpus(self, here):
        return min(here, self.each)

    def close(self):
        self.closed += 1


@pytest.fixture
def gathering(monkeypatch):
    """What gather() was called with; it gives ``found["nodes"]``, or raises it."""
    found = {"nodes": Others(2), "calls": []}

    def gather(count, endpoint, root, gpus, environment, show):
        found["calls"].append((count, endpoint))
        show("waiting for nobody")
        if isinstance(found["nodes"], Exception):
            raise found["nodes"]
        return found["nodes"]

    monkeypatch.setattr(stepguard.plugin.session, "gather", gather)
    return found


def test_one_node_waits_for_nobody(gate, gathering):
    """Without the options nothing is gathered."""
    gate.suite(gate.cpu(world_size=2))
    gate.run()
    assert gathering["calls"] == [] and gate.measured == ["linear[nano]"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--perf-nnodes=2",), "go together"),
        ((ENDPOINT,), "go together"),
        (("--perf-nnodes=0",), "1 is this node alone"),
        (("--perf-nnodes=-1", ENDPOINT), "1 is this node alone"),
    ],
)
def test_the_options_go_together(gate, gathering, options, problem):
    """One without the other, or no node at all, is exit 4, and nothing is measured."""
    gate.suite(gate.cpu(world_size=2))
    result = gate.run(*options)
    assert (result.ret, gate.measured, gathering["calls"]) == (4, [], [])
    result.stderr.fnmatch_lines([f"*--perf-nnodes=*{problem}*docs/several-nodes.md"])


@pytest.mark.parametrize("problem", [NodesError("0 of 1 other nodes came"), ValueError("no key")])
def test_nodes_that_are_not_there_are_exit_4(gate, gathering, problem):
    """The run does not go on with one node as if nobody had asked for two."""
    gathering["nodes"] = problem
    gate.suite(gate.cpu(world_size=2))
    result = gate.run("--perf-nnodes=2", ENDPOINT)
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines([f"*--perf-nnodes=2: {problem}"])


def test_nodes_are_gathered_once_and_sent_home(gate, gathering):
    """Before the first case, with the endpoint that was given; and the agents are told the end."""
    gate.suite(gate.cpu("a", world_size=2), gate.cpu("b", world_size=2))
    result = gate.run("--perf-nnodes=2", ENDPOINT)
    assert gathering["calls"] == [(2, "127.0.0.1:29400")]
    assert gate.measured == ["linear[a]", "linear[b]"]
    assert gathering["nodes"].closed == 1
    result.stdout.fnmatch_lines(["*waiting for nobody*"])


def test_collecting_waits_for_nobody(gate, gathering):
    """--collect-only needs no node."""
    gate.suite(gate.cpu(world_size=2))
    assert gate.run("--perf-nnodes=2", ENDPOINT, "--collect-only").ret == 0
    assert gathering["calls"] == []


def test_a_case_that_cannot_be_shared_out_is_exit_4(gate, gathering):
    """Named; deselected it is no matter, and one rank never is."""
    gathering["nodes"] = Others(3)
    gate.suite(gate.cpu("odd", world_size=2), gate.cpu("one"), gate.cpu("even", world_size=3))
    result = gate.run("--perf-nnodes=3", ENDPOINT)
    assert (result.ret, gate.measured, gathering["calls"]) == (4, [], [])
    result.stderr.fnmatch_lines(["*linear[[]odd[]] has 2 ranks, which 3 nodes cannot share*"])
    gate.run("--perf-nnodes=3", ENDPOINT, "-k", "not odd")
    assert gate.measured == ["linear[one]", "linear[even]"]


def test_nothing_to_spread_is_exit_4(gate, gathering):
    """Cases of one rank alone would leave the other nodes waiting for nothing."""
    gate.suite(gate.cpu("one"), gate.cpu("two", world_size=2))
    result = gate.run("--perf-nnodes=2", ENDPOINT, "-k", "one")
    assert (result.ret, gate.measured, gathering["calls"]) == (4, [], [])
    result.stderr.fnmatch_lines(["*--perf-nnodes=2: no case of several ranks is selected*"])


def test_gpus_are_counted_on_every_node(gate, gathering, h200):
    """Four ranks on two nodes need two on each: one on the other is too few, two will do."""
    gate.gpus = [h200, dataclasses.replace(h200, uuid="GPU-2")]
    gate.suite(gate.cuda("four", world_size=4))
    gathering["nodes"] = Others(2, gpus=1)
    result = gate.run("--perf-nnodes=2", ENDPOINT, "-rs")
    assert (result.ret, gate.measured) == (1, [])
    result.stdout.fnmatch_lines(["*needs 4 GPU(s) on 2 nodes, one of them shows 1"])
    gathering["nodes"] = Others(2, gpus=2)
    gate.run("--perf-nnodes=2", ENDPOINT)
    assert gate.measured == ["linear[four]"]


def test_the_baseline_of_one_node_is_not_asked(gate, gathering):
    """A case that has one is NO BASELINE on two nodes."""
    case = gate.cpu(world_size=2)
    gate.suite(case)
    gate.record(case)
    assert gate.run().ret == 0
    result = gate.run("--perf-nnodes=2", ENDPOINT, "--perf-json=run.json")
    assert result.ret == 1
    assert "NOT_RECORDED" in (gate.path / "run.json").read_text()
    assert "cpu-2-nodes.json" in (gate.path / "run.json").read_text()


def test_a_key_is_asked_for_before_anybody_is_waited_for(gate, monkeypatch):
    """For real: without the variable, exit 4 at once, with the command that makes a key."""
    monkeypatch.delenv("STEPGUARD_NODE_KEY", raising=False)
    gate.suite(gate.cpu(world_size=2))
    result = gate.run("--perf-nnodes=2", ENDPOINT)
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines(["*export STEPGUARD_NODE_KEY=*"])


def test_a_node_describes_its_gpus(tmp_path, h200):
    """What the first node counts with is what the agent was started with."""
    assert describe(tmp_path, [h200]).gpus == (h200,)
