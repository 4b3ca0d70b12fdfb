"""python -m stepguard node, and run --nnodes: what is refused, in one line each."""

import pytest

from stepguard import cli, node
from stepguard.wire import KEY_VARIABLE

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


@pytest.mark.parametrize(
    "options", [["--nnodes", "2"], ["--rdzv-endpoint", "h:1"], ["--nnodes", "0"]]
)
def test_run_wants_both_options(options, capsys):
    """Status 2: with one of them the other nodes would be left out in silence."""
    assert cli.main(["run", "factories:linear", "--device", "cpu", *options]) == 2
    assert "--nnodes and --rdzv-endpoint go together" in capsys.readouterr().err
