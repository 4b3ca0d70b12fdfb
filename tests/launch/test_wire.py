"""Messages between nodes: what a holder of the key says arrives, and nothing else does."""

import json
import socket

import pytest

from stepguard.launch import wire
from stepguard.launch.wire import Wire, WireError, connect, endpoint_of, key_of

KEY = b"0123456789abcdef"


def links():
    """Two ends of a TCP connection: that which was connected to, and the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        return listener.accept()[0], other


def pair(first_key=KEY, other_key=KEY):
    """Two ends that have met."""
    first, other = links()
    ends = Wire(first, first_key, first=True), Wire(other, other_key, first=False)
    for end in ends:
        end.wait(5)
        assert end.messages() == [] and end.ready
    return ends


def heard(end):
    """What came next."""
    assert end.wait(5)
    return end.messages()


def test_what_is_said_arrives_in_order_both_ways():
    """Several messages, one of them long, from either end."""
    first, other = pair()
    said = [{"a": 1}, {"b": "x" * 200_000}, {"c": [None, 1.5]}]
    for message in said:
        first.send(message)
    found = []
    while len(found) < 3:
        found += heard(other)
    assert found == said
    other.send({"answer": True})
    assert heard(first) == [{"answer": True}]


def test_another_key_is_refused():
    """Neither end believes the other, and the message names the variable."""
    first, other = pair(other_key=KEY[::-1])
    other.send({"hello": 1})
    with pytest.raises(WireError, match="STEPGUARD_NODE_KEY"):
        heard(first)
    first.send({"id": 0, "do": "start"})
    with pytest.raises(WireError, match="without proof"):
        heard(other)


def line_of(end, message):
    """The bytes that an end would send."""
    lines = []
    plain, end._put = end._put, lines.append
    end.send(message)
    end._put = plain
    return lines[0] + b"\n"


@pytest.mark.parametrize("how", ["changed", "said again", "said back", "kept back"])
def test_nothing_can_be_put_in_between(how):
    """A line that is changed, repeated, sent back to its speaker or left out is refused."""
    first, other = pair()
    line = line_of(first, {"do": "kill"})
    if how == "changed":
        first._link.sendall(line.replace(b"kill", b"life"))
    elif how == "said again":
        first._link.sendall(line)
        assert heard(other) == [{"do": "kill"}]
        first._link.sendall(line)
    elif how == "kept back":
        first.send({"do": "next"})
    else:
        other._link.sendall(line)
    with pytest.raises(WireError, match="without proof"):
        heard(first if how == "said back" else other)


def test_the_key_is_never_sent():
    """Neither the key nor what it proves can be read from the line but the message itself."""
    first, _ = pair()
    proof, _, text = line_of(first, {"do": "x"}).partition(b" ")
    assert json.loads(text) == {"do": "x"}
    assert KEY not in proof and KEY.hex().encode() not in proof and len(proof) == 64


def test_what_was_said_before_the_end_is_heard():
    """The last message of an end that hangs up arrives; only then it is over."""
    first, other = pair()
    first.send({"last": 1})
    first.close()
    assert heard(other) == [{"last": 1}]
    with pytest.raises(WireError, match="closed"):
        heard(other)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.0\r\n\r\n", b"\n", b"ff\n", b"00" * 31 + b"\n"])
def test_another_protocol_is_refused(noise):
    """Whoever speaks otherwise is not met."""
    first, other = links()
    end = Wire(first, KEY, first=True)
    other.sendall(noise)
    with pytest.raises(WireError, match="does not speak"):
        heard(end)


def test_a_line_without_end_is_refused(monkeypatch):
    """Memory is not filled by somebody who never ends a line."""
    monkeypatch.setattr(wire, "LONGEST_LINE", 1000)
    first, other = links()
    end = Wire(first, KEY, first=True)
    other.sendall(b"0" * 2000)
    with pytest.raises(WireError, match="no end"):
        heard(end)


def test_an_own_number_sent_back_is_refused():
    """Somebody who only repeats what is said would otherwise seem to hold the key."""
    first, other = links()
    end = Wire(first, KEY, first=True)
    other.sendall(other.recv(1000))
    with pytest.raises(WireError, match="does not speak"):
        heard(end)


def test_nobody_there_is_said_within_the_limit():
    """A port where nobody listens: the endpoint, the limit and why."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(
        WireError, match=rf"127.0.0.1:{port}: no answer in 1 s \(Connection refused"
    ):
        connect(("127.0.0.1", port), KEY, 1.0)


def test_what_is_waited_for_is_said_once():
    """Who waits for a name that is wrong, or for a node that is not up, sees it at once."""
    shown = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(WireError):
        connect(("127.0.0.1", port), KEY, 1.0, shown.append)
    assert shown == [f"waiting up to 1 s for 127.0.0.1:{port} (Connection refused)"]


@pytest.mark.parametrize("text", ["", "host", "host:", ":29400", "host:0", "host:65536", "host:x"])
def test_an_endpoint_is_a_host_and_a_port(text):
    """Anything else is refused with the form."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        endpoint_of(text)
    assert endpoint_of("[fe80::1]:29400") == ("fe80::1", 29400)


@pytest.mark.parametrize("key", [None, "", "fifteen_letters"])
def test_a_short_key_is_refused_with_the_command_that_makes_one(key):
    """No key is no protection."""
    with pytest.raises(ValueError, match="export STEPGUARD_NODE_KEY="):
        key_of({} if key is None else {"STEPGUARD_NODE_KEY": key})
    assert key_of({"STEPGUARD_NODE_KEY": KEY.decode()}) == KEY


def test_ranks_do_not_get_the_key(monkeypatch):
    """The environment that a launch starts from lacks it."""
    monkeypatch.setenv("STEPGUARD_NODE_KEY", KEY.decode())
    assert "STEPGUARD_NODE_KEY" not in wire.environment()
