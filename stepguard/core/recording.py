"""A recording: the figures of one evidence, of this run's or of a baseline file's.

A baseline file holds cases. A case holds epochs, oldest first. An epoch holds the recordings of one
level. An accepted change of level opens a new epoch. Runs are compared only with the last epoch.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean
from typing import Annotated, Any

import msgspec

from stepguard.core.margins import Margins, margins_of
from stepguard.core.metrics import METRICS, OPERATORS, PEAK
from stepguard.core.profile import grouped, summed
from stepguard.core.site import Site
from stepguard.core.step_numbers import StepNumbers
from stepguard.core.strict_json import DocumentPart

SCHEMA = 1  # of a baseline file
KEPT_RECORDINGS = 20  # in an epoch: the first of each software, and the newest ones
# A step's time: from a nanosecond to 30 years.
Milliseconds = Annotated[float, msgspec.Meta(ge=1e-6, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class RecordedDifference(DocumentPart, frozen=True, kw_only=True):
    """A difference of two variants of the step, in percent of a step."""

    mean: float
    half_width: Annotated[float, msgspec.Meta(ge=0)]  # half of its 95 % interval


# The us of each profiled step. In a row of kernels or gaps their number in a step comes first.
ProfileRow = Annotated[list[float], msgspec.Meta(min_length=1, max_length=50)]


class RecordedProfile(DocumentPart, frozen=True, kw_only=True):
    """A profile as a recording keeps it (stepguard/core/profile.py), with a line for each kernel:

    "backward": {"GEMM": {"nvjet_sm90_tst_256x128 2x66x1 384x1x1": [74, 35135, 34601, ...]}}
    """

    gpu: str
    ranks: Annotated[int, msgspec.Meta(ge=1)]
    parts_us: dict[str, ProfileRow]  # of each profiled step
    kernels: dict[str, dict[str, dict[str, ProfileRow]]]  # phase -> class -> kernel, grid, block
    idle: dict[str, dict[str, dict[str, ProfileRow]]]  # cause -> place -> CUDA call


class Recording(DocumentPart, frozen=True, kw_only=True):
    """The figures of one evidence."""

    date: Text  # UTC, ISO 8601
    commit: Text
    device_uuid: str
    software: dict[str, str]  # versions that must be equal for a comparison
    driver: str
    tokens_per_step: Count  # 0: the loop did not say it
    times_ms: dict[str, list[Milliseconds]]  # metric -> the time of each launch
    counters: dict[str, Count]
    # metric -> the count of each counted step, if steps differ: its counter, detail, sites and
    # by_rank are of all these steps together
    lists: dict[str, list[Count]] | msgspec.UnsetType = msgspec.UNSET
    # how many steps ran between a launch's first step and the counted ones; unset in old files
    counted_after_steps: Count | msgspec.UnsetType = msgspec.UNSET
    information: dict[str, float]  # shown beside the verdict; pairs judge what a case gates of it
    # In a baseline file only the newest recording of a level and a software has detail, sites,
    # operators and callers.
    # metric -> operator, call or graph break -> count
    detail: dict[str, dict[str, Count]]
    # metric -> the places that its count consists of
    sites: dict[str, list[Site]] = {}
    differences_pct: dict[str, RecordedDifference] = {}
    # line of source -> operator of the eager step -> calls
    operators: dict[str, dict[str, Count]] | msgspec.UnsetType = msgspec.UNSET
    # file and function -> its caller's function, file and source -> how many operators the function
    # calls for that caller; unset in old files
    callers: dict[str, dict[str, Count]] | msgspec.UnsetType = msgspec.UNSET
    # metric -> the count of each rank, if ranks differ; unset for one rank, and in old files
    by_rank: dict[str, list[Count]] | msgspec.UnsetType = msgspec.UNSET
    # The profile of a GPU's step; unset except in the newest recording of its software.
    profile: RecordedProfile | msgspec.UnsetType = msgspec.UNSET
    # What the first steps compute; unset except in the newest recording of its software.
    numbers: StepNumbers | msgspec.UnsetType = msgspec.UNSET
    # Versions of the libraries that the workload imported; unset if there are none, and in old
    # files.
    libraries: dict[str, str] | msgspec.UnsetType = msgspec.UNSET

    def differing_steps(self) -> dict[str, list[int]]:
        """Return ``lists``; empty if all steps have one count."""
        return {} if self.lists is msgspec.UNSET else self.lists

    def differing_ranks(self) -> dict[str, list[int]]:
        """Return ``by_rank``; empty if the recording has none."""
        return {} if self.by_rank is msgspec.UNSET else self.by_rank

    def of_ranks(self, metric: str, ranks: int) -> list[int]:
        """Return a counter's count of each of so many ranks, which may all count the same."""
        return self.differing_ranks().get(metric) or [self.counters[metric]] * ranks

    def operator_sites(self) -> list[Site]:
        """Return where the eager step calls its operators. A baseline has no line numbers."""
        return self.sites.get(OPERATORS) or _read_lines(self.operators or {})

    def values(self) -> dict[str, float]:
        """Return one figure for each metric that the recording has. A time is in ms, the mean of
        its launches. A count is that of a step; if steps differ, their mean, of a peak the largest.
        """
        values: dict[str, float] = dict(self.counters)
        means = {name: fmean(steps) for name, steps in self.differing_steps().items()}
        values |= {name: mean for name, mean in means.items() if name in values and name != PEAK}
        values |= self.information
        values |= {name: difference.mean for name, difference in self.differences_pct.items()}
        if self.tokens_per_step:  # also 0 if the run failed before it knew the number
            values["tokens_per_step"] = self.tokens_per_step
        # A geometric mean, since launches differ by ratios.
        values |= {name: geometric_mean(times) for name, times in self.times_ms.items() if times}
        return values


