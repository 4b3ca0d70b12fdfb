"""What a rank answers to each command: one type a command, for both ends of the wire."""

from math import nan
from typing import Any

import msgspec

from stepguard.core.evidence import Counts
from stepguard.core.profile import Profile


class Reply(msgspec.Struct, kw_only=True):
    """A rank's answer. By itself it is that to a command that asks for nothing."""

    # The host's own duration of the command, which agrees with no other clock unless the rank said
    # when its work began.
    outside_ms: float = nan
    samples: list[Any] = []  # of another node's GPUs, since its last answer


class Sources(Reply):
    """The files that a rank's modules came from, by module."""

    sources: dict[str, str]
    installed: dict[str, str]


class Prepared(Sources):
    """A workload that is built, and what its rank runs on."""

    tokens_per_step: int
    # The fields of evidence.Fingerprint that only torch knows, the capability and the SM count.
    fingerprint: dict[str, Any]
    flops_per_step: float = 0.0
    floor_flops_per_step: float = 0.0
    precision: str = ""
    memory_bytes: int = 0


class FirstStep(Reply):
    """The first step, with its compilation."""

    compile_s: float  # with what a loop has taken before
    compiled_afresh: bool  # something that no cache had
    missed_graphs: int  # that the cache lacked
    reserved_bytes: int  # on the GPU


class Timed(Reply):
    """Steps between two times of time.perf_counter_ns."""

    began_ns: int
    ended_ns: int


class TimedBlock(Timed):
    """A block's times. The rest is a total: if it grew, the block was not steady."""

    wall_ms: float
    events_ms: float
    step_ms: list[float]
    enqueue_ms: float | None = None  # of the first step, on a GPU
    compiled_graphs: int = 0
    compiled_afresh: bool = False
    device_allocations: int = 0


class TimedSegments(Timed):
    """The mean step time of each segment of variants of the step."""

    segments_ms: list[float]


class Counted(Reply):
    """The counts so far."""

    counts: Counts
    tokens_per_step: int = 0  # the mean of the first counted steps; 0: not counted


class Kernels(Reply):
    """The profile of the steps that were profiled, or why there is none on a GPU."""

    profile: Profile | None = None
    problem: str = ""


class Called(Reply):
    """What another package's function returned."""

    returned: dict[str, Any]


REPLIES: dict[str, type[Reply]] = {
    "prepare": Prepared,
    "first_step": FirstStep,
    "block": TimedBlock,
    "alternate": TimedSegments,
    "count": Counted,
    "count_eager": Counted,
    "locate": Counted,
    "profile": Reply,
    "kernels": Kernels,
    "call": Called,
    "sources": Sources,
    "park": Reply,
}
