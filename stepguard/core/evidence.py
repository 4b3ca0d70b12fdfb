"""Evidence: all that one run measured of one case, with the raw samples. The judge reads nothing
else. It is frozen and survives JSON without loss. judge/summarise_evidence.py computes its figures,
once.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import fmean, median
from typing import Annotated, Any

import msgspec

from stepguard.core.case import from_dict
from stepguard.core.device import is_gpu
from stepguard.core.fingerprint import Fingerprint
from stepguard.core.metrics import METRICS
from stepguard.core.profile import LONGEST_US, Parts, Profile, StepIdentity
from stepguard.core.reason_sentences import ClockGap, Missing
from stepguard.core.reasons import Reason
from stepguard.core.recording import Count
from stepguard.core.site import Site
from stepguard.core.step_numbers import StepNumbers
from stepguard.core.strict_json import Check, Content, OtherSchema, parse
from stepguard.core.text import DETAIL_CHARACTERS, MESSAGE_CHARACTERS, bounded

SCHEMA = 2
# A block's wall clock and CUDA events must agree within this share or this time, whichever is more.
EVENTS_AGREE_SHARE = 0.005
EVENTS_AGREE_MS = 1.0
# A block's wall clock and the host's time must agree, too. The host waits for the answers of all
# ranks, and may notice them late. Only a clock that was replaced is further off.
OUTSIDE_AGREE_SHARE = 0.05
OUTSIDE_AGREE_MS = 500.0
# What a single step counts for at most. With 1.1 a sleep of 50 ms in each 32nd step of 43 ms passed
# in 85 % of simulated verdicts, with 1.25 in 11 %; stalls of the host are `same` in 100 % of them
# (steps of 250 ms: 93 %; `capped` in benchmarks/judge_rates.py).
MOST_OF_MEDIAN = 1.25
Steps = Annotated[int, msgspec.Meta(le=10**9)]


@dataclass(frozen=True)
class Disturbance:
    """A reason why a block was measured again."""

    reason: Reason  # THROTTLED, FOREIGN_PROCESS, CLOCKS_DISAGREE ...
    text: str  # "thermal slowdown (hardware)", "process 4711 on the GPU"


@dataclass(frozen=True)
class Block:
    """Consecutive timed steps between two synchronizations, on all ranks."""

    steps: Steps
    wall_ms: tuple[float, ...]  # by rank: synchronize to synchronize
    events_ms: tuple[float, ...]  # by rank: first to last event; on a CPU equal to wall_ms
    step_ms: tuple[float, ...]  # single steps of the slowest rank
    # Host time to launch the first step, of the slowest host; only on GPUs.
    enqueue_ms: float | None = None
    energy_j: float | None = None  # of all GPUs, between the synchronizations
    sm_clock_mhz: float | None = None  # median of the samples in the block
    temperature_c: float | None = None
    power_w: float | None = None
    # If set, the block was measured again and does not count.
    disturbance: Disturbance | None = None
    # How many steps its launch ran between its first step and the block; None: not known.
    ran: Steps | None = None
    # The block's duration by the host's clock; None in old evidence.
    outside_ms: float | None = None

    @property
    def mean_ms(self) -> float:
        """Return the step time of the slowest rank: its wall clock divided by the steps."""
        return max(self.wall_ms) / self.steps

    @property
    def timed_steps(self) -> range:
        """Return the numbers of the steps that it timed, counted like ``ran``; empty if unknown."""
        return range(0) if self.ran is None else range(self.ran, self.ran + self.steps)

    def bad_times(self, launch: str = "") -> Missing | None:
        """Return which time is missing, or is no positive finite number; None if none is."""
        if self.steps < 1 or not self.wall_ms or len(self.step_ms) != self.steps:
            times = len(self.step_ms) if self.wall_ms else 0
            what = "times of a block"
            return Missing(launch=launch, what=what, found=times, needed=self.steps)
        for ms in (*self.wall_ms, *self.events_ms, *self.step_ms):
            if not 0 < ms < math.inf:
                return Missing(launch=launch, what="valid times of a block", why=f"{ms} ms")
        return None

    def clock_gap(self, **about: Any) -> ClockGap | None:
        """Return two clocks that disagree: wall clock and events of the first such rank, or the
        slowest rank's wall clock and the host's. None if all agree. ``about`` are further fields.
        """
        for rank, (wall, events) in enumerate(zip(self.wall_ms, self.events_ms, strict=True)):
            if abs(wall - events) > max(EVENTS_AGREE_MS, EVENTS_AGREE_SHARE * wall):
                clock = f"rank {rank}: wall clock"
                return ClockGap(
                    clock=clock, clock_ms=wall, other="events", other_ms=events, **about
                )
        wall, outside = max(self.wall_ms), self.outside_ms
        if outside is not None and not (
            abs(wall - outside) <= max(OUTSIDE_AGREE_MS, OUTSIDE_AGREE_SHARE * outside)
        ):
            clock, other = "the ranks' clock", "the host's"
            return ClockGap(clock=clock, clock_ms=wall, other=other, other_ms=outside, **about)
        return None


@dataclass(frozen=True)
class Launch:
    """One fresh worker group that ran the case, with its warm-up and its blocks."""

    index: int
    blocks: tuple[Block, ...]
    compile_s: float  # the first step, up to its synchronization; of a loop all before it, too
    warmup_s: float
    warmup_steps: int
    steady: str  # why the warm-up did not reach a steady state; empty if it did
    wall_s: float  # of the whole launch, with its start and its end
    discarded: tuple[Block, ...] = ()  # disturbed blocks, kept for the record
    # Of a pair's launch that was profiled after its blocks: us a step of each kernel of the counted
    # profile, in that order. Empty if it was not, or if it ran other kernels than the counted ones.
    kernels_us: tuple[float, ...] = ()
    cold: bool = False  # its first step compiled graphs that later launches take from the cache

    def has_times(self) -> bool:
        """Tell whether there is a block, and all blocks have a time for each step."""
        return bool(self.blocks) and not any(block.bad_times() for block in self.blocks)

    @cached_property
    def step_ms(self) -> float:
        """Return the launch's step time in ms: the mean of the blocks' steps, each of which counts
        at most MOST_OF_MEDIAN times their median. So steps that are slow now and then show, and a
        stall of the host does not.
        """
        most = MOST_OF_MEDIAN * self.step_ms_median
        return fmean(min(ms, most) for ms in self._steps_ms)

    @property
    def plain_step_ms(self) -> float:
        """Return the plain mean of the blocks' steps in ms."""
        return fmean(self._steps_ms)

    @property
    def slow_steps(self) -> tuple[int, ...]:
        """Return which steps take more than they count for, counted from the launch's first."""
        most = MOST_OF_MEDIAN * self.step_ms_median
        timed = (zip(block.timed_steps, block.step_ms, strict=False) for block in self.blocks)
        return tuple(step for block in timed for step, ms in block if ms > most)

    @cached_property
    def step_ms_median(self) -> float:
        """Return the median of all single steps of the blocks, in ms."""
        return median(self._steps_ms)

    @property
    def _steps_ms(self) -> list[float]:
        return [ms for block in self.blocks for ms in block.step_ms]


