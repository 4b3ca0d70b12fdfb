"""The other nodes: who is let in, what becomes of one that breaks off, how a case is shared out."""

import socket
import threading
from dataclasses import replace

import pytest
from builders import block

from stepguard import Case
from stepguard.evidence import Fault
from stepguard.gpu.nvml import Gpu
from stepguard.gpu.telemetry import Telemetry, merged
from stepguard.launch import nodes as nodes_module
from stepguard.launch.diagnosis import LaunchFailed, first_cause
from stepguard.launch.likeness import Facts, as_message, describe, digest_of, unlike
from stepguard.launch.nodes import (
    Nodes,
    NodesError,
    gather,
    identity,
    per_node,
    refuse_to_spread,
)
from stepguard.launch.wire import WireError, connect
from stepguard.measure.prepared import refuse_unlike_ranks
from stepguard.storage.baselines import file_name

KEY = "0123456789abcdef"
ENVIRONMENT = {"STEPGUARD_NODE_KEY": KEY}
H200 = Gpu("GPU-1", "NVIDIA H200", "580.159", 1980)


@pytest.fixture
def root(tmp_path):
    """A source tree."""
    (tmp_path / "my_model.py").write_text("x = 1\n")
    return tmp_path


@pytest.fixture
def port():
    """A port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Agents:
    """Node agents in threads: each says hello, then answers as its function does."""

    def __init__(self, port):
        self.port = port
        self.wires = []
        self.threads = []

    def start(self, facts, answer=lambda message: {}, key=KEY):
        thread = threading.Thread(target=self._run, args=(facts, answer, key), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _run(self, facts, answer, key):
        try:
            wire = connect(("127.0.0.1", self.port), key.encode(), 3.0)
        except WireError:  # the door is shut
            return
        self.wires.append(wire)
        try:
            wire.send({"hello": as_message(facts)})
            while True:
                wire.wait(0.1)
                for message in wire.messages():
                    if message["do"] == "welcome":
                        continue
                    told = answer(message)
                    if told is not None:
                        wire.send({"id": message["id"], "answer": told})
        except (WireError, ValueError, OSError):
            wire.close()


@pytest.fixture
def agents(port):
    """Starts them."""
    found = Agents(port)
    yield found
    for thread in found.threads:
        thread.join(10)
        assert not thread.is_alive()


def gathered(root, port, count=2, **changes):
    """The nodes that are here, without GPUs."""
    known = {"gpus": (), "environment": ENVIRONMENT, "show": lambda text: None, "limit_s": 10.0}
    return gather(count, f"127.0.0.1:{port}", root, **known | changes)


def test_nodes_that_are_alike_are_let_in_and_asked(root, port, agents):
    """Answers come in the order of the nodes' names, whoever came first."""
    here = describe(root, ())
    agents.start(replace(here, name="b"), lambda message: {"who": "b"})
    agents.start(replace(here, name="a"), lambda message: {"who": "a"})
    found = gathered(root, port, count=3)
    assert (found.count, found.address, found.lost) == (3, "127.0.0.1", "")
    assert [told["who"] for told in found.ask("anything")] == ["a", "b"]
    found.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stepguard": "0.0.9"}, "stepguard 0.0.9, here "),
        ({"python": "2.7.18"}, "python 2.7.18, here "),
        ({"packages": {"torch": "1.0"}}, "torch 1.0, here "),
        ({"commit": "b" * 40}, "is at bbbbbbbbbb, "),
        ({"sources": "other"}, "the Python sources under "),
        ({"gpus": (H200,)}, "NVIDIA H200 with driver 580.159, here no GPU"),
    ],
)
def test_a_node_that_is_not_alike_is_refused_by_name(root, port, agents, change, words):
    """What differs is said on both nodes, and nothing is measured."""
    seen = []
    there = replace(describe(root, ()), name="odd", **change)
    agents.start(there, lambda message: seen.append(message["why"]))
    with pytest.raises(NodesError) as raised:
        gathered(root, port)
    assert "node odd (pid " in str(raised.value) and words in str(raised.value)
    agents.threads[0].join(10)
    assert words in seen[0]


def test_a_stranger_is_refused_and_the_node_still_let_in(root, port, agents, monkeypatch):
    """Another key, another protocol and silence hold nobody up."""
    monkeypatch.setattr(nodes_module, "HELLO_LIMIT_S", 0.3)
    here = describe(root, ())
    agents.start(here, key="another key, long enough")
    noise, strangers = [b"GET / HTTP/1.0\r\n\r\n", b""], []

    def knock(text):
        if "waiting" in text:
            for words in noise:
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                strangers[-1].sendall(words)
            agents.start(here)

    found = gathered(root, port, show=knock)
    assert found.count == 2
    found.close()


def test_nodes_that_do_not_come_are_an_error_with_the_command(root, port):
    """How many came, within how long, and what to start on the others."""
    with pytest.raises(NodesError, match=r"0 of 1 other nodes came in 0 s.*stepguard node"):
        gathered(root, port, limit_s=0.1)


