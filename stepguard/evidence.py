"""Evidence: everything that one run measured of one case, raw samples included.

Workers send rank reports; the host makes ``Block``, ``Launch`` and ``Evidence`` of them, and the
verdict reads nothing else. All of it is frozen and turns into JSON and back without loss.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stepguard.fingerprint import Fingerprint
from stepguard.judge.limits import DIFFERENCE_LIMIT_PCT, paired
from stepguard.metrics import METRICS
from stepguard.site import Site
from stepguard.verdict import Reason

SCHEMA = 1
EVENTS_AGREE_SHARE = 0.005  # wall clock and CUDA events of a block agree within this share ...
EVENTS_AGREE_MS = 1.0  # ... or this many milliseconds, whichever is more


@dataclass(frozen=True)
class Block:
    """Consecutive timed steps between two synchronizations, on every rank."""

    steps: int
    wall_ms: tuple[float, ...]  # by rank: synchronize to synchronize
    events_ms: tuple[float, ...]  # by rank: first to last event; equals wall_ms on a CPU
    step_ms: tuple[float, ...]  # single steps of the slowest rank
    enqueue_ms: float | None = None  # host time for the first step, slowest rank; GPUs only
    energy_j: float | None = None  # of all GPUs, between the two synchronizations
    sm_clock_mhz: float | None = None  # median of the samples taken during the block
    temperature_c: float | None = None
    power_w: float | None = None
    tainted: str = ""  # why the block was measured again, if it was; such a block is not counted
    ran: int | None = None  # steps of its launch before it, behind the first; None: not known

    @property
    def mean_ms(self) -> float:
        """Step time of the slowest rank: its wall clock over the steps."""
        return max(self.wall_ms) / self.steps

    @property
    def timed_steps(self) -> range:
        """Which steps of its launch it timed, counted like ``ran``; none if that is not known."""
        return range(0) if self.ran is None else range(self.ran, self.ran + self.steps)

    def no_time(self) -> str:
        """One sentence if a time is missing or not a positive finite number, else empty."""
        if self.steps < 1 or not self.wall_ms or not self.step_ms:
            return f"a block of {self.steps} steps has no times"
        if len(self.step_ms) != self.steps:
            return f"a block of {self.steps} steps has the times of {len(self.step_ms)}"
        for ms in (*self.wall_ms, *self.events_ms, *self.step_ms):
            if not (math.isfinite(ms) and ms > 0):
                return f"a block has a time of {ms!r} ms"
        return ""

    def clocks_disagree(self) -> str:
        """One sentence if wall clock and events tell different times, else the empty string."""
        for rank, (wall, events) in enumerate(zip(self.wall_ms, self.events_ms, strict=True)):
            if abs(wall - events) > max(EVENTS_AGREE_MS, EVENTS_AGREE_SHARE * wall):
                return f"rank {rank}: wall clock {wall:.2f} ms, events {events:.2f} ms"
        return ""


@dataclass(frozen=True)
class Launch:
    """One fresh worker group that ran the case: its warm-up and its blocks."""

    index: int
    blocks: tuple[Block, ...]
    compile_s: float  # the first step, to synchronization
    warmup_s: float
    warmup_steps: int
    steady: str  # empty when the warm-up ended in a steady state, else why not
    wall_s: float  # the whole launch, start and teardown included
    discarded: tuple[Block, ...] = ()  # tainted blocks, kept for the record

    def has_times(self) -> bool:
        """Whether there is a block, and every block has a time for each of its steps."""
        return bool(self.blocks) and not any(block.no_time() for block in self.blocks)

    @property
    def step_ms(self) -> float:
        """Mean step time over the blocks, weighted by their steps."""
        total = sum(max(block.wall_ms) for block in self.blocks)
        return total / sum(block.steps for block in self.blocks)

    @property
    def step_ms_median(self) -> float:
        """Median of single steps over the blocks."""
        return statistics.median(ms for block in self.blocks for ms in block.step_ms)


@dataclass(frozen=True)
class Counts:
    """What the counting pass counted. ``unstable`` says why a metric is missing from ``values``."""

    values: dict[str, int]
    unstable: dict[str, str] = field(default_factory=dict)
    detail: dict[str, dict[str, int]] = field(default_factory=dict)  # metric -> what -> count
    sites: dict[str, tuple[Site, ...]] = field(default_factory=dict)  # metric -> where
    by_rank: dict[str, tuple[int, ...]] = field(default_factory=dict)  # where the ranks differ
    information: dict[str, float] = field(default_factory=dict)  # beside the counts, never judged
    wall_s: float = 0.0


@dataclass(frozen=True)
class Difference:
    """Two ways to run the same step, block beside block in one launch: (plain, other) in ms a step.

    ``name`` is the difference's. "sync_overhead": the other way synchronizes after every step.
    "exposed_comm": the plain way exchanges nothing between ranks, the other is the step as it is.
    """

    name: str
    pairs_ms: tuple[tuple[float, float], ...]
    plain_by_rank_ms: tuple[float, ...] = ()  # mean of the plain way on each rank

    def no_time(self) -> str:
        """One sentence if a time is missing or not a positive finite number, else empty."""
        if not self.pairs_ms:
            return f"{self.name} has no pair of blocks"
        for ms in (*(ms for pair in self.pairs_ms for ms in pair), *self.plain_by_rank_ms):
            if not (math.isfinite(ms) and ms > 0):
                return f"{self.name} has a time of {ms!r} ms"
        return ""

    def contradiction(self) -> str:
        """One sentence if steps without exchange take longer beyond doubt, else empty. Of a sync
        that is not said: a card at its power cap may answer to the pauses.
        """
        found = paired(self.pairs_ms)
        surely = found.mean_pct + found.half_width_pct < -DIFFERENCE_LIMIT_PCT
        if self.name != "exposed_comm" or not surely:
            return ""
        size = f"{found.mean_pct:.2f} +- {found.half_width_pct:.2f} % of a step"
        return f"{self.name} is {size}: the step without it takes longer, so it does other work"

    @property
    def rank_skew_pct(self) -> float:
        """How much longer the slowest rank's plain step takes than the fastest one's."""
        return 100 * (max(self.plain_by_rank_ms) / min(self.plain_by_rank_ms) - 1)

    def straggler(self) -> str:
        """Which rank takes longest and how long, against the one that takes least."""
        times = self.plain_by_rank_ms
        slow, fast = times.index(max(times)), times.index(min(times))
        return f"rank {slow} takes {times[slow]:.2f} ms alone, rank {fast} {times[fast]:.2f} ms"


@dataclass(frozen=True)
class Fault:
    """Why there is no (or not enough) measurement. ``code`` is a reason code of verdict.py."""

    code: str
    message: str  # one sentence
    detail: str = ""  # traceback or the tail of stderr
    during: str = ""  # "launch 2, block"


@dataclass(frozen=True)
class Evidence:
    """All launches of a case in one run."""

    case_id: str
    case: dict[str, Any]
    date: str  # UTC, ISO 8601
    commit: str
    dirty: tuple[str, ...]  # changed files outside baselines/
    command: str
    planned_launches: int
    gates: tuple[str, ...]
    fingerprint: Fingerprint | None = None
    launches: tuple[Launch, ...] = ()
    counts: Counts | None = None
    differences: tuple[Difference, ...] = ()
    one_rank: Launch | None = None  # the same case as one rank alone; none of its launches
    one_rank_tokens_per_step: int = 0
    one_rank_problem: str = ""  # why there is none, one sentence
    faults: tuple[Fault, ...] = ()
    tokens_per_step: int = 0  # all ranks
    flops_per_step: float = 0.0  # by formula, all ranks
    floor_flops_per_step: float = 0.0  # fewest that do the step, one rank
    wall_s: float = 0.0
    schema: int = SCHEMA

    def software_key(self) -> dict[str, str]:
        """What of the software must be equal in recordings that this is compared with."""
        assert self.fingerprint is not None
        return self.fingerprint.software_key(int(self.case["world_size"]))

    def samples_ms(self) -> list[float]:
        """Every counted single step of every launch."""
        return [ms for launch in self.launches for block in launch.blocks for ms in block.step_ms]

    @property
    def timed_steps(self) -> range:
        """From the first step that any launch timed to the last, counted like ``Block.ran``."""
        blocks = [block for launch in self.launches for block in launch.blocks]
        timed = [block.timed_steps for block in blocks if block.timed_steps]
        first = min((steps.start for steps in timed), default=0)
        return range(first, max((steps.stop for steps in timed), default=0))

    def values(self) -> dict[str, float]:
        """Every metric that this evidence has, by name."""
        found: dict[str, float] = dict(self.counts.values) if self.counts else {}
        if self.counts:
            found |= self.counts.information
        for one in self.differences:
            if one.no_time():
                continue
            measured = paired(one.pairs_ms)
            found[f"{one.name}_ms"] = measured.mean_ms
            found[f"{one.name}_pct"] = measured.mean_pct
            if one.name == "exposed_comm" and one.plain_by_rank_ms:
                found["rank_skew_pct"] = one.rank_skew_pct
        if self.tokens_per_step:
            found["tokens_per_step"] = self.tokens_per_step
        if not self.launches or not all(launch.has_times() for launch in self.launches):
            return found
        step_ms = geometric_mean([launch.step_ms for launch in self.launches])
        found["step_ms"] = step_ms
        found["step_ms_median"] = geometric_mean([x.step_ms_median for x in self.launches])
        found["compile_s"] = max(launch.compile_s for launch in self.launches)
        blocks = [block for launch in self.launches for block in launch.blocks]
        enqueue = [block.enqueue_ms for block in blocks if block.enqueue_ms is not None]
        if enqueue:
            found["enqueue_ms"] = statistics.median(enqueue)
        found["tokens_per_s"] = self.tokens_per_step / step_ms * 1e3
        found |= self._scaling(step_ms)
        peak = self.fingerprint.peak_flops if self.fingerprint else None
        if peak and self.flops_per_step:
            achieved = self.flops_per_step / self.case["world_size"] / step_ms * 1e3
            found["mfu_pct"] = 100 * achieved / peak
        energy = [(block.energy_j, block.steps) for block in blocks if block.energy_j is not None]
        if len(energy) == len(blocks):
            found["energy_j_per_step"] = sum(j for j, _ in energy) / sum(n for _, n in energy)
        return found

    def _scaling(self, step_ms: float) -> dict[str, float]:
        """What one rank takes alone, and how much of its pace every rank of the case keeps."""
        one, tokens = self.one_rank, self.one_rank_tokens_per_step
        if one is None or not tokens or not one.has_times():
            return {}
        pace = self.tokens_per_step / int(self.case["world_size"]) / step_ms
        alone = tokens / one.step_ms
        return {"one_rank_step_ms": one.step_ms, "scaling_efficiency_pct": 100 * pace / alone}

    def floor_ms(self) -> float | None:
        """The step time below which the result contradicts the hardware, or None if unknown."""
        if self.fingerprint is None or not self.fingerprint.floor_flops:
            return None
        return self.floor_flops_per_step / self.fingerprint.floor_flops * 1e3


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean log: the level at which ratios of launches average out."""
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def to_json(evidence: Evidence) -> bytes:
    """The evidence as one JSON document, keys in order of definition."""
    return msgspec.json.format(msgspec.json.encode(evidence), indent=1)


def from_json(text: bytes, source: str) -> Evidence:
    """Read what to_json wrote. Raises ValueError naming ``source`` and what is wrong with it."""
    try:
        evidence = msgspec.json.decode(text, type=Evidence)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{source}: not evidence that stepguard wrote: {error}") from None
    if evidence.schema != SCHEMA:
        raise ValueError(
            f"{source}: evidence schema {evidence.schema}, this version reads {SCHEMA}"
        )
    unknown = [gate for gate in evidence.gates if gate not in METRICS]
    unknown += [fault.code for fault in evidence.faults if fault.code not in Reason.__members__]
    if unknown:
        raise ValueError(f"{source}: {unknown[0]!r} is not known to this version of stepguard")
    return evidence