def on_same_steps(*recordings: Recording) -> list[Recording]:
    """Return the recordings with the counts of equally many steps. Where the steps of one of them
    differ, the others' count is that of as many steps together. A peak stays: the largest counts.
    """
    lengths = {
        metric: len(steps)
        for recording in recordings
        for metric, steps in recording.differing_steps().items()
        if metric != PEAK
    }
    return [_on_steps(recording, lengths) for recording in recordings]


def _on_steps(recording: Recording, lengths: Mapping[str, int]) -> Recording:
    lists, counters = recording.differing_steps(), recording.counters
    alike = {name: lengths[name] for name in lengths.keys() & counters.keys() - lists.keys()}
    if not alike:
        return recording
    fields = together(recording, ("counters", "detail", "sites", "by_rank"), alike)
    fields["lists"] = lists | {name: [counters[name]] * steps for name, steps in alike.items()}
    if OPERATORS in alike and recording.operators:
        fields["operators"] = _of_steps(recording.operators, alike[OPERATORS])
    return msgspec.structs.replace(recording, **fields)


def together(counted: object, tables: Iterable[str], alike: Mapping[str, int]) -> dict[str, Any]:
    """Return these tables of what was counted. A metric whose steps are ``alike`` has the counts of
    so many steps together.
    """
    return {
        table: {
            name: _of_steps(figure, alike[name]) if name in alike else figure
            for name, figure in getattr(counted, table).items()
        }
        for table in tables
        if getattr(counted, table) is not msgspec.UNSET
    }


def _of_steps(figure: Any, steps: int) -> Any:
    """Return a count, or the counts of parts, ranks or sites, of so many equal steps together."""
    if isinstance(figure, Mapping):
        return {name: _of_steps(each, steps) for name, each in figure.items()}
    if isinstance(figure, Site):
        return msgspec.structs.replace(figure, count=figure.count * steps)
    if isinstance(figure, Sequence):
        return [_of_steps(each, steps) for each in figure]
    return figure * steps