def test_who_was_refused_is_told_when_time_is_up(root, port, agents):
    """A wrong key is the likeliest reason why nobody came."""
    agents.start(describe(root, ()), key="another key, long enough")
    with pytest.raises(NodesError, match="refused: .*STEPGUARD_NODE_KEY"):
        gathered(root, port, limit_s=2.0)


def test_a_refusal_is_said_at_once_and_once(root, port, agents):
    """While the others are waited for, and not again for who keeps knocking."""
    shown = []
    for _ in range(3):
        agents.start(describe(root, ()), key="another key, long enough")
    with pytest.raises(NodesError):
        gathered(root, port, limit_s=2.0, show=shown.append)
    told = [text for text in shown if "refused" in text]
    assert len(told) == 1 and "STEPGUARD_NODE_KEY the same on every node" in told[0]
    assert "waiting up to 2 s for 1 other node; start on each: python -m stepguard" in shown[0]


@pytest.mark.parametrize(
    ("cases", "gpus", "problem"),
    [
        ([Case("a", "m:f", device="cpu")], 0, "no case of several ranks"),
        ([Case("a", "m:f", device="cpu", world_size=2)], 0, "2 ranks, which 3 nodes cannot share"),
        ([Case("a", "m:f", world_size=4)], 2, "4 ranks, which 3 nodes cannot share"),
        ([Case("a", "m:f", world_size=4)], 1, ""),  # too many for such nodes: it is skipped
        ([Case("a", "m:f", world_size=6), Case("b", "m:f")], 2, ""),
    ],
)
def test_what_cannot_be_spread_is_refused_before_anybody_waits(cases, gpus, problem):
    """It is arithmetic; how many GPUs the other nodes have is not known yet."""
    if problem:
        with pytest.raises(ValueError, match=problem):
            refuse_to_spread(cases, 3, gpus)
    else:
        refuse_to_spread(cases, 3, gpus)


def test_a_port_in_use_is_an_error(root):
    """Not a traceback."""
    with socket.create_server(("", 0)) as taken, pytest.raises(NodesError, match="cannot listen"):
        gathered(root, taken.getsockname()[1])


@pytest.mark.parametrize("how", ["silent", "gone", "refuses"])
def test_a_lost_node_stays_lost_and_is_named(root, port, agents, how):
    """Silence, a closed connection, a refusal: no answer, and the next question does not wait."""

    def answer(message):
        if how == "gone":
            agents.wires[0].close()
        if how == "refuses":
            agents.wires[0].send({"id": message["id"], "refused": "OSError: disk full"})

    agents.start(replace(describe(root, ()), name="far"), answer)
    found = gathered(root, port)
    assert found.ask("start", limit_s=0.3) == []
    assert found.lost.startswith("node far (pid ")
    words = {"silent": "no answer to 'start' in 0 s", "gone": "connection", "refuses": "disk full"}
    assert words[how] in found.lost
    assert found.ask("start", limit_s=60.0) == []
    found.close()


def test_the_digest_is_of_sources_alone(root):
    """A changed, renamed or added module changes it; what git or a build leaves behind does not."""
    before = digest_of(root)
    for folder in (".git", "__pycache__", ".stepguard"):
        (root / folder).mkdir()
        (root / folder / "x.py").write_text("")
    (root / "notes.txt").write_text("x")
    assert digest_of(root) == before
    (root / "my_model.py").write_text("x = 2\n")
    changed = digest_of(root)
    (root / "my_model.py").rename(root / "model.py")
    assert len({before, changed, digest_of(root)}) == 3


def test_a_node_is_like_itself(root):
    """Whatever its name, its pid, its folder, and however many GPUs of the same kind it has."""
    here = describe(root, (H200,))
    two = (H200, replace(H200, uuid="GPU-2"))
    assert unlike(here, replace(here, name="x", pid=1, root="/elsewhere", gpus=two)) == ""


def nodes_of(*gpus):
    """Nodes besides this one, each with so many GPUs, that nobody talks to."""
    facts = [Facts(f"n{i}", 1, "/r", "", "", {}, "", "", (H200,) * n) for i, n in enumerate(gpus)]
    ends = [socket.socketpair()[0] for _ in facts]
    return Nodes("first", [nodes_module.Node(e, f) for e, f in zip(ends, facts, strict=True)])


def test_a_case_of_several_ranks_is_shared_out_equally():
    """One rank stays here; what cannot be shared out is refused by name."""
    two, three = nodes_of(8), nodes_of(8, 8)
    cases = {n: Case(f"n{n}", "m:f", world_size=n) for n in (1, 2, 16)}
    assert [per_node(cases[n], two) for n in (1, 2, 16)] == [1, 1, 8]
    assert [per_node(cases[n], None) for n in (1, 2, 16)] == [1, 2, 16]
    with pytest.raises(ValueError, match=r"f\[n16\] has 16 ranks, which 3 nodes cannot share"):
        per_node(cases[16], three)


