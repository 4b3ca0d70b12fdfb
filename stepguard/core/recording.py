"""A recording: the figures of one evidence. judge/summarise_evidence.py makes it.

The figures of this run and those of a baseline file (baseline.py) have this type.
"""

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Annotated

import msgspec

from stepguard.core.metrics import OPERATORS
from stepguard.core.site import Site

# A step's time: from a nanosecond to 30 years.
Milliseconds = Annotated[float, msgspec.Meta(ge=1e-6, le=1e12)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class RecordedDifference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A difference of two variants of the step, in percent of a step."""

    mean: float
    half_width: Annotated[float, msgspec.Meta(ge=0)]  # half of its 95 % interval


# The us of each profiled step. In a row of kernels or gaps their number in a step comes first.
ProfileRow = Annotated[list[float], msgspec.Meta(min_length=1, max_length=50)]


class RecordedProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A profile as a recording keeps it (stepguard/core/profile.py), with a line for each kernel:

    "backward": {"GEMM": {"nvjet_sm90_tst_256x128 2x66x1 384x1x1": [74, 35135, 34601, ...]}}
    """

    gpu: str
    ranks: Annotated[int, msgspec.Meta(ge=1)]
    parts_us: dict[str, ProfileRow]  # of each profiled step
    kernels: dict[str, dict[str, dict[str, ProfileRow]]]  # phase -> class -> kernel, grid, block
    idle: dict[str, dict[str, dict[str, ProfileRow]]]  # cause -> place -> CUDA call


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of one evidence."""

    date: Text  # UTC, ISO 8601
    commit: Text
    device_uuid: str
    software: dict[str, str]  # versions that must be equal for a comparison
    driver: str
    tokens_per_step: Count  # 0: the loop did not say it
    times_ms: dict[str, list[Milliseconds]]  # metric -> the time of each launch
    counters: dict[str, Count]
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

    # Versions of the libraries that the workload imported; unset if there are none, and in old
    # files.
    libraries: dict[str, str] | msgspec.UnsetType = msgspec.UNSET

    def differing_ranks(self) -> dict[str, list[int]]:
        """Return ``by_rank``; empty if the recording has none."""
        return {} if self.by_rank is msgspec.UNSET else self.by_rank

    def operator_sites(self) -> list[Site]:
        """Return where the eager step calls its operators. Places from a baseline have no line
        numbers.
        """
        return self.sites.get(OPERATORS) or _read_lines(self.operators or {})

    def values(self) -> dict[str, float]:
        """Return one figure for each metric that the recording has. A time is in ms, the mean of
        its launches.
        """
        values: dict[str, float] = dict(self.counters)
        values |= self.information
        values |= {name: difference.mean for name, difference in self.differences_pct.items()}
        if self.tokens_per_step:  # also 0 if the run failed before it knew the number
            values["tokens_per_step"] = self.tokens_per_step
        # A geometric mean, since launches differ by ratios.
        values |= {name: geometric_mean(times) for name, times in self.times_ms.items() if times}
        return values


def lines_of(sites: Sequence[Site]) -> dict[str, dict[str, int]]:
    """Return how often each operator is called, by "file function: source". Line numbers are left
    out, since they change with every edit above.
    """
    by_place: dict[str, dict[str, int]] = {}
    for site in sites:
        calls = by_place.setdefault(f"{site.file} {site.function}: {site.text}", {})
        calls[site.what] = calls.get(site.what, 0) + site.count
    return by_place


def _read_lines(lines: dict[str, dict[str, int]]) -> list[Site]:
    sites = []
    for line, calls in lines.items():
        place, _, text = line.partition(": ")
        file, _, function = place.rpartition(" ")
        sites += [Site(what, file, 0, function, text, count=n) for what, n in calls.items()]
    return sites
