"""python -m stepguard node, and run --nnodes: what is refused, in one line each."""

import socket
import threading

import pytest

from stepguard.cli import main as cli
from stepguard.launch import node
from stepguard.launch.nodes import NodesError, gather
from stepguard.launch.wire import KEY_VARIABLE

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def signals_kept(monkeypatch):
    """The agent's handlers are not for this process."""
    monkeypatch.setattr(node.signal, "signal", lambda number, handler: None)


def test_an_agent_wants_a_key(monkeypatch, capsys):
    """Status 1 and the command that makes one."""
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert cli.main(["node", "--endpoint", "127.0.0.1:9"]) == 1
    assert f"export {KEY_VARIABLE}=" in capsys.readouterr().err


def test_an_agent_wants_an_endpoint(monkeypatch, capsys):
    """Status 1 and the form."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert cli.main(["node", "--endpoint", "somewhere"]) == 1
    assert "HOST:PORT" in capsys.readouterr().err


def test_an_agent_that_finds_nobody_says_so(monkeypatch, capsys):
    """Status 1 when its time is up."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setattr(node, "CONNECT_LIMIT_S", 0.3)
    assert cli.main(["node", "--endpoint", "127.0.0.1:9"]) == 1
    assert "no answer in 0 s (Connection refused)" in capsys.readouterr().err


def test_an_agent_with_another_key_is_told_so(monkeypatch, capsys, tmp_path):
    """At once, on both nodes: neither says that the other is gone, or waits its time out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    shown, over = [], threading.Event()

    def first_node():
        with pytest.raises(NodesError):
            gather(2, endpoint, tmp_path, (), {KEY_VARIABLE: KEY[::-1]}, shown.append, 5.0)
        over.set()

    threading.Thread(target=first_node, daemon=True).start()
    assert cli.main(["node", "--endpoint", endpoint]) == 1
    assert not over.is_set()
    told = capsys.readouterr()
    assert f"not connected: a message without proof: is {KEY_VARIABLE} the same" in (
        told.err + told.out
    )
    assert over.wait(20) and any(KEY_VARIABLE in text for text in shown)


@pytest.mark.parametrize(
    "options", [["--nnodes", "2"], ["--rdzv-endpoint", "h:1"], ["--nnodes", "0"]]
)
def test_run_wants_both_options(options, capsys):
    """Status 2: with one of them the other nodes would be left out in silence."""
    assert cli.main(["run", "factories:linear", "--device", "cpu", *options]) == 2
    assert "--nnodes and --rdzv-endpoint go together" in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "nodes"), [("1", "2"), ("3", "2"), ("2", "3")])
def test_ranks_that_nodes_cannot_share_are_refused_before_anybody_waits(gpus, nodes, capsys):
    """Status 2 at once: one rank of two nodes would leave the second one idle in silence."""
    options = ["--gpus", gpus, "--nnodes", nodes, "--rdzv-endpoint", "127.0.0.1:9"]
    assert cli.main(["run", "factories:linear", "--device", "cpu", *options]) == 2
    said = f"--gpus {gpus}: {nodes} nodes cannot share them equally; write --gpus {nodes} or"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("gpus", ["0", "-1"])
def test_no_ranks_are_refused(gpus, capsys):
    """Status 2, and the option is named."""
    assert cli.main(["run", "factories:linear", "--device", "cpu", "--gpus", gpus]) == 2
    assert f"--gpus {gpus}: at least 1 is needed" in capsys.readouterr().err
