"""The other nodes of a run, as the first one sees them: who is there, what they answer.

A node agent (launch/node.py) connects, describes itself and then does what it is told. It is
refused when its software or its GPUs are not those of this node. A node that is lost stays lost:
nothing waits for it again, and every later launch that needs it fails by name.
"""

import contextlib
import itertools
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepguard.case import Case
from stepguard.gpu.nvml import Gpu
from stepguard.launch.likeness import Facts, describe, from_message, unlike
from stepguard.launch.wire import Message, Wire, WireError, endpoint_of, key_of

GATHER_LIMIT_S = 300.0  # for all nodes to connect
HELLO_LIMIT_S = 10.0  # for whoever connects to say who it is
ANSWER_LIMIT_S = 30.0
POLL_S = 0.05


class NodesError(Exception):
    """The other nodes are not there, or not as they must be; one sentence with the remedy."""


class Node:
    """One other node."""

    def __init__(self, wire: Wire, facts: Facts) -> None:
        self.wire, self.facts = wire, facts
        self.answers: dict[int, Message] = {}
        self.ended: set[str] = set()  # tokens of launches of which a process ended there
        self.lost = ""  # why nothing can be asked any more

    def look(self) -> None:
        """Take in what has come."""
        if self.lost:
            return
        try:
            for message in self.wire.messages():
                if "ended" in message:
                    self.ended.add(message["ended"])
                else:
                    self.answers[message["id"]] = message
        except WireError as error:
            self.lose(str(error))

    def lose(self, why: str) -> None:
        """From now on it is gone."""
        self.lost = f"node {self.facts.label}: {why}"
        self.wire.close()


class Nodes:
    """All other nodes, in the order of their node ranks: 1, 2, ..."""

    def __init__(self, address: str, others: Sequence[Node]) -> None:
        self.address = address  # of this node, as the others reach it
        self.others = sorted(others, key=lambda node: (node.facts.name, node.facts.pid))
        self._ids = itertools.count()

    @property
    def count(self) -> int:
        """How many nodes there are, this one included."""
        return 1 + len(self.others)

    @property
    def lost(self) -> str:
        """Which node is gone and why, or the empty string."""
        return next((node.lost for node in self.others if node.lost), "")

    def gpus(self, here: int) -> int:
        """GPUs that every node has, where this one has so many: the fewest of all."""
        return min(here, *(len(node.facts.gpus) for node in self.others))

    def look(self) -> None:
        """Take in what the nodes have said meanwhile, without waiting."""
        for node in self.others:
            node.look()

    def ask(
        self, do: str, each: Sequence[Message] = (), limit_s: float = ANSWER_LIMIT_S, **what: Any
    ) -> list[Message]:
        """Tell all nodes to do something; the answers of those that are not lost, in their order.

        ``each`` adds something for each node. A node that breaks off, refuses or is silent for
        ``limit_s`` seconds is lost.
        """
        number = next(self._ids)
        more = each or [{} for _ in self.others]
        for node, extra in zip(self.others, more, strict=True):
            if not node.lost:
                try:
                    node.wire.send({"id": number, "do": do} | what | extra)
                except WireError as error:
                    node.lose(str(error))
        until = time.monotonic() + limit_s
        while waiting := [n for n in self.others if not n.lost and number not in n.answers]:
            select.select([node.wire for node in waiting], [], [], POLL_S)
            for node in waiting:
                node.look()
                if not node.lost and number not in node.answers and time.monotonic() > until:
                    node.lose(f"no answer to {do!r} in {limit_s:.0f} s")
        told = [(node, node.answers.pop(number)) for node in self.others if number in node.answers]
        for node, message in told:
            if "refused" in message:
                node.lose(f"{do}: {message['refused']}")
        return [message["answer"] | {"node": n.facts.label} for n, message in told if not n.lost]

    def close(self) -> None:
        """Tell the nodes that it is over; their agents end."""
        self.ask("bye", limit_s=5.0)
        for node in self.others:
            node.wire.close()


def spread(case: Case, nodes: Nodes | None) -> Nodes | None:
    """The nodes that share the case's ranks; None where all of them run on this one.

    A case of one rank runs here alone, every other one on all nodes.
    """
    return nodes if case.world_size > 1 else None


def per_node(case: Case, nodes: Nodes | None) -> int:
    """The case's ranks on each node. Raises ValueError if they cannot be shared out equally."""
    shared = spread(case, nodes)
    if shared is None:
        return case.world_size
    return shared_out(case, shared.count)


def shared_out(case: Case, count: int) -> int:
    """The case's ranks on each of ``count`` nodes. Raises ValueError if that is no whole number."""
    if case.world_size % count:
        raise ValueError(
            f"{case.id} has {case.world_size} ranks, which {count} nodes cannot share "
            "equally; deselect it, or use another number of nodes"
        )
    return case.world_size // count


