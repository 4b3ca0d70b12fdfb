"""The host's side of the channel, with a thread in place of rank 0."""

import json
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from stepguard.launch.worker_group import Control, LostWorker, Overdue

SOON_S = 0.2
LONG_S = 900.0


def nothing(*args):
    """A poll, or a progress, that does not care."""


class Peer:
    """A connection to the control, as rank 0 makes it."""

    def __init__(self, control):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(LONG_S)
        self.socket.connect("\0" + control.name)
        self.lines = self.socket.makefile("rb")

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self):
        self.lines.close()
        self.socket.close()


@pytest.fixture
def control(request):
    """A control that waits for its launch; every test has a token of its own."""
    found = Control(f"unit-{id(request.node):x}-{threading.get_native_id()}")
    yield found
    found.close()


@pytest.fixture
def peer(control):
    """Rank 0, after a good hello."""
    found = Peer(control)
    found.send({"hello": control.name.removeprefix("stepguard-"), "pids": [1, 2]})
    assert control.accept(LONG_S, nothing)["pids"] == [1, 2]
    yield found
    found.close()


@contextmanager
def answering(peer, script):
    """Run ``script(peer, command)`` in a thread for the next command."""

    def serve():
        script(peer, json.loads(peer.lines.readline()))

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_a_command_and_its_answer(control, peer):
    """The command arrives with its arguments, and every rank's answer comes back in order."""
    heard = []

    def script(peer, command):
        heard.append(command)
        peer.send({"progress": "half"})
        peer.send({"reply": "block", "ranks": [{"rank": 0}, {"rank": 1}]})

    told = []
    with answering(peer, script):
        ranks = control.request("block", {"steps": 3}, LONG_S, nothing, told.append)
    assert heard == [{"command": "block", "steps": 3}]
    assert (ranks, told) == ([{"rank": 0}, {"rank": 1}], ["half"])


def test_the_host_times_what_begins(control, peer):
    """From the ranks' word to their answer, by the host's clock; and nothing of what did not."""

    def block(peer, command):
        peer.send({"begin": True})
        time.sleep(0.01)
        peer.send({"reply": "block", "ranks": [{"rank": 0}, {"rank": 1}]})

    with answering(peer, block):
        ranks = control.request("block", {}, LONG_S, nothing, nothing)
    assert [rank["rank"] for rank in ranks] == [0, 1]
    assert {rank["outside_ms"] > 0 for rank in ranks} == {True}
    with answering(peer, lambda peer, _: peer.send({"reply": "park", "ranks": [{"rank": 0}]})):
        assert control.request("park", {}, LONG_S, nothing, nothing) == [{"rank": 0}]


def test_a_late_answer_to_another_command_is_skipped(control, peer):
    """An answer that belongs to an earlier command is not taken for this one's."""

    def script(peer, command):
        peer.send({"reply": "count", "ranks": [{"is": "old"}]})
        peer.send({"reply": "block", "ranks": [{"is": "new"}]})

    with answering(peer, script):
        assert control.request("block", {}, LONG_S, nothing, nothing) == [{"is": "new"}]


def test_an_answer_may_come_in_pieces(control, peer):
    """Messages are lines, however the socket cuts or joins them, and however long they are."""
    long = {"reply": "block", "ranks": [{"text": "\u00e9" * 300_000}]}
    whole = json.dumps({"progress": "x"}).encode() + b"\n" + json.dumps(long).encode() + b"\n"

    def script(peer, command):
        for index in range(0, len(whole), 100_003):
            peer.socket.sendall(whole[index : index + 100_003])

    with answering(peer, script):
        assert control.request("block", {}, LONG_S, nothing, nothing) == long["ranks"]


def test_a_closed_socket_is_a_lost_worker(control, peer):
    """When rank 0 closes instead of answering, that is LostWorker, long before the deadline."""
    with answering(peer, lambda peer, command: peer.close()):
        with pytest.raises(LostWorker):
            control.request("block", {}, LONG_S, nothing, nothing)


def test_the_deadline_is_kept(control, peer):
    """A rank that is silent, or only tells its progress, has Overdue at the deadline."""
    with pytest.raises(Overdue):
        control.request("block", {}, SOON_S, nothing, nothing)


def test_the_host_polls_while_it_waits(control, peer):
    """Polls come while nothing does, and what they raise ends the wait."""
    polls = []

    def poll():
        polls.append(1)
        if len(polls) == 3:
            raise LostWorker("process 7 ended")

    with pytest.raises(LostWorker, match="process 7"):
        control.request("block", {}, LONG_S, poll, nothing)
    assert len(polls) == 3


def test_nobody_comes(control):
    """Without a hello there is Overdue, and polls meanwhile."""
    polls = []
    with pytest.raises(Overdue):
        control.accept(SOON_S, lambda: polls.append(1))
    assert polls


GARBAGE = [b'{"hello": "another launch", "pids": [666]}\n', b"GET / HTTP/1.1\r\n\r\n", b"[1, 2]\n",
           b""]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage[:12]))
def test_a_stranger_is_refused(control, garbage):
    """A wrong token or garbage is turned away, and the launch's own rank 0 let in after it."""
    token = control.name.removeprefix("stepguard-")
    stranger = Peer(control)
    stranger.socket.sendall(garbage)
    if not garbage:
        stranger.close()
    own = Peer(control)
    own.send({"hello": token, "pids": [7]})
    assert control.accept(LONG_S, nothing) == {"hello": token, "pids": [7]}
    if garbage:
        with suppress(ConnectionResetError):
            assert stranger.socket.recv(1) == b""  # closed on it
    stranger.close()
    own.close()


def test_closing_tells_rank_0(control, peer):
    """When the host closes, rank 0 reads the end of the stream."""
    control.close()
    assert peer.lines.readline() == b""
    control.close()  # twice is as good as once
