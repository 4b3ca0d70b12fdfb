"""A launcher's nodes: which one a process is on, and on which nodes nothing can be measured."""

import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from short_launches import BUSY_LIMIT_S

from stepguard import Case
from stepguard.launch import nodes as module
from stepguard.launch.nodes import (
    Launcher,
    Node,
    describe_nodes,
    identity,
    machine_id,
    node_of,
    spread,
    survey,
    unfit,
)
from stepguard.machine.gpu import Gpu, MachineError
from stepguard.storage.baseline_files import file_name

START_TWICE = f"{sys.executable} {Path(__file__).with_name('start_twice.py')}"
HERE = "this machine"


def node(rank, nodes=2, gpus=0, **changes):
    """A node like the others, with GPUs of its own."""
    cards = tuple(Gpu(f"GPU-{rank}-{n}", "NVIDIA H200", "580.1", 1980) for n in range(gpus))
    known = {"host": f"host{rank}", "machine": f"machine {rank}" if rank else HERE}
    known |= {"shares_files": True, "software": {"torch": "2.11"}, "gpus": cards}
    return Node(rank=rank, nodes=nodes, **known | changes)


@pytest.mark.parametrize(("environment", "found"), [
    ({"SLURM_NODEID": "1", "SLURM_NNODES": "2"}, (1, 2)),
    ({"SLURM_NODEID": "1", "SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "2"}, (1, 2)),
    ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
    # mpirun inside of a SLURM job: who started last is asked first.
    ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_NODEID": "0"} | {
         "SLURM_NNODES": "2"}, (1, 2)),
    ({"STEPGUARD_NODE_RANK": "0", "STEPGUARD_NODES": "2", "SLURM_NODEID": "1"}, (0, 2)),
])  # fmt: skip
def test_the_scheduler_tells_which_node_it_is(environment, found):
    """What was set by whoever started the process last goes first."""
    assert node_of(environment) == found


@pytest.mark.parametrize(("environment", "words"), [
    ({}, "the launcher sets none of STEPGUARD_NODES and STEPGUARD_NODE_RANK"),
    ({"SLURM_NODEID": "0"}, "the launcher sets none of"),
    ({"STEPGUARD_NODE_RANK": "2", "STEPGUARD_NODES": "2"}, "STEPGUARD_NODE_RANK=2 is no "),
    ({"STEPGUARD_NODE_RANK": "x", "STEPGUARD_NODES": "2"}, "STEPGUARD_NODE_RANK=x is no "),
])  # fmt: skip
def test_a_node_that_is_not_told_is_refused(environment, words):
    """Nothing is guessed: without a rank, or with an impossible one, nothing starts."""
    with pytest.raises(MachineError, match=words):
        node_of(environment)


@pytest.mark.parametrize(("nodes", "words"), [
    ([node(0), node(0)], "host0 was started on 2 times: .*--ntasks-per-node=1"),
    ([node(0, 3), node(1, 3)], "2 of 3 nodes answered"),
    ([node(0, 1)], "one node only; leave it out"),
    ([node(0, machine="another"), node(1)], "node 0 is host0, and this is .*: start it on "),
    ([node(0), node(1, shares_files=False)], "host1 does not see a file"),
    ([node(0), node(1, software={"torch": "2.8"})], "host1 has torch 2.8, host0 has 2.11"),
    ([node(0), node(1, software={})], "host1 has torch none, host0 has 2.11"),
    ([node(0, gpus=1), node(1)], "host1 has GPU none, host0 has NVIDIA H200 with driver"),
    ([node(0, gpus=1), replace(node(0, gpus=1), rank=1)], "two nodes show GPU-0-0"),
])  # fmt: skip
def test_nodes_on_which_nothing_can_be_measured_are_refused(nodes, words):
    """Each in a sentence, before anything is measured; as many GPUs need not be everywhere."""
    with pytest.raises(AssertionError, match=words):
        assert not unfit(nodes, HERE), unfit(nodes, HERE)


def test_a_case_of_several_ranks_is_shared_out_equally():
    """2, 4, 6 ranks on 2 nodes; 3 are refused, one runs here."""
    pair = Launcher(("srun",), (node(0, gpus=8), node(1, gpus=4)))
    for ranks in (2, 4, 6):
        assert pair.per_node(Case("n", "m:f", world_size=ranks)) == ranks // 2
    with pytest.raises(MachineError, match="3 ranks, which 2 nodes cannot share equally"):
        pair.per_node(Case("n", "m:f", world_size=3))
    assert spread(Case("n", "m:f", world_size=1), pair) is None
    assert spread(Case("n", "m:f", world_size=2), None) is None
    assert pair.fewest_gpus == 4
    assert [gpu.uuid for gpu in pair.gpus(2)] == ["GPU-0-0", "GPU-0-1", "GPU-1-0", "GPU-1-1"]