@dataclass(frozen=True)
class Counts:
    """The result of the counting pass. ``unstable`` says why a metric is not in ``values``."""

    values: dict[str, int]
    unstable: dict[str, str] = field(default_factory=dict)
    detail: dict[str, dict[str, int]] = field(default_factory=dict)  # metric -> what -> count
    sites: dict[str, tuple[Site, ...]] = field(default_factory=dict)  # metric -> where
    # Function -> its caller -> how many operators the function calls in a step for that caller.
    callers: dict[str, dict[str, int]] = field(default_factory=dict)
    # Metric -> the count of each rank, if ranks differ.
    by_rank: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # Shown beside the counts. Pairs judge it only if a case gates it.
    information: dict[str, float] = field(default_factory=dict)
    profile: Profile | None = None  # the mean over ranks; None on a CPU
    profile_problem: str = ""  # why there is no profile on a GPU
    parts_by_rank: tuple[Parts, ...] = ()  # of each rank's step, if there are several ranks
    identity: StepIdentity | None = None  # of the step on all ranks; None on a CPU
    wall_s: float = 0.0
    # Metric -> the count of each counted step, if steps differ. Its value, parts, ranks and sites
    # are then those of all these steps together; of peaks the value is the largest.
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # How many steps its launch ran between the first step and the counted ones. None: not known.
    after_steps: Steps | None = None
    launches: int = 1  # that counted: a second one if the first did not settle all counters
    # Metric -> the count of each step of both launches, if these disagree and most steps have its
    # value.
    of_both: dict[str, tuple[int, ...]] = field(default_factory=dict)
    numbers: StepNumbers | None = None  # of the first steps that settle; None in old evidence


