"""Messages between nodes: a JSON document a line over TCP, each with a proof that it is meant.

Both ends hold a shared key and never send it. Each sends a random number; key and both numbers make
the conversation's own key, and every line carries an HMAC of who speaks, how many lines came before
and what it says. A line from somebody without the key, a changed, repeated or missing one is
refused. Nothing is hidden: who listens on the network can read it.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
KEY_VARIABLE = "STEPGUARD_NODE_KEY"
KEY_CHARACTERS = 16  # at least
SEND_LIMIT_S = 10.0
LONGEST_LINE = 1 << 20
# A machine that is switched off says nothing: the kernel asks after 5 s, and gives up after 20.
_KEEPALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
_UNACKNOWLEDGED_MS = 20_000


class WireError(Exception):
    """The conversation cannot go on; one sentence."""


def key_of(environment: dict[str, str]) -> bytes:
    """The shared key. Raises ValueError, with the remedy, where there is none that will do."""
    key = environment.get(KEY_VARIABLE, "")
    if len(key) < KEY_CHARACTERS:
        raise ValueError(
            f"{KEY_VARIABLE} has {len(key)} characters, {KEY_CHARACTERS} at least are needed, the "
            f"same on every node; make one: export {KEY_VARIABLE}=$(openssl rand -hex 16)"
        )
    return key.encode()


def endpoint_of(text: str) -> tuple[str, int]:
    """ "host:29400" -> ("host", 29400). Raises ValueError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no endpoint: write HOST:PORT, HOST as other nodes reach it")
    return host.strip("[]"), int(port)


class Wire:
    """One end of a conversation. ``first`` is the end that was connected to."""

    def __init__(self, link: socket.socket, key: bytes, first: bool) -> None:
        self._link, self._key = link, key
        self._names = (b"first", b"other") if first else (b"other", b"first")  # mine, the other's
        self._nonce = secrets.token_bytes(32)
        self._secret = b""  # until the other end's number is here
        self._sent = self._received = 0
        self._buffer = b""
        self._closed = False
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            link.setsockopt(socket.IPPROTO_TCP, option, value)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        self._put(self._nonce.hex().encode())

    def fileno(self) -> int:
        """For select()."""
        return self._link.fileno()

    @property
    def ready(self) -> bool:
        """Whether the other end's number has come, so that something can be said."""
        return bool(self._secret)

    def send(self, message: Message) -> None:
        """Say something. Raises WireError if that is not possible within SEND_LIMIT_S."""
        text = json.dumps(message).encode()
        proof = self._proof(self._names[0], self._sent, text)
        self._sent += 1
        self._put(proof + b" " + text)

    def messages(self) -> list[Message]:
        """What has come by now, without waiting. Raises WireError if nothing more can come."""
        self._fill()
        found = []
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            if not self._secret:
                self._meet(line)
            else:
                found.append(self._read(line))
        if len(self._buffer) > LONGEST_LINE:
            raise WireError("a line has no end")
        if self._closed and not found:
            raise WireError("the connection was closed")
        return found

    def wait(self, seconds: float) -> bool:
        """Whether something comes within so many seconds."""
        return bool(select.select([self._link], [], [], max(0.0, seconds))[0])

    def close(self) -> None:
        """Hang up."""
        self._link.close()

    def _fill(self) -> None:
        self._link.setblocking(False)
        try:
            while len(self._buffer) <= LONGEST_LINE:
                chunk = self._link.recv(1 << 16)
                if not chunk:
                    self._closed = True
                    return
                self._buffer += chunk
        except BlockingIOError:
            return
        except OSError as error:
            raise WireError(f"the connection broke: {error.strerror or error}") from None

    def _meet(self, line: bytes) -> None:
        try:
            other = bytes.fromhex(line.decode())
        except ValueError:
            other = b""
        if len(other) != len(self._nonce) or other == self._nonce:
            raise WireError("the other side does not speak this protocol")
        mine_first = self._names[0] == b"first"
        both = self._nonce + other if mine_first else other + self._nonce
        self._secret = hmac.digest(self._key, both, hashlib.sha256)

    def _read(self, line: bytes) -> Message:
        proof, _, text = line.partition(b" ")
        if not hmac.compare_digest(proof, self._proof(self._names[1], self._received, text)):
            raise WireError(f"a message without proof: is {KEY_VARIABLE} the same on every node?")
        self._received += 1
        return dict(json.loads(text))

    def _proof(self, speaker: bytes, number: int, text: bytes) -> bytes:
        said = speaker + number.to_bytes(8, "big") + text
        return hmac.digest(self._secret, said, hashlib.sha256).hex().encode()

    def _put(self, line: bytes) -> None:
        try:
            self._link.settimeout(SEND_LIMIT_S)
            self._link.sendall(line + b"\n")
        except OSError as error:
            raise WireError(f"the connection broke: {error.strerror or error}") from None


def connect(
    endpoint: tuple[str, int],
    key: bytes,
    limit_s: float,
    show: Callable[[str], None] = lambda text: None,
) -> Wire:
    """A conversation with the node that listens there, which may start to do so a little later.

    What it waits for is shown. Raises WireError when there is none within ``limit_s`` seconds.
    """
    host, port = endpoint
    until = time.monotonic() + limit_s
    problem = told = "nobody listens"
    while time.monotonic() < until:
        with contextlib.suppress(WireError):
            try:
                link = socket.create_connection(endpoint, timeout=min(SEND_LIMIT_S, limit_s))
            except OSError as error:
                problem = error.strerror or str(error)
                if problem != told:
                    show(f"waiting up to {limit_s:.0f} s for {host}:{port} ({problem})")
                    told = problem
                time.sleep(0.2)
                continue
            wire = Wire(link, key, first=False)
            while not wire.ready and time.monotonic() < until:
                wire.wait(0.2)
                wire.messages()
            if wire.ready:
                return wire
            wire.close()
    raise WireError(f"{host}:{port}: no answer in {limit_s:.0f} s ({problem})")


def environment() -> dict[str, str]:
    """This process's environment less the key, which no rank needs."""
    return {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