def test_figures_of_several_nodes_are_kept_apart():
    """Another identity and another file: 2 x 2 GPUs are not the 4 of one host."""
    case, pair = Case("n", "m:f", world_size=4), Launcher(("srun",), (node(0), node(1)))
    assert identity(case, None) == case.as_dict()
    assert identity(case, pair) == case.as_dict() | {"nodes": 2}
    single = replace(case, world_size=1, gates=())
    assert identity(single, pair) == single.as_dict()
    assert file_name("cuda", "NVIDIA H200", 4) == "h200x4.json"
    assert file_name("cuda", "NVIDIA H200", 4, 2) == "h200x4-2-nodes.json"
    assert file_name("cpu", "", 2, 2) == "cpu-2-nodes.json"


def test_gpus_of_another_node_must_be_fit():
    """The host looks at its own; what the others found goes with the case."""
    assert Launcher((), (node(0, problem="not asked here"), node(1))).preflight() == ""
    busy = Launcher((), (node(0), node(1, problem="in use by process 7")))
    assert busy.preflight() == "host1: in use by process 7"
    with pytest.raises(MachineError, match="host1: NVML does not answer"):
        Launcher((), (node(0), node(1, unreadable="NVML does not answer"))).preflight()


def test_two_nodes_are_found_by_starting_on_them(tmp_path):
    """Each node is asked in a process of its own, and nothing is left in the project."""
    found = survey(START_TWICE, tmp_path)
    assert [(one.rank, one.nodes) for one in found.nodes] == [(0, 2), (1, 2)]
    assert all(one.machine == machine_id() and one.shares_files for one in found.nodes)
    assert found.nodes[0].software["torch"].startswith("2.")
    assert [path.name for path in (tmp_path / ".stepguard").iterdir()] == [".gitignore"]


@pytest.mark.parametrize(("command", "words"), [
    ("", "is no command"),
    ("'", "is no command"),
    ("no-such-launcher -n 2", "no-such-launcher cannot be started: No such file"),
    ("false", "false ended with 1: it printed nothing"),
    ("true", "true ended with 0: it printed nothing"),
    ("env", "the launcher sets none of"),
    ("env SLURM_NNODES=1 SLURM_NODEID=0", "one node only"),
    ("env SLURM_NNODES=2 SLURM_NODEID=0", "1 of 2 nodes answered"),
])  # fmt: skip
def test_a_command_that_is_no_launcher_is_refused(command, words, tmp_path, monkeypatch):
    """In a sentence that names it."""
    for size, rank in module.SIZE_AND_RANK:
        monkeypatch.delenv(size, raising=False)
        monkeypatch.delenv(rank, raising=False)
    with pytest.raises(MachineError, match=words):
        survey(command, tmp_path)


def test_a_launcher_that_does_not_end_is_ended(tmp_path, monkeypatch):
    """Asked first, so that it can end what it has started; then the user hears of it."""
    ready, asked = tmp_path / "ready", tmp_path / "asked"

    class Waiting(subprocess.Popen):
        """The limit counts from when the launcher heeds signals."""

        def communicate(self, *args, **kwargs):
            while not ready.exists():
                time.sleep(0.01)
            return super().communicate(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", Waiting)
    monkeypatch.setattr(module, "SURVEY_LIMIT_S", 0.1)
    monkeypatch.setattr(module, "END_LIMIT_S", BUSY_LIMIT_S)
    script = f"trap 'echo asked > {asked}; kill $!; exit 1' TERM; sleep 600 & touch {ready}; wait"
    with pytest.raises(MachineError, match="has not ended after 0 s: does the job have"):
        describe_nodes(f'sh -c "{script}"', tmp_path)
    assert asked.read_text() == "asked\n"


def test_a_port_is_free(monkeypatch):
    """Not one that somebody listens on already."""
    with socket.create_server(("", 0)) as taken:
        other = taken.getsockname()[1]
        free = module.free_port()
        monkeypatch.setattr(module, "PORTS", [other, free])
        assert {module.free_port() for _ in range(5)} == {free}