def refuse_to_spread(cases: Sequence[Case], count: int, gpus: int) -> None:
    """Raise ValueError, before anybody waits, if no case has several ranks or if ``count`` nodes
    cannot share one out. A case that would not fit, had every node ``gpus`` GPUs, is skipped later.
    """
    several = [case for case in cases if case.world_size > 1]
    if not several:
        raise ValueError("no case of several ranks is selected, so there is nothing to spread")
    for case in several:
        if case.device == "cpu" or gpus * count >= case.world_size:
            shared_out(case, count)


def identity(case: Case, nodes: Nodes | None) -> dict[str, Any]:
    """What the case's figures depend on: its own part, and over how many nodes it is spread."""
    shared = spread(case, nodes)
    return case.as_dict() | ({"nodes": shared.count} if shared else {})


def gather(
    count: int,
    endpoint: str,
    root: Path,
    gpus: Sequence[Gpu],
    environment: dict[str, str],
    show: Callable[[str], None],
    limit_s: float = GATHER_LIMIT_S,
) -> Nodes:
    """Wait until the agents of ``count`` - 1 other nodes are here.

    Raises ValueError for an endpoint or a key that will not do, NodesError when they do not come,
    or when one of them is not as this node is.
    """
    address, port = endpoint_of(endpoint)
    key = key_of(environment)
    here = describe(root, gpus)
    try:
        listener = socket.create_server(("", port), backlog=count)
    except OSError as error:
        raise NodesError(
            f"cannot listen on port {port}: {error.strerror}; choose another"
        ) from None
    start = f"start on each: python -m stepguard node --endpoint {endpoint}"
    with listener, _Door(listener, key, here, show) as door:
        others = f"{count - 1} other node{'s' if count > 2 else ''}"
        show(f"waiting up to {limit_s:.0f} s for {others}; {start}")
        until = time.monotonic() + limit_s
        while len(door.nodes) < count - 1:
            door.look(POLL_S)
            if time.monotonic() > until:
                heard = f"; refused: {door.refused}" if door.refused else ""
                raise NodesError(
                    f"{len(door.nodes)} of {count - 1} other nodes came in {limit_s:.0f} s{heard}; "
                    + start
                )
    for node in door.nodes:
        show(f"node {node.facts.label}: {len(node.facts.gpus)} GPUs")
    return Nodes(address, door.nodes)


class _Door:
    """Lets nodes in: whoever connects has HELLO_LIMIT_S to prove the key and say who it is."""

    def __init__(
        self, listener: socket.socket, key: bytes, here: Facts, show: Callable[[str], None]
    ) -> None:
        self._listener, self._key, self._here, self._show = listener, key, here, show
        self._strangers: list[tuple[Wire, float]] = []  # and when they are shown out
        self.nodes: list[Node] = []
        self.refused = ""  # why the last one was not let in

    def look(self, seconds: float) -> None:
        """Take who knocks, and what was said. Raises NodesError for a node that is not alike."""
        wires = [wire for wire, _ in self._strangers]
        doors: list[socket.socket | Wire] = [self._listener, *wires]
        ready = select.select(doors, [], [], seconds)[0]
        if self._listener in ready:
            try:
                link = self._listener.accept()[0]
                wire = Wire(link, self._key, first=True)
                self._strangers.append((wire, time.monotonic() + HELLO_LIMIT_S))
            except (OSError, WireError) as error:
                self._refuse(str(error))
        for wire, until in self._strangers[:]:
            if not self._stays(wire, until):
                self._strangers.remove((wire, until))

    def __enter__(self) -> "_Door":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Show out whoever has not said who it is; everybody, if there will be no run."""
        for wire, _ in self._strangers:
            wire.close()
        for node in self.nodes if kind else ():
            node.wire.close()

    def _stays(self, wire: Wire, until: float) -> bool:
        """Whether somebody still has to say who it is."""
        try:
            said = wire.messages()
            if said:
                self._enter(wire, from_message(said[0].get("hello", {})))
                return False
            if time.monotonic() < until:
                return True
            raise WireError(f"somebody connected and said nothing for {HELLO_LIMIT_S:.0f} s")
        except (WireError, ValueError) as error:
            self._refuse(str(error))
            if wire.ready:
                with contextlib.suppress(WireError):
                    wire.send({"id": -1, "do": "bye", "why": self.refused})
        wire.close()
        return False

    def _refuse(self, why: str) -> None:
        """Say it at once, and not again while the same keeps knocking."""
        if why != self.refused:
            self._show(f"refused who connected: {why}")
        self.refused = why

    def _enter(self, wire: Wire, there: Facts) -> None:
        node = Node(wire, there)
        if how := unlike(self._here, there):
            refusal = f"node {there.label} is not as this one is: {how}"
            wire.send({"id": -1, "do": "bye", "why": refusal})
            wire.close()
            raise NodesError(f"{refusal}; the same commit and packages are needed on every node")
        wire.send({"id": -1, "do": "welcome"})
        self.nodes.append(node)
