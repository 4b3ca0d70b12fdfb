"""STEPGUARD_LAUNCHER: the nodes are asked once, before anything is measured, where it matters."""

import dataclasses

import pytest

import stepguard.plugin.session
from stepguard.launch.nodes import Launcher, Node
from stepguard.machine.gpu import Gpu, MachineError

SRUN = "srun --nodes=2"


def launcher(count, gpus=0):
    """So many nodes with so many GPUs each."""
    nodes = []
    for rank in range(count):
        cards = tuple(Gpu(f"GPU-{rank}{n}", "NVIDIA H200", "580.1", 1980) for n in range(gpus))
        nodes.append(Node(rank, count, f"host{rank}", "", True, {}, cards))
    return Launcher(("srun",), tuple(nodes))


@pytest.fixture
def surveyed(monkeypatch):
    """What survey() was asked; it gives ``surveyed.found``, or raises it."""

    class Surveyed:
        found, asked = launcher(2), []

    def survey(text, root):
        Surveyed.asked.append(text)
        if isinstance(Surveyed.found, Exception):
            raise Surveyed.found
        return Surveyed.found

    Surveyed.asked = []
    monkeypatch.setattr(stepguard.plugin.session, "survey", survey)
    monkeypatch.setenv("STEPGUARD_LAUNCHER", SRUN)
    return Surveyed


@pytest.mark.parametrize(
    ("options", "selected"),
    [(None, "two"), ((), "one"), (("--collect-only",), "two")],
)
def test_no_node_is_asked_for_nothing(gate, surveyed, monkeypatch, options, selected):
    """Without a launcher, without a case of several ranks, or where nothing is measured."""
    if options is None:
        monkeypatch.delenv("STEPGUARD_LAUNCHER")
        options = ()
    gate.suite(gate.cpu("one"), gate.cpu("two", world_size=2))
    assert gate.run(*options, "-k", selected).ret == (0 if "--collect-only" in options else 1)
    assert surveyed.asked == []


def test_the_nodes_are_asked_once(gate, surveyed):
    """Before the first case; cases of one rank and of several are measured."""
    gate.suite(gate.cpu("a", world_size=2), gate.cpu("b", world_size=4), gate.cpu("one"))
    gate.run()
    assert surveyed.asked == ["srun --nodes=2"]
    assert gate.measured == ["linear[a]", "linear[b]", "linear[one]"]


def test_another_interpreter_is_of_this_node_alone(gate, surveyed, monkeypatch):
    """No node is asked for cases of several ranks beside --perf-against-python."""
    monkeypatch.setattr(stepguard.plugin.session, "survey_both", lambda *asked: ("mine", "theirs"))
    gate.suite(gate.cpu(world_size=2))
    result = gate.run("--perf-against-python=other/bin/python")
    assert (result.ret, surveyed.asked, gate.paired) == (4, [], [])
    result.stderr.fnmatch_lines([f"ERROR: STEPGUARD_LAUNCHER={SRUN}: the interpreter of *"])


def test_nodes_that_will_not_do_are_exit_4(gate, surveyed):
    """The run does not go on with one node as if nobody had asked for two."""
    surveyed.found = MachineError("host1 has torch 2.8, host0 has 2.11")
    gate.suite(gate.cpu(world_size=2))
    result = gate.run()
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines(["*STEPGUARD_LAUNCHER=srun --nodes=2: host1 has torch 2.8*"])


def test_an_empty_launcher_is_exit_4(gate, monkeypatch):
    """Of another variable that is not set, maybe: that must not mean one node."""
    monkeypatch.setenv("STEPGUARD_LAUNCHER", "")
    gate.suite(gate.cpu(world_size=2))
    result = gate.run()
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines(["*STEPGUARD_LAUNCHER=: '' is no command: *"])


def test_a_case_that_cannot_be_shared_out_is_exit_4(gate, surveyed):
    """Named; deselected it is no matter, and one rank never is."""
    surveyed.found = launcher(3)
    gate.suite(gate.cpu("odd", world_size=2), gate.cpu("one"), gate.cpu("even", world_size=3))
    result = gate.run()
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines(["*linear[[]odd[]] has 2 ranks, which 3 nodes cannot share*"])
    gate.run("-k", "not odd")
    assert gate.measured == ["linear[one]", "linear[even]"]


def test_gpus_are_counted_on_every_node(gate, surveyed, h200):
    """Four ranks on two nodes need two on each: one on the other is too few, two will do."""
    gate.gpus = [h200, dataclasses.replace(h200, uuid="GPU-2")]
    gate.suite(gate.cuda("four", world_size=4))
    surveyed.found = launcher(2, gpus=1)
    result = gate.run("-rs")
    assert (result.ret, gate.measured) == (1, [])
    result.says("*needs 4 GPUs, 2 nodes have 1 each*")
    surveyed.found = launcher(2, gpus=2)
    gate.run()
    assert gate.measured == ["linear[four]"]


def test_the_baseline_of_one_node_is_not_asked(gate, surveyed, monkeypatch):
    """A case that has one is NO BASELINE on two nodes."""
    monkeypatch.delenv("STEPGUARD_LAUNCHER")
    gate.guarded(world_size=2)
    assert gate.run().ret == 0
    monkeypatch.setenv("STEPGUARD_LAUNCHER", SRUN)
    result = gate.run("--perf-json=run.json")
    assert result.ret == 1
    assert "NOT_RECORDED" in (gate.path / "run.json").read_text()
    assert "cpu-2-nodes.json" in (gate.path / "run.json").read_text()