@dataclass(frozen=True)
class Difference:
    """The step times of two variants of a step, whose segments alternated in one launch.

    ``name`` says which variants. "sync_overhead": the plain variant is the usual step, and the
    other one synchronizes after every step.
    """

    name: str
    pairs_ms: tuple[tuple[float, float], ...]  # (plain, other) of neighbouring segments

    def bad_times(self) -> Missing | None:
        """Return what is wrong with the times; None if all are positive and finite."""
        if not self.pairs_ms:
            return Missing(what=f"pairs of blocks of {self.name}")
        for ms in (ms for pair in self.pairs_ms for ms in pair):
            if not 0 < ms < math.inf:
                return Missing(what=f"valid times of {self.name}", why=f"{ms} ms")
        return None


@dataclass(frozen=True)
class Fault:
    """A measurement that failed."""

    code: Reason
    message: str  # one sentence
    detail: str = ""  # traceback or the tail of stderr
    during: str = ""  # "launch 2, block"
    site: Site | None = None  # where it was raised; its file is empty if that is unknown

    def __post_init__(self) -> None:
        # Both quote what the workload raised, which may print a whole tensor.
        object.__setattr__(self, "message", bounded(self.message, MESSAGE_CHARACTERS))
        object.__setattr__(self, "detail", bounded(self.detail, DETAIL_CHARACTERS))


@dataclass(frozen=True)
class Evidence:
    """All that one run measured of a case."""

    case_id: str
    case: dict[str, Any]
    date: str  # UTC, ISO 8601
    commit: str
    dirty: tuple[str, ...]  # files outside baselines/ that differ from the commit
    command: str
    planned_launches: int
    gates: tuple[str, ...]
    fingerprint: Fingerprint | None = None
    launches: tuple[Launch, ...] = ()
    counts: Counts | None = None
    differences: tuple[Difference, ...] = ()
    faults: tuple[Fault, ...] = ()
    tokens_per_step: Count = 0  # of all ranks
    flops_per_step: float = 0.0  # of all ranks, by formula
    floor_flops_per_step: float = 0.0  # of one rank: the fewest with which the step can be done
    wall_s: float = 0.0
    extended: bool = False  # the case is not in the core suite
    # Files changed while it was measured: launches may have run different code.
    tree_changed: bool = False
    untracked: tuple[str, ...] = ()  # modules of the tree that it ran and that git does not track
    # The case's own margins, never widened; empty for the device's.
    margins_pct: tuple[float, ...] = ()
    schema: int = SCHEMA

    @property
    def on_gpu(self) -> bool:
        """Tell whether the case runs on a GPU."""
        return is_gpu(self.case["device"])

    @property
    def world_size(self) -> int:
        """Return the number of the case's ranks."""
        return int(self.case["world_size"])

    def software_key(self) -> dict[str, str]:
        """Return the versions that must equal those of a recording for a comparison."""
        assert self.fingerprint is not None
        return self.fingerprint.software_key(self.world_size)

    @property
    def counted(self) -> Counts:
        """Return the counts; empty counts if nothing was counted."""
        return self.counts or Counts({})

    @property
    def of_no_commit(self) -> bool:
        """Tell whether its tree had uncommitted changes, or changed while it was measured."""
        return bool(self.dirty) or self.tree_changed

    def samples_ms(self) -> list[float]:
        """Return the times of all single steps of all blocks of all launches."""
        return [ms for launch in self.launches for block in launch.blocks for ms in block.step_ms]

    @property
    def disturbances(self) -> list[str]:
        """Return the reason for each block that was measured again."""
        blocks = [block for launch in self.launches for block in launch.discarded]
        return [block.disturbance.text for block in blocks if block.disturbance]

    def floor_ms(self) -> float | None:
        """Return the step time that the hardware cannot beat; None if unknown."""
        if self.fingerprint is None or not self.fingerprint.floor_flops:
            return None
        return self.floor_flops_per_step / self.fingerprint.floor_flops * 1e3


