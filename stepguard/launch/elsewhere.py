"""The part of one launch that runs on the other nodes: started, watched, asked why, and killed."""

import secrets
import socket
from dataclasses import replace
from typing import Any

import msgspec

from stepguard.evidence import Fault
from stepguard.fingerprint import steers
from stepguard.launch.diagnosis import LaunchFailed, Scene, anything_ended, first_cause, lost_worker
from stepguard.launch.diagnosis import no_answer as silent_here
from stepguard.launch.nodes import Nodes
from stepguard.launch.torchrun import GONE_LIMIT_S, LaunchSpec, Share
from stepguard.launch.wire import environment
from stepguard.verdict import Reason


class Elsewhere:
    """One launch on the other nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._token = ""

    def start(self, spec: LaunchSpec, token: str) -> None:
        """Start the other nodes' ranks. Raises LaunchFailed if a node is lost."""
        self._token = token
        assert spec.share is not None
        shared: dict[str, Any] = {
            "token": token,
            "folder": list(spec.folder.parts[-3:]),  # run, case, launch
            "device": spec.device,
            "preload": spec.preload,
            "world_size": spec.world_size,
            "label": spec.label,
            "time_limit_s": spec.time_limit_s,
            "steering": {name: value for name, value in environment().items() if steers(name)},
        }
        shares = [replace(spec.share, node_rank=1 + n) for n in range(len(self._nodes.others))]
        self._nodes.ask("start", [{"share": vars(share)} for share in shares], **shared)
        if lost := self._lost(f"{spec.label}, start"):
            raise LaunchFailed(lost)

    def watch(self, pids: list[int]) -> None:
        """Tell the nodes their ranks' processes, by rank over all nodes."""
        self._nodes.ask("watch", token=self._token, pids=pids)

    def ended(self) -> str:
        """How the launch came to an end elsewhere; empty while it has not."""
        self._nodes.look()
        if self._nodes.lost:
            return self._nodes.lost
        gone = [node for node in self._nodes.others if self._token in node.ended]
        return f"a process on node {gone[0].facts.label} ended" if gone else ""

    def lost_worker(self, scene: Scene) -> Fault:
        """Why a process ended, on whichever node it was the first."""
        found = [lost_worker(scene)] if anything_ended(scene) else []
        answers = self._nodes.ask("diagnose", token=self._token, during=scene.during)
        for told in (answer for answer in answers if answer["fault"]):
            fault = msgspec.convert(told["fault"], Fault)
            found.append(replace(fault, message=f"{fault.message}, on node {told['node']}"))
        if lost := self._lost(scene.during):
            return lost
        return first_cause(found or [lost_worker(scene)])

    def no_answer(self, scene: Scene) -> Fault:
        """Where every rank of every node stands, with the stacks of each node's first rank."""
        answers = self._nodes.ask("where", token=self._token, during=scene.during)
        fault = silent_here(scene)
        message = "; ".join([fault.message, *(answer["positions"] for answer in answers)])
        detail = "".join([fault.detail, *(f"{a['node']}:\n{a['detail']}" for a in answers)])
        return self._lost(scene.during) or replace(fault, message=message, detail=detail)

    def kill(self) -> None:
        """End the launch everywhere. A node that is lost does it by itself."""
        if self._token:
            self._nodes.ask("kill", limit_s=2 * GONE_LIMIT_S, token=self._token)
        self._token = ""

    def _lost(self, during: str) -> Fault | None:
        lost = self._nodes.lost
        return Fault(Reason.NODE_LOST.name, lost, "", during) if lost else None


def share_of(nodes: Nodes) -> Share:
    """This node's part of the next launch, on a port that is free now."""
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    return Share(nodes.count, 0, nodes.address, port, secrets.token_hex(16))