LABELS = "profiler."  # the operators of record_function, which older versions counted


def without_labels(recording: Recording) -> Recording:
    """Return the recording without the labels that it counts as operators."""
    parts = recording.detail.get(OPERATORS, {})
    labels = sum(count for name, count in parts.items() if name.startswith(LABELS))
    if not labels:
        return recording
    by_rank = recording.differing_ranks()
    if OPERATORS in by_rank:
        by_rank = by_rank | {OPERATORS: [count - labels for count in by_rank[OPERATORS]]}
    kept = {name: count for name, count in parts.items() if not name.startswith(LABELS)}
    lines = {
        line: {name: count for name, count in calls.items() if not name.startswith(LABELS)}
        for line, calls in (recording.operators or {}).items()
    }
    return msgspec.structs.replace(
        recording,
        counters=recording.counters | {OPERATORS: recording.counters[OPERATORS] - labels},
        detail=recording.detail | {OPERATORS: kept},
        operators={line: calls for line, calls in lines.items() if calls} or msgspec.UNSET,
        **({"by_rank": by_rank} if by_rank else {}),
    )


def lines_of(sites: Sequence[Site]) -> dict[str, dict[str, int]]:
    """Return how often each operator is called, by "file function: source", without lines."""
    by_place = grouped(sites, lambda site: f"{site.file} {site.function}: {site.text}")
    return {at: dict(summed((s.what, s.count) for s in mine)) for at, mine in by_place.items()}


def _read_lines(lines: dict[str, dict[str, int]]) -> list[Site]:
    sites = []
    for line, calls in lines.items():
        place, _, text = line.partition(": ")
        file, _, function = place.rpartition(" ")
        sites += [Site(what, file, 0, function, text, count=n) for what, n in calls.items()]
    return sites


class Epoch(DocumentPart, frozen=True, kw_only=True):
    """Recordings at one level, oldest first."""

    reason: Text
    recordings: Annotated[list[Recording], msgspec.Meta(min_length=1)]


class Entry(DocumentPart, frozen=True, kw_only=True, omit_defaults=True):
    """A case's baseline: the parameters that it was measured with, and its epochs."""

    case: dict[str, Any]
    epochs: Annotated[list[Epoch], msgspec.Meta(min_length=1)]
    extended: bool = False  # not in the core suite: a run may leave it out
    gates: list[str] = []  # empty if the case gates all that is recorded
    margins_pct: list[float] = []  # the case's own margins; empty if they are its device's

    @property
    def level(self) -> Epoch:
        """Return the last epoch: the only one with which runs are compared."""
        return self.epochs[-1]

    @property
    def newest(self) -> Recording:
        """Return the newest recording of the level."""
        return self.level.recordings[-1]

    @property
    def required_gates(self) -> frozenset[str]:
        """Return the metrics that the case must gate to guard as much as when it was recorded."""
        newest = self.newest
        recorded = {*newest.times_ms, *newest.counters, *newest.differences_pct, "tokens_per_step"}
        return frozenset(self.gates or recorded)

    @property
    def margins(self) -> Margins:
        """Return the widest margins with which the case guards as much as when recorded."""
        return margins_of(self.margins_pct, self.case["device"])

    @property
    def digest(self) -> str:
        """Return a hash of the whole entry: any other figure, part or field changes it."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def lacking(self, gates: Iterable[str], device: str, ranks: int) -> list[str]:
        """Return the metrics that a case with these gates must gate, too, on such a device."""
        missing = self.required_gates - set(gates)
        return [n for n, metric in METRICS.items() if n in missing and metric.exists(device, ranks)]


class BaselineFile(DocumentPart, frozen=True, kw_only=True):
    """A whole file: the cases of one kind of machine."""

    schema: int
    machine: Text  # "NVIDIA H200", or "CPU"
    cases: dict[str, Entry]