def to_json(kept: object) -> bytes:
    """Return evidence, or a comparison, as a JSON document with the keys in order of definition."""
    return msgspec.json.format(msgspec.json.encode(kept), indent=1)


def from_json(text: bytes, source: str) -> Evidence:
    """Read what to_json wrote. Raises ValueError that names ``source`` and what is wrong."""
    return decode(text, Evidence, SCHEMA, source, problems)


def decode(
    data: bytes, kind: type[Content], schema: int, source: str, check: Check[Content]
) -> Content:
    """Read a document of that kind. Raises ValueError that names ``source``."""
    name = kind.__name__.lower()
    try:
        return parse(data.decode(), kind, schema, check)
    except OtherSchema as error:
        raise ValueError(f"{source}: {name} {error}") from None
    except ValueError as error:
        raise ValueError(f"{source}: no {name} that stepguard wrote: {error}") from None


def problems(evidence: Evidence) -> Iterator[str]:
    """Yield why a document of evidence is refused, although its fields have the right types."""
    # METRICS is looked up by these names.
    unknown = (gate for gate in evidence.gates if gate not in METRICS)
    yield from (f"{name!r} is not known to this version of stepguard" for name in unknown)
    try:
        ranks = from_dict(evidence.case, evidence.gates, evidence.margins_pct).world_size
    except ValueError as error:
        yield str(error)
        return
    for launch in evidence.launches:
        yield from _problems_of_launch(launch)
    for difference in evidence.differences:
        metric = METRICS.get(f"{difference.name}_pct")
        if metric is None or metric.kind != "difference":
            yield f"{difference.name!r} is no difference"
        yield from _implausible_times(chain.from_iterable(difference.pairs_ms))
    yield from _problems_of_counts(evidence.counted, ranks)


def _problems_of_launch(launch: Launch) -> Iterator[str]:
    for block in (*launch.blocks, *launch.discarded):
        if len(block.wall_ms) != len(block.events_ms):
            yield f"a block has {len(block.wall_ms)} wall clocks and {len(block.events_ms)} events"
        yield from _implausible_times((*block.wall_ms, *block.events_ms, *block.step_ms))
    yield from (f"a kernel of {us!r} us" for us in launch.kernels_us if not 0 <= us <= LONGEST_US)


def _implausible_times(times_ms: Iterable[float]) -> Iterator[str]:
    """Yield times that no clock measures. Times that are not positive are left to the judge."""
    yield from (f"a time of {ms!r} ms" for ms in times_ms if 0 < ms < 1e-6 or abs(ms) > 1e12)


def _problems_of_counts(counts: Counts, ranks: int) -> Iterator[str]:
    places = (name for name in counts.sites if name not in counts.information)
    tables = (counts.values, counts.lists, counts.unstable, counts.detail, places, counts.by_rank)
    for name in chain(*tables):
        if name not in METRICS or METRICS[name].kind != "counter":
            yield f"{name!r} is no counter"
    for name in counts.information:
        if name not in METRICS or METRICS[name].kind != "information":
            yield f"{name!r} is no information"
    parts = (each.values() for each in (*counts.detail.values(), *counts.callers.values()))
    listed = (*counts.by_rank.values(), *counts.lists.values())
    for count in chain(counts.values.values(), *parts, *listed):
        if not 0 <= count < 1 << 63:
            yield f"a count of {count}"
    for name, steps in counts.lists.items():
        if len(steps) < 2 or name not in counts.values:
            yield f"{name} has a list of {len(steps)} counts"
    for name, each in counts.by_rank.items():
        if len(each) != ranks or name not in counts.values:
            yield f"{name} has {len(each)} counts by rank for {ranks} ranks"
    if counts.profile and (problem := counts.profile.problem()):
        yield problem
    if any(site.count < 1 for sites in counts.sites.values() for site in sites):
        yield "a place has a count below 1"
