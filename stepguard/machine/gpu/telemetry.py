"""Tell what a case's GPUs did during a block, on every node, and whether the block counts. Pure.

Ranks are numbered node after node, ``per_node`` on each. Rank i of a node is on its GPU i. Every
node has its own clock. So a node's own ranks say when the block began and ended. Only the samples
between these two times count.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from statistics import median_high

import msgspec

from stepguard.core.evidence import Block, Disturbance
from stepguard.core.reasons import Reason
from stepguard.core.replies import Timed

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h). The software power cap, 0x4, does not
# count as a slowdown: a big GPU runs at its cap all the time, also in the recordings.
SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
Ranks = Sequence[Timed]  # the answers of all ranks to one command, in rank order


@dataclass(frozen=True)
class Sample:
    """One reading of one GPU."""

    at_ns: int  # time.perf_counter_ns
    sm_clock_mhz: int
    temperature_c: int
    power_w: float
    energy_mj: int
    slowdown: str  # what slows the clocks down, other than the power cap; else empty
    pids: tuple[int, ...]  # of the processes on the GPU


def slowdown(bits: int) -> str:
    """Return the slowdowns among the driver's throttle reasons, in words; empty if there are
    none.
    """
    return ", ".join(text for bit, text in SLOWDOWN_BITS.items() if bits & bit)


Poll = Sequence[Sample | None]  # a sample of every GPU of a node


# The worker groups whose ranks may be on the GPUs: the process ids of each, by rank.
Expected = Sequence[Sequence[int]]


def _stranger(pids: Sequence[int], expected: Expected, node: range) -> int | None:
    """Return a process on the GPUs of ``node`` (a range of ranks) that belongs to no expected
    group; None if there is none.

    In a container NVML may show the pids of the host, which are not the ones known here. Then only
    the number of processes is compared: a GPU has one rank of each group.
    """
    ours = {pid for group in expected for pid in group[node.start : node.stop]}
    if not ours:
        return None
    strangers = sorted(set(pids) - ours) if ours & set(pids) else pids[len(expected) :]
    return min(strangers, default=None)


@dataclass(frozen=True)
class _Gpu:
    """One GPU during a block."""

    samples: Sequence[Sample]
    seconds: float
    strangers: frozenset[str]  # unexpected processes, in words

    @property
    def energy_j(self) -> float | None:
        """Return the rise of the energy counter between first and last sample, scaled to the
        block.
        """
        if len(self.samples) < 2:
            return None
        first, last = self.samples[0], self.samples[-1]
        between = (last.at_ns - first.at_ns) / 1e9
        if between <= 0:
            return None
        return (last.energy_mj - first.energy_mj) / 1e3 / between * self.seconds


def annotate(
    block: Block, ranks: Ranks, local: Sequence[Poll], expected: Expected, per_node: int
) -> Block:
    """Return the block with the telemetry of all nodes that ran it. ``local`` are the polls of this
    host. The polls of another node come with the answer of its first rank.

    The block's ``disturbance``, if it has one, says why the block must be measured again.
    """
    gpus: list[_Gpu] = []
    for first in range(0, len(ranks), per_node):
        # A case of one rank has fewer ranks than a node.
        node = range(first, min(first + per_node, len(ranks)))
        polls = local if first == 0 else _carried(ranks[first])
        gpus += _gpus_of(node, ranks[node.start : node.stop], polls, expected, per_node)
    if unseen := [str(rank) for rank, gpu in enumerate(gpus) if not gpu.samples]:
        where = f" of rank {', '.join(unseen)}" if len(gpus) > 1 else ""
        text = f"no telemetry{where} during the block"
        return replace(block, disturbance=Disturbance(Reason.MACHINE_UNREADABLE, text))
    flat = [sample for gpu in gpus for sample in gpu.samples]
    slowdowns = {sample.slowdown for sample in flat if sample.slowdown}
    strangers = frozenset().union(*(gpu.strangers for gpu in gpus))
    joules = [gpu.energy_j for gpu in gpus]
    return replace(
        block,
        sm_clock_mhz=float(median_high(sample.sm_clock_mhz for sample in flat)),
        temperature_c=max(sample.temperature_c for sample in flat),
        power_w=median_high(sample.power_w for sample in flat),
        energy_j=sum(j for j in joules if j is not None) if None not in joules else None,
        disturbance=_disturbance(strangers, slowdowns),
    )


def _disturbance(strangers: Set[str], slowdowns: Set[str]) -> Disturbance | None:
    """Return what disturbed a block. Another process comes first, since it explains a slowdown."""
    if not strangers and not slowdowns:
        return None
    reason = Reason.FOREIGN_PROCESS if strangers else Reason.THROTTLED
    return Disturbance(reason, "; ".join([*sorted(strangers), *sorted(slowdowns)]))


def _gpus_of(
    node: range, ranks: Ranks, polls: Sequence[Poll], expected: Expected, per_node: int
) -> list[_Gpu]:
    began = min(rank.began_ns for rank in ranks)
    ended = max(rank.ended_ns for rank in ranks)
    where = f" of node {node.start // per_node}" if node.start else ""
    gpus = []
    for at in range(len(node)):
        read = [poll[at] for poll in polls if at < len(poll)]
        inside = [sample for sample in read if sample and began <= sample.at_ns <= ended]
        pids = {_stranger(sample.pids, expected, node) for sample in inside} - {None}
        strangers = frozenset(f"process {pid} on the GPU{where}" for pid in pids)
        gpus.append(_Gpu(inside, (ended - began) / 1e9, strangers))
    return gpus


def _carried(rank: Timed) -> list[Poll]:
    """Return what a rank of another node sent along; empty if it could read nothing."""
    try:
        polls: list[Poll] = msgspec.convert(rank.samples, list[list[Sample | None]])
    except msgspec.ValidationError:
        return []
    return polls
