"""What the GPUs of a case did while it was measured, on every node that has a part in it."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from stepguard.evidence import Block, Fault
from stepguard.gpu.nvml import Gpu, MachineError, Monitor
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.nodes import Nodes
from stepguard.verdict import Reason

Ranks = Sequence[dict[str, Any]]


class Telemetry:
    """A monitor of this node's GPUs, and those of the other nodes' agents.

    Every node's clock is its own: its samples are cut by what its own ranks say of a block.
    """

    def __init__(self, gpus: Sequence[Gpu], nodes: Nodes | None = None) -> None:
        self._monitor = Monitor(gpus)
        self._nodes, self._size = nodes, len(gpus)

    @property
    def gpus(self) -> list[Gpu]:
        """By rank: the GPU that it should run on."""
        others = self._nodes.others if self._nodes else ()
        return [*self._monitor.gpus, *(g for n in others for g in n.facts.gpus[: self._size])]

    def preflight(self) -> str:
        """Why a machine is not fit to measure on, or the empty string. Raises MachineError when it
        cannot be asked.
        """
        if problem := self._monitor.preflight():
            return problem
        for told in self._nodes.ask("preflight", gpus=self._size) if self._nodes else ():
            if told["unreadable"]:
                raise MachineError(f"node {told['node']}: {told['unreadable']}")
            if told["problem"]:
                return f"node {told['node']}: {told['problem']}"
        return ""

    def expect(self, *groups: Sequence[int], token: str, everywhere: bool) -> None:
        """The worker groups whose ranks may be on the GPUs from now on; each is its processes on
        this node. Unless they are ``everywhere`` no other node takes part.
        """
        self._monitor.expect(*groups)
        if self._nodes and everywhere:
            self._nodes.ask("expect", token=token)

    def poll(self) -> None:
        """Take a sample of this node's GPUs if one is due; agents do so by themselves."""
        self._monitor.poll()

    def annotate(self, block: Block, ranks: Ranks) -> Block:
        """The block with the telemetry of all nodes whose ranks ran it."""
        spans = [span(ranks[at : at + self._size]) for at in range(0, len(ranks), self._size)]
        found = self._monitor.annotate(block, *spans[0])
        if self._nodes is None or len(spans) == 1:
            return found
        each = [{"began_ns": began, "ended_ns": ended} for began, ended in spans[1:]]
        told = self._nodes.ask("annotate", each)
        if len(told) < len(each):
            return replace(found, tainted=f"no telemetry of a node: {self._nodes.lost}")
        return merged(found, told)


def fit_telemetry(gpus: Sequence[Gpu], share: int, nodes: Nodes | None) -> Telemetry:
    """Telemetry of the first ``share`` GPUs of every node. Raises LaunchFailed, before anything is
    launched, where a node has fewer or is not fit to measure on.
    """
    have = nodes.gpus(len(gpus)) if nodes else len(gpus)
    if have < share:
        where = "on every node" if nodes else "here"
        message = f"{share} GPUs needed, {have} {where}"
        raise LaunchFailed(Fault(Reason.TOO_FEW_GPUS.name, message, "", "preflight"))
    reason = Reason.FOREIGN_PROCESS
    try:
        found = Telemetry(gpus[:share], nodes)
        problem = found.preflight()
    except MachineError as error:
        reason, problem = Reason.MACHINE_UNREADABLE, str(error)
    if nodes and nodes.lost:
        reason, problem = Reason.NODE_LOST, nodes.lost
    if problem:
        raise LaunchFailed(Fault(reason.name, problem, "", "preflight"))
    return found


def span(ranks: Ranks) -> tuple[int, int]:
    """From when the first of the ranks began till the last one ended, on their node's clock."""
    return min(rank["began_ns"] for rank in ranks), max(rank["ended_ns"] for rank in ranks)


def merged(block: Block, told: Sequence[dict[str, Any]]) -> Block:
    """This node's block with the other nodes' telemetry: the slowest clock, the hottest card, the
    mean power and all energy. What taints one node taints the block.
    """
    taints = [block.tainted, *(f"{t['tainted']} on node {t['node']}" for t in told if t["tainted"])]
    tainted = "; ".join(filter(None, taints))
    if tainted:
        return replace(block, tainted=tainted)
    energy = [block.energy_j, *(t["energy_j"] for t in told)]
    known = [joules for joules in energy if joules is not None]
    return replace(
        block,
        sm_clock_mhz=min(block.sm_clock_mhz or 0.0, *(t["sm_clock_mhz"] for t in told)),
        temperature_c=max(block.temperature_c or 0.0, *(t["temperature_c"] for t in told)),
        power_w=fmean([block.power_w or 0.0, *(t["power_w"] for t in told)]),
        energy_j=sum(known) if len(known) == len(energy) else None,
    )
