"""A node agent with made-up GPUs: what it says of them, and what the first node makes of that."""

import socket
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from builders import block

import stepguard.gpu.telemetry
import stepguard.launch.node
from stepguard.gpu.nvml import Gpu, MachineError
from stepguard.gpu.telemetry import fit_telemetry
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.likeness import describe
from stepguard.launch.node import Agent
from stepguard.launch.nodes import Node, Nodes
from stepguard.launch.wire import Wire, WireError
from stepguard.measure.prepared import refuse_other_gpus

KEY = b"0123456789abcdef"
NEAR = tuple(Gpu(f"GPU-near-{i}", "NVIDIA H200", "580.159", 1980) for i in range(2))
FAR = tuple(replace(gpu, uuid=gpu.uuid.replace("near", "far")) for gpu in NEAR)


class Machine:
    """In place of Monitor, on both nodes: what the far GPUs do is set by the test."""

    problem: str | Exception = ""
    taint = ""

    def __init__(self, gpus):
        self.gpus = tuple(gpus)
        self.far = "far" in self.gpus[0].uuid
        self.polls = 0

    def preflight(self):
        if self.far and isinstance(Machine.problem, Exception):
            raise Machine.problem
        return str(Machine.problem) if self.far else ""

    def expect(self, pids):
        self.ours = list(pids)

    def poll(self):
        self.polls += 1

    def annotate(self, one, began_ns, ended_ns):
        told = {"sm_clock_mhz": 1500.0, "temperature_c": 70.0, "power_w": 600.0}
        joules = (ended_ns - began_ns) * len(self.gpus)
        return replace(one, **told, energy_j=joules, tainted=Machine.taint if self.far else "")


@pytest.fixture
def machine(monkeypatch):
    """Fit at first."""
    monkeypatch.setattr(Machine, "problem", "")
    monkeypatch.setattr(Machine, "taint", "")
    for module in (stepguard.launch.node, stepguard.gpu.telemetry):
        monkeypatch.setattr(module, "Monitor", Machine)
    return Machine


@pytest.fixture
def nodes(tmp_path, machine):
    """This node and another one with two GPUs, whose agent is a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = socket.create_connection(listener.getsockname())
        near = Wire(listener.accept()[0], KEY, first=True)
    far = Wire(link, KEY, first=False)
    for end in (near, far):
        assert end.wait(5) and end.messages() == []
    agent = Agent(tmp_path, far, FAR, lambda text: None)

    def serve():
        try:
            agent.serve()
        except WireError:
            far.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    found = Nodes("near", [Node(near, replace(describe(tmp_path, FAR), name="far"))])
    found.agent = agent
    yield found
    agent.launches.clear()
    found.close()
    thread.join(10)
    assert not thread.is_alive()


def ranks(began_ns=(10, 10, 5000, 5000), took_ns=7):
    """Two ranks on each node."""
    return [{"began_ns": began, "ended_ns": began + took_ns} for began in began_ns]


def test_energy_is_of_the_gpus_of_both_nodes(nodes):
    """Four GPUs for 7 ns at 1 J each a nanosecond, each node by its own clock."""
    found = fit_telemetry(NEAR, 2, nodes).annotate(block(), ranks())
    assert (found.energy_j, found.tainted, found.sm_clock_mhz) == (28.0, "", 1500.0)


def test_a_taint_of_the_other_node_is_the_blocks(nodes, machine):
    """With the node's name, so that somebody can look there."""
    found = fit_telemetry(NEAR, 2, nodes)
    machine.taint = "power brake"
    assert found.annotate(block(), ranks()).tainted.startswith("power brake on node far (pid ")


def test_a_machine_that_is_not_fit_is_named(nodes, machine):
    """A foreign process there is UNFIT before anything is launched; so is one that is not read."""
    machine.problem = "GPU-far-0: in use by process 7"
    with pytest.raises(LaunchFailed, match=r"node far \(pid \d+\): GPU-far-0: in use") as raised:
        fit_telemetry(NEAR, 2, nodes)
    assert raised.value.fault.code == "FOREIGN_PROCESS"
    machine.problem = MachineError("NVML does not answer")
    with pytest.raises(LaunchFailed, match="NVML does not answer") as raised:
        fit_telemetry(NEAR, 2, nodes)
    assert raised.value.fault.code == "MACHINE_UNREADABLE"


def test_an_agent_that_fails_is_a_lost_node(nodes, machine):
    """An error that nobody thought of is no silence: the node is lost, and says why."""
    machine.problem = KeyError("planted")
    with pytest.raises(LaunchFailed, match="KeyError: 'planted'") as raised:
        fit_telemetry(NEAR, 2, nodes)
    assert raised.value.fault.code == "NODE_LOST"


def test_too_few_gpus_on_a_node_are_refused(nodes):
    """Three on each are asked for, and the other has two."""
    with pytest.raises(LaunchFailed, match="3 GPUs needed, 2 on every node") as raised:
        fit_telemetry((*NEAR, NEAR[0]), 3, nodes)
    assert raised.value.fault.code == "TOO_FEW_GPUS"


def test_a_rank_on_a_gpu_that_is_not_watched_is_refused(nodes):
    """Ranks 2 and 3 should run on the other node's GPUs, in its order."""
    gpus = fit_telemetry(NEAR, 2, nodes).gpus
    told = [{"fingerprint": {"device_uuid": gpu.uuid}} for gpu in (*NEAR, *FAR)]
    refuse_other_gpus(told, gpus)
    with pytest.raises(LaunchFailed, match="rank 2 runs on GPU-far-1, NVML's GPU"):
        refuse_other_gpus([*told[:2], told[3], told[2]], gpus)


def test_each_node_expects_its_own_ranks(nodes):
    """A launch on both nodes; one rank alone is no matter of the other node."""
    nodes.agent.launches["all"] = SimpleNamespace(pids={2: 21, 3: 22}, told=True)
    found = fit_telemetry(NEAR, 2, nodes)
    found.expect([11, 12], token="all", everywhere=True)
    found.expect([13], token="alone", everywhere=False)
    assert found._monitor.ours == [13]
    assert nodes.agent.monitor.ours == [21, 22] and nodes.lost == ""


def test_a_launch_that_is_not_there_is_killed_already(nodes):
    """Killing twice is no error, as on this node."""
    assert len(nodes.ask("kill", token="unknown")) == 1
    assert nodes.lost == ""