def test_figures_of_several_nodes_are_kept_apart():
    """Another identity and another file: 2 x 2 GPUs are not the 4 of one host."""
    case = Case("n", "m:f", world_size=4)
    assert identity(case, None) == case.as_dict()
    assert identity(case, nodes_of(8)) == case.as_dict() | {"nodes": 2}
    single = replace(case, world_size=1, gates=())
    assert identity(single, nodes_of(8)) == single.as_dict()
    assert file_name("cuda", "NVIDIA H200", 4) == "h200x4.json"
    assert file_name("cuda", "NVIDIA H200", 4, 2) == "h200x4-2-nodes.json"
    assert file_name("cpu", "", 2, 2) == "cpu-2-nodes.json"


def test_the_fewest_gpus_of_a_node_count():
    """8 here and 2 there are 2 on each."""
    assert nodes_of(4, 2).gpus(8) == 2
    assert nodes_of(4).gpus(1) == 1


def told(**changes):
    """What a rank says of itself."""
    known = {"device_name": "NVIDIA H200", "torch": "2.11.0", "nccl": "2.27", "environment": {}}
    return {"fingerprint": known | changes}


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"torch": "2.8.0"}, "rank 1 has torch 2.8.0"),
        ({"nccl": "2.26"}, "rank 1 has nccl 2.26"),
        ({"environment": {"TORCH_COMPILE_X": "1"}}, "steering variables"),
    ],
)
def test_a_rank_on_other_software_stops_the_launch(odd, words):
    """torch itself says what it is, whatever the packages are called."""
    refuse_unlike_ranks([told(), told(environment={"NCCL_SOCKET_IFNAME": "eth1"})])
    with pytest.raises(LaunchFailed) as raised:
        refuse_unlike_ranks([told(), told(**odd)])
    assert raised.value.fault.code == "NODES_DIFFER" and words in raised.value.fault.message


def fault(code, detail=""):
    """A fault of this code."""
    return Fault(code, f"{code} {detail}", detail)


@pytest.mark.parametrize(
    ("cause", "victim"),
    [
        (fault("KILLED"), fault("RAISED", "planted")),
        (fault("RAISED", "planted"), fault("RAISED", "RuntimeError: Connection closed by peer")),
        (fault("AGENT_DIED"), fault("RAISED", "torch.distributed.DistBackendError: NCCL error")),
        (fault("OUT_OF_MEMORY"), fault("AGENT_DIED")),
    ],
)
def test_of_several_nodes_faults_the_cause_is_told(cause, victim):
    """Whichever node speaks first: one that lost its peer is a victim."""
    assert first_cause([cause, victim]) is cause
    assert first_cause([victim, cause]) is cause


def telemetry(**changes):
    """What another node's agent says of a block."""
    known = {"tainted": "", "sm_clock_mhz": 1500.0, "temperature_c": 70.0, "power_w": 600.0}
    return known | {"energy_j": 30.0, "node": "far (pid 1)"} | changes


MEASURED = block(sm_clock_mhz=1600.0, temperature_c=60.0, power_w=700.0, energy_j=20.0)


def test_telemetry_of_all_nodes_is_one():
    """The slowest clock, the hottest card, the mean power, all the energy."""
    found = merged(MEASURED, [telemetry()])
    assert (found.sm_clock_mhz, found.temperature_c) == (1500.0, 70.0)
    assert (found.power_w, found.energy_j, found.tainted) == (650.0, 50.0, "")
    assert merged(MEASURED, [telemetry(energy_j=None)]).energy_j is None


def test_what_taints_a_block_elsewhere_taints_it():
    """And the node is named; a node without telemetry has no figures at all."""
    silent = dict.fromkeys(("sm_clock_mhz", "temperature_c", "power_w", "energy_j"))
    odd = telemetry(tainted="no telemetry during the block", **silent)
    assert merged(MEASURED, [odd]).tainted == "no telemetry during the block on node far (pid 1)"


class Asked:
    """In place of Nodes: remembers what was asked and answers alike."""

    def __init__(self, *answers):
        self.others, self.answers, self.asked, self.lost = answers, answers, [], "far is gone"

    def ask(self, do, each=(), **what):
        self.asked.append((do, each))
        return list(self.answers)


class Watching:
    """In place of Monitor."""

    def __init__(self, gpus):
        self.spans = []

    def annotate(self, one, began_ns, ended_ns):
        self.spans.append((began_ns, ended_ns))
        return one


def test_every_node_cuts_by_its_own_clock(monkeypatch):
    """Two ranks on each of two nodes, whose clocks are far apart; one rank alone asks nobody."""
    monkeypatch.setattr("stepguard.gpu.telemetry.Monitor", Watching)
    nodes = Asked(telemetry())
    found = Telemetry([H200, H200], nodes)
    ranks = [{"began_ns": a, "ended_ns": b} for a, b in ((1, 5), (2, 6), (901, 905), (900, 904))]
    assert found.annotate(MEASURED, ranks).energy_j == 50.0
    assert found._monitor.spans == [(1, 6)]
    assert nodes.asked == [("annotate", [{"began_ns": 900, "ended_ns": 905}])]
    assert found.annotate(MEASURED, ranks[:1]) == MEASURED
    nodes.answers = ()
    assert "no telemetry of a node: far is gone" in found.annotate(MEASURED, ranks).tainted
