"""Exchanges between ranks: how long, how fast, and how far apart the ranks arrive.

A collective's kernel runs from its own rank's arrival until all are done, so on one rank its length
is mostly waiting. Its latency is the least length over the ranks: that of the last rank to arrive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepguard.core.profile import grouped
from stepguard.trace.api_calls import DTYPE_BYTES
from stepguard.trace.columns import NONE, Floats
from stepguard.trace.kernel_classes import COMMUNICATION
from stepguard.trace.make_profile import Analysis


@dataclass(frozen=True)
class Exchange:
    """All collectives of one kind and size."""

    name: str
    bytes: int  # payload as nccl-tests counts it; 0 if the file does not say
    ranks: int  # in the group
    calls: float  # in each step
    us: float  # mean length on the ranks whose traces were read
    # The least over ranks, as a mean over calls; None if only one rank's trace was read.
    latency_us: float | None
    algorithm_gb_s: float | None  # bytes / latency
    bus_gb_s: float | None  # ... times the share of the bytes that each link carries
    skew_in_us: float | None  # from the first rank's begin to the last one's
    skew_out_us: float | None


@dataclass(frozen=True)
class _Series:
    """The collectives of one rank in order, with their times in the clock that all ranks share."""

    keys: tuple[tuple[str, int, int], ...]
    start_us: Floats
    end_us: Floats


def exchanges(ranks: Sequence[Analysis]) -> list[Exchange]:
    """Return the collectives of the complete steps, the longest first. Figures over several ranks
    need the same steps and the same order of collectives in all files; otherwise each row is of one
    rank.
    """
    series = [_collectives(analysis, ranks[0]) for analysis in ranks]
    together = len(ranks) > 1 and all(of_rank.keys == series[0].keys for of_rank in series)
    used = series if together else series[:1]
    start = np.stack([of_rank.start_us for of_rank in used])
    end = np.stack([of_rank.end_us for of_rank in used])
    keys, steps = series[0].keys, ranks[0].windows.steps
    members = grouped(range(len(keys)), lambda i: keys[i])
    rows = [_exchange(key, start[:, rows], end[:, rows], steps) for key, rows in members.items()]
    return sorted(rows, key=lambda row: -row.us * row.calls)


def _collectives(analysis: Analysis, first: Analysis) -> _Series:
    windows, gpu = analysis.windows, analysis.windows.gpu
    rows = np.flatnonzero(analysis.of(COMMUNICATION) & (windows.step_of_record != NONE))
    mine, others = analysis.trace, first.trace
    offset = mine.began_us - others.began_us
    offset += (mine.machine.base_ns - others.machine.base_ns) / 1e3
    return _Series(
        keys=tuple(_key(analysis, row) for row in rows.tolist()),
        start_us=gpu.start_us[rows] + offset,
        end_us=gpu.end_us[rows] + offset,
    )


def _key(analysis: Analysis, row: int) -> tuple[str, int, int]:
    gpu, machine = analysis.windows.gpu, analysis.trace.machine
    message = analysis.trace.messages.get(int(gpu.external[row]))
    if message is None:
        name = analysis.trace.names[gpu.name[row]]
        return analysis.classes.canonical_name(name), 0, machine.world_size
    group = message.group if message.group > 0 else machine.world_size
    # nccl-tests divides the larger side of an exchange by the time.
    elements = max(message.elements_in, message.elements_out, 0)
    return message.name, DTYPE_BYTES.get(message.dtype, 0) * elements, group


def bus_factor(name: str, ranks: int) -> float:
    """Return bus bandwidth / algorithm bandwidth (nccl-tests, PERFORMANCE.md)."""
    if ranks < 2:
        return 0.0
    if "allreduce" in name:
        return 2 * (ranks - 1) / ranks
    if any(word in name for word in ("allgather", "reducescatter", "alltoall")):
        return (ranks - 1) / ranks
    return 1.0


def _exchange(key: tuple[str, int, int], start: Floats, end: Floats, steps: int) -> Exchange:
    """Return the row of one kind. ``start`` and ``end`` have a row for each rank and a column for
    each call.
    """
    name, size, ranks = key
    us = end - start
    several = len(start) > 1
    latency = float(us.min(axis=0).mean()) if several else None
    algorithm = size / latency / 1e3 if latency and size else None
    return Exchange(
        name=name,
        bytes=size,
        ranks=ranks,
        calls=us.shape[1] / steps,
        us=float(us.mean()),
        latency_us=latency,
        algorithm_gb_s=algorithm,
        bus_gb_s=algorithm * bus_factor(name, ranks) if algorithm else None,
        skew_in_us=float(np.ptp(start, axis=0).mean()) if several else None,
        skew_out_us=float(np.ptp(end, axis=0).mean()) if several else None,
    )
